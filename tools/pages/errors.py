"""The page of errors: each code with its one meaning (`meanings.toml`), what is said, and the cures."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from pages.raised import UNKNOWN, Raised, everywhere

MEANINGS = Path(__file__).parent / "meanings.toml"

_INTRO = """\
# Errors

Every mistake that specc knows has a code, which stays the same from version to version. A message has up to five lines:
what is wrong, *where*, what was *expected*, what was *found*, and the *cure*. With `--json` the same is an object
`{"error": {...}}` on stdout. Exit codes: 1 failed, 2 wrong usage,
3 to be finished where CANN is, 130 interrupted.

`specc help SPECC-E0203` prints the entry of one code. Below, `…` stands for what only the case at hand tells, and
a slash parts alternatives. The same code has the same meaning from Python, from the C library and over HTTP.
"""


def meanings() -> dict[str, tuple[str, dict[str, str]]]:
    """For each family (E01, ...): its title, and the meaning of each code."""
    tables: Mapping[str, dict[str, str]] = tomllib.loads(MEANINGS.read_text())
    return {family: (table.pop("title"), table) for family, table in tables.items()}


def page(root: Path) -> str:
    """docs/errors.md for the code at `root`."""
    places: dict[str, list[Raised]] = {}
    for raised in everywhere(root):
        places.setdefault(raised.code, []).append(raised)
    lines = [_INTRO]
    for title, codes in meanings().values():
        lines.append(f"## {title}\n")
        for code, meaning in codes.items():
            begin = meaning[0] if meaning.startswith("specc") else meaning[0].upper()
            lines += [f"### SPECC-{code}\n", f"{begin}{meaning[1:]}.\n"]
            said = list(_said(places.get(code, [])))
            lines += [*said, ""] if said else []
    return "\n".join(lines)


def _said(places: list[Raised]) -> Iterator[str]:
    """A list of what is said, each once, with its cures."""
    cures: dict[str, list[str]] = {}
    for place in places:
        known = cures.setdefault(place.what, [])
        if place.cure.strip(UNKNOWN) and place.cure not in known:
            known.append(place.cure)
    for what, told in cures.items():
        if what.strip(UNKNOWN) or told:
            yield f"- {_escaped(what) if what.strip(UNKNOWN) else 'what is wrong is said in the message'}"
            yield from (f"    - cure: {_escaped(cure)}" for cure in told)


def _escaped(text: str) -> str:
    """Plain text in Markdown: what looks like a tag, a link or emphasis is none."""
    return re.sub(r"[<>\[\]*]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)
