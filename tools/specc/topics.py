"""The pages of docs/ as text for `specc help`. They come with the package, so help needs no network and no browser."""

from __future__ import annotations

import difflib
import re
from importlib.resources import files

from specc.errors import UsageError

_ALIASES = {
    "quantization": "quantisation",
    "support-matrix": "support",
    "c": "embedding",
}
_CODE = re.compile(r"(?:SPECC-)?(E\d{4})", re.IGNORECASE)


def topics() -> dict[str, str]:
    """The title of each page, by its name."""
    pages = (p for p in files("specc").joinpath("docs").iterdir() if p.name.endswith(".md"))
    found = {p.name.removesuffix(".md"): _title(p.read_text("utf-8")) for p in pages}
    return dict(sorted((n, t) for n, t in found.items() if n != "index"))


def topic(name: str) -> str:
    """A page, or the entry of an error's code, as text for a terminal. Raises UsageError (SPECC-E0131)."""
    if code := _CODE.fullmatch(name):
        return _error(code[1].upper())
    known = topics()
    name = _ALIASES.get(name.lower(), name.lower())
    if name not in known:
        raise _unknown(name, [*known, *_ALIASES])
    return plain(_page(name))


def plain(markdown: str) -> str:
    """Markdown without what only a browser needs: comments, pictures, fences, where links lead, escapes."""
    text = re.sub(r"<!--.*?-->\n*", "", markdown, flags=re.DOTALL)
    lines, code = [], False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            code = not code
        else:
            lines.append(f"    {line}".rstrip() if code else _prose(line))
    return "\n".join(lines).strip() + "\n"


def _prose(line: str) -> str:
    line = re.sub(r"!\[([^]]*)\]\([^)]*\)", r"(a picture, in docs/: \1)", line)
    line = re.sub(r"\[([^]]*)\]\(([\w-]+)\.md[^)]*\)", r"\1 (specc help \2)", line)
    line = re.sub(r"\[([^]]*)\]\(#[^)]*\)", r"\1", line)
    line = re.sub(r"\[([^]]*)\]\(([\w/.-]+\.html)\)", r"\1 (docs/\2)", line)
    return re.sub(r"\\([<>\[\]*_])", r"\1", line)


def _error(code: str) -> str:
    """From the heading of the code to the next one."""
    found = re.search(
        rf"^### SPECC-{code}$.*?(?=^##|\Z)", _page("errors"), re.MULTILINE | re.DOTALL
    )
    if found is None:
        known = re.findall(r"^### SPECC-(E\d{4})$", _page("errors"), re.MULTILINE)
        raise _unknown(f"SPECC-{code}", [f"SPECC-{c}" for c in known])
    return plain(found[0].removeprefix("### "))


def _unknown(name: str, known: list[str]) -> UsageError:
    close = difflib.get_close_matches(name, known, n=1)
    return UsageError(
        "SPECC-E0131", f"there is no help on {name}", expected="a topic that `specc help` lists, or an error's code",
        cure=f"did you mean {close[0]}?" if close else "specc help",
    )  # fmt: skip


def _page(name: str) -> str:
    return files("specc").joinpath("docs", f"{name}.md").read_text("utf-8")


def _title(markdown: str) -> str:
    return re.search(r"^# (.+)$", markdown, re.MULTILINE)[1]  # type: ignore[index]
