"""Prompts from flags, files and the package."""

import io
import json
import sys
from pathlib import Path

import pytest

from specc import prompts
from specc.errors import UsageError


def test_one_prompt_of_three_flags(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_bytes("é\n".encode())
    assert prompts.from_flags("a", None, None).text == "a"
    assert prompts.from_flags("", None, None).text == ""
    assert prompts.from_flags(None, file, None).text == "é\n"
    assert prompts.from_flags(None, None, "3,1,2").token_ids == (3, 1, 2)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hi\n")))
    assert prompts.from_flags(None, Path("-"), None).text == "hi\n"


def test_a_text_file_has_one_prompt_a_line(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("one\n\n  two \n")
    found = prompts.from_file(file)
    assert [(p.name, p.text) for p in found] == [("p.txt:1", "one"), ("p.txt:3", "  two ")]


def test_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    lines = [{"prompt": "a\nb", "kind": "code"}, {"token_ids": [1, 2]}]
    file.write_text("\n".join(map(json.dumps, lines)))
    first, second = prompts.from_file(file)
    assert (first.text, first.kind) == ("a\nb", "code")
    assert (second.text, second.token_ids) == (None, (1, 2))


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"prompt": 1}', '{"token_ids": [true]}', '{"token_ids": [-1]}',
             "[" * 100000, '{"token_ids": "1"}', '{"token_ids": [18446744073709551616]}'],
)  # fmt: skip
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "good"}\n' + line)
    with pytest.raises(UsageError, match=r"SPECC-E0106(.|\n)*p\.jsonl:2"):
        prompts.from_file(file)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xff\xfe"])
def test_a_file_without_prompts(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "p.txt"
    file.write_bytes(data)
    with pytest.raises(UsageError, match="SPECC-E0105"):
        prompts.from_file(file)


def test_every_class_comes_with_prompts() -> None:
    found = prompts.built_in()
    assert {p.kind for p in found} == set(prompts.CLASSES)
    assert len({p.name for p in found}) == len(found) >= 2 * len(prompts.CLASSES)
    assert all(p.text and len(p.text) > 40 for p in found)
