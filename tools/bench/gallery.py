"""The pages of `specc bench --report` for several artifacts, in docs/, with a page that leads to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bench.verb import told

INDEX, FOLDER = "gallery.md", "gallery"
_NOTE = "<!-- Made by `python -m bench gallery`: run that again, do not change this. -->\n\n"
_INTRO = """\
# Gallery

Pages that `specc bench ARTIFACT --report FILE.html` wrote: speeds beside plain decoding, acceptance by position, what a
round costs and gives. Each is one file that needs nothing else. Speeds are of the machine that made them.
"""


def build(
    artifacts: Mapping[str, Path], about: str, docs: Path, arguments: list[str], say: Callable[[str], object]
) -> Path:  # fmt: skip
    """Run `specc bench` on each artifact and write its page and the index, whose path is returned.

    `about`: what machine it was, in words. `arguments`: for `specc bench`. Raises SpeccError as that verb does.
    """
    (docs / FOLDER).mkdir(exist_ok=True)
    lines = [_INTRO, f"{about}\n", "| page | who drafts | verdict |", "|---|---|---|"]
    for name, path in artifacts.items():
        file = docs / FOLDER / f"{name}.html"
        said = told("bench", path, "--report", file, *arguments)
        lines.append(f"| [{name}]({FOLDER}/{file.name}) | `{said['method']}` | {said['verdict']} |")
        say(f"{file}: {said['verdict']}")
    index = docs / INDEX
    index.write_text(_NOTE + "\n".join([*lines, "", _again(artifacts, arguments)]), "utf-8")
    return index


def _again(artifacts: Mapping[str, Path], arguments: list[str]) -> str:
    named = " ".join(f"{name}={path.name}" for name, path in artifacts.items())
    words = " ".join(arguments)
    return f"Made in `tools/` by `python -m bench gallery {named} {words}`.\n"
