"""Grammars by xgrammar.

Importing this imports torch and transformers, which takes seconds: not before somebody asks for a grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xgrammar

from specc.errors import RequestError, SpeccError
from specc.grammar import LONGEST_SPACE, GrammarError, Parser
from specc.grammar_schemas import stray_anchor, unheeded
from specc.ir.importers.token_bytes import decoded_bytes

_CURE = "leave it out, or serve with --grammar-backend guidance"
_MOST_TEXT = 64 << 10
"""Characters of a grammar: the time that xgrammar takes grows with their square, and is seconds at this length."""

_DOT = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\Z)|\.", re.DOTALL)
"""A dot, which is no end of a line as in other engines; or what a dot is nothing special in.

(A class that nothing closes is one to the end: to look for its end from each bracket takes minutes.)
"""

_MISREAD = (r"\A", r"\Z", r"\z", "[[:", "[^[:")
"""Anchors that it takes for letters, and classes by name, which it takes for their characters."""

_MOST_KEPT = 64 << 20
"""Bytes of grammars that were compiled, for the next request that brings the same."""

_FROM = re.compile(r"^\[[\d:]+\] \S+: ")
"""What xgrammar puts before what it says: time and line of its source."""


class Engine:
    """See specc.grammar.Engine."""

    def __init__(self, tokenizer: Path, vocab_size: int, ends: tuple[int, ...]) -> None:
        # Special tokens, and ids without a token, are of no bytes: they are no part of a text.
        pieces = [b""] * vocab_size
        try:
            known = decoded_bytes(tokenizer.read_text("utf-8"))
        except SpeccError as error:
            raise RequestError(
                "SPECC-E0717", "the tokenizer does not say what its tokens stand for", where=str(tokenizer),
                found=error.what, cure="serve with --grammar-backend guidance",
            ) from error  # fmt: skip
        for token, piece in known.items():
            if token < vocab_size and token not in ends:
                pieces[token] = piece
        tokens = xgrammar.TokenizerInfo(pieces, vocab_size=vocab_size, stop_token_ids=list(ends))
        # (On one thread: rounds of other texts go on meanwhile.)
        self._compiler = xgrammar.GrammarCompiler(
            tokens, max_threads=1, cache_limit_bytes=_MOST_KEPT
        )
        self._words = (vocab_size + 31) // 32

    def compile(self, kind: str, source: Any) -> Callable[[], Parser]:
        """What begins a text; raises ValueError or TypeError."""
        if len(json.dumps(source)) > _MOST_TEXT:
            raise GrammarError(f"more than {_MOST_TEXT} characters", _CURE)
        try:
            made = self._compiled(kind, source)
        except RuntimeError as error:
            raise GrammarError(_FROM.sub("", str(error)).strip()) from error
        return lambda: _Parser(xgrammar.GrammarMatcher(made), self._words)

    def _compiled(self, kind: str, source: Any) -> xgrammar.CompiledGrammar:
        match kind:
            case "json":
                if lost := next(unheeded(source), ""):
                    raise GrammarError(f"{lost} is not heeded by xgrammar", _CURE)
                return self._compiler.compile_json_schema(
                    json.dumps(source), strict_mode=False, max_whitespace_cnt=LONGEST_SPACE
                )
            case "regex":
                if lost := stray_anchor(source):
                    raise GrammarError(f"{lost} inside is not heeded by xgrammar", _CURE)
                return self._compiler.compile_regex(_DOT.sub(_as_elsewhere, source))
            case "choice":
                names = " | ".join(json.dumps(each, ensure_ascii=False) for each in source)
                return self._compiler.compile_grammar(f"root ::= {names}")
        if "::=" in source:
            return self._compiler.compile_grammar(source)
        return self._compiler.compile_lark(source)


def _as_elsewhere(found: re.Match[str]) -> str:
    if found[0].startswith(_MISREAD):
        raise GrammarError(f"{found[0]} is not heeded by xgrammar", _CURE)
    return r"[^\n]" if found[0] == "." else found[0]


class _Parser:
    """See specc.grammar.Parser."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, words: int) -> None:
        self._matcher = matcher
        self._bits = np.zeros(words, np.int32)
        self._fault = ""
        self.over = matcher.is_terminated
        self.back = matcher.rollback

    def take(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            self._fault = f"token {token} cannot follow"

    def fill(self, row: memoryview[int]) -> None:
        self._matcher.fill_next_token_bitmask(self._bits)
        row[:] = self._bits.data.cast("B")

    def fault(self) -> str:
        return self._fault
