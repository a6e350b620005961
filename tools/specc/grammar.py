"""What a text must look like, as masks of the tokens that may follow: JSON schemas, regular expressions, grammars.

Two engines know them, each in a module of its own: llguidance and xgrammar.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from specc.errors import RequestError
from specc.runtime import Artifact, TokenMask

KINDS = ("json", "regex", "choice", "grammar")
"""A JSON schema, a regular expression, a list of strings, a grammar (GBNF or Lark), by vLLM's names."""

_FORMS = {
    "json": "a schema that is an object", "regex": "a string", "choice": "a list of strings", "grammar": "a string",
}  # fmt: skip
"""(The schemas true and false say nothing of a text, and none of the engines takes both.)"""

GUIDANCE, XGRAMMAR = BACKENDS = ("guidance", "xgrammar")
"""Engines by vLLM's names, the usual one first."""

LONGEST_SPACE = 16
"""Characters between the parts of JSON: a line's indentation, as some models would go on with spaces for ever."""

TOKENIZER = "tokenizer/tokenizer.json"

_PACKAGES = {GUIDANCE: ("llguidance", "grammar"), XGRAMMAR: ("xgrammar", "xgrammar")}
"""What an engine needs, and the extra of specc's that brings it."""


class Parser(Protocol):
    """A grammar's state in a text."""

    def over(self) -> bool:
        """Whether nothing can follow but the end."""

    def take(self, token: int, /) -> object:
        """Read a token, one that may follow."""

    def back(self, count: int, /) -> object:
        """Forget the last `count` that were read."""

    def fill(self, row: memoryview[int]) -> None:
        """Which tokens may follow, a bit each, the lowest of a byte first; not asked where it is over."""

    def fault(self) -> str:
        """What went wrong inside of the engine, if anything did."""


class GrammarError(ValueError):
    """What an engine cannot follow. `cure`: what to do, if it is not to correct the grammar."""

    def __init__(self, what: str, cure: str = "") -> None:
        super().__init__(what)
        self.cure = cure


class Engine(Protocol):
    """Grammars over one tokenizer."""

    def __init__(self, tokenizer: Path, vocab_size: int, ends: tuple[int, ...]) -> None: ...

    def compile(self, kind: str, source: Any) -> Callable[[], Parser]:
        """What begins a text; raises GrammarError."""


def require(backend: str) -> None:
    """Raise RequestError (SPECC-E0716) where the package of one of BACKENDS is not installed."""
    if find_spec(_PACKAGES[backend][0]) is None:
        raise _missing(backend)


def _missing(backend: str, found: str = "") -> RequestError:
    package, extra = _PACKAGES[backend]
    return RequestError(
        "SPECC-E0716", "grammars need another package", expected=package, found=found,
        cure=f"pip install 'specc-compiler[{extra}]'",
    )  # fmt: skip


class Grammars:
    """Grammars over one artifact's tokens."""

    def __init__(self, engine: Artifact, backend: str = GUIDANCE) -> None:
        """Raises RequestError: SPECC-E0716 without the package of one of BACKENDS, E0605 without a tokenizer."""
        require(backend)
        path = Path(engine.path) / TOKENIZER
        if not path.is_file():
            raise RequestError(
                "SPECC-E0605", "the artifact has no tokenizer", cure="leave the grammar out"
            )
        model = engine.manifest.model
        self._ends = model.eos_token_ids
        if not self._ends:
            raise RequestError(
                "SPECC-E0717",
                "the model has no token that ends a text",
                cure="leave the grammar out",
            )
        try:
            made: type[Engine] = import_module(f"specc.grammar_{backend}").Engine
        except ImportError as error:
            raise _missing(backend, str(error)) from error
        self._engine = made(path.resolve(), model.vocab_size, self._ends)

    def compile(self, kind: str, source: Any, where: str = "grammar") -> Grammar:
        """One of KINDS; raises RequestError (SPECC-E0717) for what is no such thing, or too much for masks."""

        def refused(found: str, *, expected: str = "", cure: str = "") -> RequestError:
            return RequestError(
                "SPECC-E0717", f"the {kind} cannot be followed", where=where, expected=expected, found=found,
                cure=cure or f"correct {where}",
            )  # fmt: skip

        try:
            if kind == "json" and isinstance(source, str):
                source = json.loads(source)
            if not _is_one(kind, source):
                raise refused(json.dumps(source)[:80], expected=_FORMS[kind])
            return Grammar(self._engine.compile(kind, source), self._ends)
        except (TypeError, AttributeError) as error:
            # An engine's Python says of which types, which means nothing to who wrote the schema.
            raise refused("a value of another type than its place wants") from error
        except (ValueError, RecursionError) as error:
            raise refused(str(error)[:300], cure=getattr(error, "cure", "")) from error


def _is_one(kind: str, source: Any) -> bool:
    """Whether `source` has the form of a `kind`, whatever it says."""
    match kind:
        case "json":
            return isinstance(source, dict)
        case "choice":
            several = isinstance(source, list | tuple) and len(source) > 0
            return several and all(isinstance(each, str) for each in source)
    return isinstance(source, str)


@dataclass(frozen=True)
class Grammar:
    """A compiled grammar. `begin` gives what reads a text from its beginning; `ends` are tokens that end one."""

    begin: Callable[[], Parser]
    ends: tuple[int, ...]

    def mask(self) -> TokenMask:
        """What follows it in one session."""
        return _Follower(self.begin(), self.ends)


class _Follower:
    """A parser beside a text: it reads what was committed, looks at drafts, and takes them back."""

    def __init__(self, parser: Parser, ends: tuple[int, ...]) -> None:
        self._parser = parser
        self._ends = ends
        self._read: list[int] = []

    def __call__(self, new: list[int], drafts: list[int], rows: list[memoryview[int]]) -> int:
        self._follow(new)
        allowed = taken = 0
        self._fill(rows[0])
        for draft in drafts:
            if not rows[allowed][draft // 8] >> draft % 8 & 1:
                break
            if not self._parser.over():
                self._parser.take(draft)
                taken += 1
            allowed += 1
            self._fill(rows[allowed])
        if taken:
            self._parser.back(taken)
        self._check()
        return allowed

    def _follow(self, new: list[int]) -> None:
        """Read the text; where it was taken back, take back."""
        kept = 0
        while kept < min(len(new), len(self._read)) and new[kept] == self._read[kept]:
            kept += 1
        if kept < len(self._read):
            self._parser.back(len(self._read) - kept)
        self._read = new[:kept]
        for token in new[kept:]:
            if self._parser.over():
                break
            self._parser.take(token)
            self._read.append(token)
        self._check()

    def _fill(self, row: memoryview[int]) -> None:
        if not self._parser.over():
            self._parser.fill(row)
            return
        row[:] = bytes(len(row))
        for end in self._ends:
            row[end // 8] |= 1 << end % 8

    def _check(self) -> None:
        if fault := self._parser.fault():
            raise RequestError(
                "SPECC-E0717", "the grammar cannot be followed further", found=fault[:300],
                cure="simplify the grammar",
            )  # fmt: skip
