"""Streamed text: whole characters, and in sum the text of all tokens (B62)."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from specc.streaming import StopStrings, TextStream


def by_bytes(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def streamed(decode: object, ids: Sequence[int]) -> list[str]:
    stream = TextStream(decode)  # type: ignore[arg-type]
    return [*map(stream.push, ids), stream.finish()]


@given(st.text())
def test_no_piece_has_part_of_a_character(text: str) -> None:
    data = text.replace("\N{REPLACEMENT CHARACTER}", "").encode("utf-8", "ignore")
    pieces = streamed(by_bytes, data)
    assert "".join(pieces) == data.decode()
    assert not any("\N{REPLACEMENT CHARACTER}" in p for p in pieces)


@given(st.binary())
def test_bytes_that_are_no_text_are_not_lost(data: bytes) -> None:
    assert "".join(streamed(by_bytes, data)) == by_bytes(data)


@given(
    st.lists(
        st.sampled_from([b"\xff", b"\xf0\x9f", b"\x8e", b"\x89", b"a", b"\xe2\x82\xac\xff"]),
        max_size=40,
    )
)
def test_tokens_of_stray_bytes_are_not_lost(blocks: list[bytes]) -> None:
    def decode(ids: Sequence[int]) -> str:
        return b"".join(blocks[i] for i in ids).decode("utf-8", "replace")

    assert "".join(streamed(decode, range(len(blocks)))) == decode(range(len(blocks)))


@pytest.mark.parametrize("tail", [b"", "🎉!".encode()])
def test_endless_stray_bytes_take_linear_work(tail: bytes) -> None:
    decoded = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return by_bytes(ids)

    data = b"\xff" * 2000 + tail
    pieces = streamed(decode, data)
    assert "".join(pieces) == by_bytes(data)
    assert all(pieces[10:1990]), "given out as they come"
    assert decoded < 50 * len(data)


@pytest.mark.parametrize("size", range(1, 9))
def test_whatever_the_tokens_are(size: int) -> None:
    data = "🎉🔥 ∑ 日本語, naïve ﷽".encode()
    blocks = [data[i : i + size] for i in range(0, len(data), size)]

    def decode(ids: Sequence[int]) -> str:
        return b"".join(blocks[i] for i in ids).decode("utf-8", "replace")

    pieces = streamed(decode, range(len(blocks)))
    assert "".join(pieces) == data.decode()
    for piece in pieces:
        piece.encode("utf-8")
    assert sum(bool(p) for p in pieces) > 1 or size == 8


@given(st.lists(st.integers(0, 5), max_size=12))
def test_sentence_piece_spaces_are_kept(ids: list[int]) -> None:
    words = ["▁Hello", "▁", "wor", "ld", "▁you", "!"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="!"))
    tokenizer.decoder = decoders.Metaspace()  # type: ignore[attr-defined]
    assert "".join(streamed(tokenizer.decode, ids)) == tokenizer.decode(ids)


def test_a_token_without_text_waits() -> None:
    def decode(ids: Sequence[int]) -> str:
        return "".join("" if i == 0 else chr(96 + i) for i in ids)

    assert streamed(decode, [1, 0, 2, 0]) == ["a", "", "b", "", ""]


@given(
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.text("abc", max_size=30), st.lists(st.integers(0, 30), max_size=8),
)  # fmt: skip
def test_stop_strings_do_not_depend_on_the_pieces(
    stops: list[str], text: str, cuts: list[int]
) -> None:
    """By definition: the shortest beginning of the text that ends with a stop string, without the longest such."""
    expected = text
    for end in range(len(text) + 1):
        if found := [s for s in stops if text[:end].endswith(s)]:
            expected = text[: end - max(map(len, found))]
            break
    places = sorted({0, len(text), *(c for c in cuts if c <= len(text))})
    watch = StopStrings(stops)
    shown, stopped = "", False
    for start, end in pairwise(places):
        piece, stopped = watch.push(text[start:end])
        shown += piece
        if stopped:
            break
        # Nothing is held back that could not become a stop string.
        held = text[len(shown) : end]
        assert held == "" or any(s.startswith(held) for s in stops)
    assert shown + ("" if stopped else watch.finish()) == expected
    assert stopped is (expected != text or any(expected + s == text for s in stops))
