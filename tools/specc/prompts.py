"""Prompts: from a flag, a file, or the few that come with specc."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from specc.errors import UsageError
from specc.flags import conflict, integers
from specc.runtime import Engine

CLASSES = ("chat", "code", "copy")
"""Built-in prompts by what they ask for: how much a drafter can guess depends on that most."""

_MOST_ID = (1 << 63) - 1


@dataclass(frozen=True)
class Prompt:
    """A text, or token ids. `kind` groups prompts in reports; `name` says where one came from.

    `may_shrink`: its beginning may be cut off where the context is small.
    """

    name: str
    text: str | None = None
    token_ids: tuple[int, ...] = ()
    kind: str = "file"
    may_shrink: bool = False

    def ids(self, engine: Engine, new_tokens: int = 0) -> list[int]:
        """Token ids, with BOS where the model wants it; cut to leave room for `new_tokens`."""
        ids = list(self.token_ids) if self.text is None else encode(engine, self.text)
        room = max(1, engine.manifest.model.max_model_len - new_tokens)
        return ids[-room:] if self.may_shrink else ids


def encode(engine: Engine, text: str) -> list[int]:
    """Token ids of a text as it is. Special tokens in it count as such, as in transformers."""
    return engine.tokenize(text, add_special=engine.manifest.model.add_bos, parse_special=True)


def read_text(path: Path, flag: str) -> str:
    """A text file, or standard input for `-`; nothing is trimmed."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _unreadable(path, flag, f"not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise _unreadable(path, flag, error.strerror or str(error)) from error


def from_flags(text: str | None, file: Path | None, token_ids: str | None) -> Prompt:
    """The one prompt of `--prompt`, `--prompt-file` or `--token-ids`."""
    given = [
        flag
        for flag, value in (("--prompt", text), ("--prompt-file", file), ("--token-ids", token_ids))
        if value is not None
    ]
    if len(given) != 1:
        raise conflict(
            "one prompt is needed", "leave out all but one" if given else "add --prompt TEXT",
            expected="one of --prompt, --prompt-file, --token-ids",
            found=" and ".join(given) or "none",
        )  # fmt: skip
    if token_ids is not None:
        return Prompt("--token-ids", token_ids=integers("--token-ids", token_ids, 0, _MOST_ID))
    return Prompt(given[0], text=read_text(file, "--prompt-file") if file is not None else text)


def from_file(path: Path) -> list[Prompt]:
    """Prompts of a text file, one a line, or of a .jsonl of objects."""
    lines = read_text(path, "--prompts").splitlines()
    read = _from_json if path.suffix == ".jsonl" else _from_line
    prompts = [read(f"{path.name}:{n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise _unreadable(path, "--prompts", "no prompt in it")
    return prompts


def built_in() -> list[Prompt]:
    """The prompts that come with specc."""
    folder = files("specc").joinpath("data")
    return [
        Prompt(f"{kind}:{number}", text=text.strip("\n"), kind=kind, may_shrink=True)
        for kind in CLASSES
        for number, text in enumerate(
            folder.joinpath(f"{kind}.txt").read_text("utf-8").split("\n---\n"), 1
        )
    ]


def _from_line(name: str, line: str) -> Prompt:
    return Prompt(name, text=line)


def _from_json(name: str, line: str) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _bad_entry(name, str(error)) from error
    if not isinstance(entry, dict):
        raise _bad_entry(name, type(entry).__name__)
    kind = str(entry.get("kind", "file"))
    if isinstance(text := entry.get("prompt"), str):
        return Prompt(name, text=text, kind=kind)
    ids = entry.get("token_ids")
    if not isinstance(ids, list) or not all(_is_id(i) for i in ids):
        raise _bad_entry(name, ", ".join(entry) or "an empty object")
    return Prompt(name, token_ids=tuple(ids), kind=kind)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_ID


def _bad_entry(where: str, found: str) -> UsageError:
    return UsageError(
        "SPECC-E0106", "a line of the prompts is wrong", where=where,
        expected='{"prompt": "text"} or {"token_ids": [1, 2]}', found=found,
        cure="correct that line",
    )  # fmt: skip


def _unreadable(path: Path, flag: str, why: str) -> UsageError:
    return UsageError(
        "SPECC-E0105", "a file cannot be read", where=f"{flag} {path}", found=why,
        cure="name a text file in UTF-8",
    )  # fmt: skip


def total(prompts: Sequence[Prompt]) -> str:
    """`3 prompts`."""
    return f"{len(prompts)} prompt{'' if len(prompts) == 1 else 's'}"
