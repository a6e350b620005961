"""Grammars by llguidance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer, grammar_from

from specc.grammar import LONGEST_SPACE, GrammarError, Parser

_SPACE = rf"(\n? {{0,{LONGEST_SPACE}}})?"


class Engine:
    """See specc.grammar.Engine."""

    def __init__(self, tokenizer: Path, vocab_size: int, ends: tuple[int, ...]) -> None:
        # (Given text, it asks the network: what begins with / is a file.)
        self._tokenizer = LLTokenizer(str(tokenizer), n_vocab=vocab_size, eos_token=list(ends))

    def compile(self, kind: str, source: Any) -> Callable[[], Parser]:
        """What begins a text; raises ValueError or TypeError."""
        text = source if kind != "json" and isinstance(source, str) else json.dumps(source)
        if kind == "json":
            grammar = LLMatcher.grammar_from_json_schema(text, {"whitespace_pattern": _SPACE})
        else:
            grammar = grammar_from(kind, text)  # type: ignore[arg-type]
        fault = LLMatcher.validate_grammar(grammar, self._tokenizer)
        if fault and not fault.startswith("WARNING"):
            raise GrammarError(fault)
        return lambda: _Parser(LLMatcher(self._tokenizer, grammar, log_level=0))


class _Parser:
    """See specc.grammar.Parser."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self.over = matcher.is_stopped
        self.take = matcher.consume_token
        self.back = matcher.rollback

    def fill(self, row: memoryview[int]) -> None:
        row[:] = self._matcher.compute_bitmask()[: len(row)]  # (it has a word to spare)

    def fault(self) -> str:
        return self._matcher.get_error() if self._matcher.is_error() else ""
