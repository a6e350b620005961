"""Frames: their bytes by hand, and whatever else may come over a socket."""

from __future__ import annotations

import struct
import zlib
from array import array
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.errors import RequestError
from specc.runtime import draft_frames as frames
from specc.runtime.draft_frames import Kind, Vocabulary

DIGEST = bytes(range(32))


def by_hand(kind: int, text: int, form: str = "<", *values: object, tail: bytes = b"") -> bytes:
    """A frame as the module's comment has it: magic, version, kind, two zeros, text, body."""
    head = struct.pack("<4sBB2xQ", b"SPDR", 1, kind, text)
    return head + struct.pack(form, *values) + tail


def test_what_is_sent() -> None:
    tokens = array("I", [5, 6, 7])
    crc = zlib.crc32(struct.pack("<5I", 1, 2, 5, 6, 7))
    body = struct.pack("<3I", 5, 6, 7)
    assert frames.propose(9, 2, 5, crc, tokens, 4, 0.5, -3) == by_hand(
        3, 9, "<IIIHdq", 2, 5, crc, 4, 0.5, -3, tail=body
    )
    assert frames.draft(9, 5, crc, tokens) == by_hand(4, 9, "<II", 5, crc, tail=body)
    assert frames.lost(9, 5, crc) == by_hand(5, 9, "<II", 5, crc)
    assert frames.hello(Vocabulary(DIGEST, 320)) == by_hand(1, 0, "<32sI", DIGEST, 320)
    assert frames.checksum(tokens, frames.checksum(array("I", [1, 2]))) == crc


def test_what_is_read() -> None:
    read = frames.read(
        by_hand(3, 9, "<IIIHdq", 2, 4, 77, 4, 0.5, -3, tail=struct.pack("<2I", 8, 9))
    )
    assert (read.kind, read.text, read.start, read.count, read.crc) == (Kind.PROPOSE, 9, 2, 4, 77)
    assert (read.k, read.temperature, read.seed, list(read.tokens)) == (4, 0.5, -3, [8, 9])
    assert frames.read(by_hand(1, 0, "<32sI", DIGEST, 320)).vocabulary == Vocabulary(DIGEST, 320)
    assert frames.read(by_hand(8, 2**64 - 1)).text == 2**64 - 1


@pytest.mark.parametrize(
    "data",
    [
        b"", b"SPDR", by_hand(0, 0), by_hand(9, 0), b"SPDX" + by_hand(7, 0)[4:],
        b"SPDR\x02" + by_hand(7, 0)[5:], by_hand(7, 0, tail=b"x"), by_hand(1, 0, tail=b"short"),
        by_hand(3, 1, tail=b"short"),
        by_hand(3, 1, "<IIIHdq", 0, 2, 0, 1, 0.0, 0, tail=b"\0" * 4),  # a token is missing
        by_hand(3, 1, "<IIIHdq", 3, 2, 0, 1, 0.0, 0),  # ends before it begins
        by_hand(3, 1, "<IIIHdq", 0, 2**32 - 1, 0, 1, 0.0, 0),
        by_hand(3, 1, "<IIIHdq", 2**24, 2**24 + 1, 0, 1, 0.0, 0, tail=b"\0" * 4),
        by_hand(3, 1, "<IIIHdq", 0, 0, 0, 65, 0.0, 0), by_hand(3, 1, "<IIIHdq", 0, 0, 0, 1, float("nan"), 0),
        by_hand(3, 1, "<IIIHdq", 0, 0, 0, 1, -1.0, 0), by_hand(3, 1, "<IIIHdq", 0, 0, 0, 1, float("inf"), 0),
        by_hand(4, 1, "<II", 1, 1, tail=b"\0" * 3), by_hand(4, 1, "<II", 1, 1, tail=b"\0" * 4 * 65),
        by_hand(5, 1, "<II", 1, 1, tail=b"\0" * 4), b"\0" * (frames.MOST_BYTES + 1),
    ],
)  # fmt: skip
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(RequestError, match="SPECC-E0718"):
        frames.read(data)


@given(
    st.one_of(
        st.binary(max_size=80),
        st.builds(
            lambda kind, body: by_hand(kind, 1, tail=body),
            st.integers(0, 255),
            st.binary(max_size=80),
        ),
    )
)
def test_bytes_of_anybody(data: bytes) -> None:
    """Either a frame whose numbers are within bounds, or a coded error."""
    with suppress(RequestError):  # (any other error fails)
        frame = frames.read(data)
        assert frame.k <= frames.MOST_DRAFTS
        assert frame.kind != Kind.PROPOSE or len(frame.tokens) == frame.count - frame.start
