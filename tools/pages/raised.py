"""Every error that the code raises, read from its text: nothing is imported and nothing is run.

A part of a message that is known only at run time is shown as `…`, alternatives with a slash between.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOMS = ("ir", "passes", "backends", "runtime", "tools")
UNKNOWN = "…"
_TOLD = "{instead}"
"""A parameter of what raises for several backends, each of which has a constant INSTEAD."""
_INSTEAD = re.compile(r'^INSTEAD = "(.*)"$', re.MULTILINE)
_CODE = re.compile(r"SPECC-(E\d{4})")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ENUM = re.compile(r"(\w+) = (\d{3}),")
_CODES = re.compile(r"Code::(\w+)")


@dataclass(frozen=True, order=True)
class Raised:
    """One place that raises a code. `kind` is the exception's class, or the C++ enumerator."""

    code: str
    what: str
    cure: str
    kind: str
    path: str


def everywhere(root: Path) -> list[Raised]:
    """All places under the rooms of the repository at `root`, in order of code and text."""
    python = {p.resolve(): p for room in ROOMS for p in sorted((root / room).rglob("*.py"))}
    found = [r for p in python.values() for r in _python(p, root)]
    texts = "\n".join(p.read_text() for p in python.values() if "INSTEAD = " in p.read_text())
    instead = " / ".join(sorted(set(_INSTEAD.findall(texts))))
    told = [replace(r, cure=r.cure.replace(_TOLD, instead)) for r in found]
    return sorted({*told, *_cpp(root)})


def _python(path: Path, root: Path) -> Iterator[Raised]:
    name = str(path.relative_to(root))
    tree = ast.parse(path.read_text())
    rules = _rules(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node).endswith("Error") and node.args:
            what = _text(node.args[1]) if len(node.args) > 1 else UNKNOWN
            told = next((k.value for k in node.keywords if k.arg == "cure"), ast.Constant(""))
            cures = _cures(told, tree)
            codes = _codes(node.args[0])
            if isinstance(node.args[0], ast.JoinedStr):  # a number for each rule of ir.check
                for number, rule in rules:
                    yield Raised(
                        f"E{310 + number:04}",
                        f"rule {number} is broken: {rule}",
                        cures[0],
                        _called(node),
                        name,
                    )
            for code in codes:
                yield from (Raised(code, what, cure, _called(node), name) for cure in cures)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
            for code in _codes(node.value):
                yield Raised(code, UNKNOWN, "", "", name)


def _cures(told: ast.expr, tree: ast.Module) -> list[str]:
    """A cure as it is written, or all that the function of the module that chooses one may return."""
    if not isinstance(told, ast.Call):
        return [_text(told)]
    chooses = [f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == _called(told)]
    returns = [r.value for f in chooses for r in ast.walk(f) if isinstance(r, ast.Return)]
    return [_text(value) for value in returns if value is not None] or [UNKNOWN]


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _codes(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return [*_codes(node.body), *_codes(node.orelse)]
    exact = (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _CODE.fullmatch(node.value)
    )
    return [exact[1]] if exact else []


def _rules(tree: ast.Module) -> list[tuple[int, str]]:
    """The numbered rules in the docstring of a function `check`."""
    texts = [
        ast.get_docstring(n) or ""
        for n in tree.body
        if isinstance(n, ast.FunctionDef) and n.name == "check"
    ]
    rules = re.findall(
        r"^ +(\d+)\. (.*?)(?=^ +\d+\. |\Z)", "\n".join(texts), re.MULTILINE | re.DOTALL
    )
    return [(int(number), " ".join(rule.split()).rstrip(".")) for number, rule in rules]


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(v) for v in node.values)
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body)} / {_text(node.orelse)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.BoolOp):
        return _text(node.values[-1])
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.IfExp | ast.Name):
        return _text(node.value)
    if isinstance(node, ast.Name) and node.id == "instead":
        return _TOLD
    return UNKNOWN


def _cpp(root: Path) -> Iterator[Raised]:
    core = root / "runtime/cpp/core"
    numbers = {n: f"E0{v}" for n, v in _ENUM.findall((core / "error.h").read_text())}
    files = (root / "runtime/cpp").rglob("*.*")
    for path in sorted(p for p in files if p.suffix in (".cpp", ".h") and p != core / "error.h"):
        text = re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.MULTILINE)
        for match in re.finditer(r"\bError\((?=[^()\"]*Code::)", text):
            inner, end = _inside(text, match.end())
            head, _, what = inner.partition(",")
            cure = re.match(r"(?:[^;]*?)\.cure\(", text[end:])
            told = _literals(_inside(text, end + cure.end())[0]) if cure else ""
            for name in _CODES.findall(head):
                yield Raised(
                    numbers[name], _literals(what), told, name, str(path.relative_to(root))
                )
    for code, what in re.findall(
        r'set_last_error\("SPECC-(E\d{4}) ([^"]+)"', (core / "error.h").read_text()
    ):
        yield Raised(
            code, what, "", {v: k for k, v in numbers.items()}[code], "runtime/cpp/core/error.h"
        )


def _inside(text: str, begin: int) -> tuple[str, int]:
    """What stands between the parenthesis opened before `begin` and its end, and where that is."""
    depth, at = 1, begin
    while depth:
        if text[at] == '"':
            at = _STRING.match(text, at).end()  # type: ignore[union-attr]
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return text[begin : at - 1], at


def _literals(expression: str) -> str:
    """A C++ expression as text: literals are joined, alternatives have a slash between."""
    parts = _STRING.findall(expression)
    rest = _STRING.sub("", expression)
    if "?" in rest:
        return " / ".join(parts)
    text = _STRING.sub(lambda m: f"\0{m[1]}\0", expression)
    shown = "".join(
        p if i % 2 else (UNKNOWN if p.strip(" +\n") else "") for i, p in enumerate(text.split("\0"))
    )
    return shown.replace('\\"', '"') or UNKNOWN
