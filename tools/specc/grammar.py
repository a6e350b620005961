"""What a text must look like, as masks of the tokens that may follow: JSON schemas, regular expressions, grammars."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.errors import RequestError
from specc.runtime import Artifact, TokenMask

KINDS = ("json", "regex", "choice", "grammar")
"""A JSON schema, a regular expression, a list of strings, a grammar (GBNF or Lark), by vLLM's names."""

SPACE = r"(\n? {0,16})?"
"""Between the parts of JSON: no more than a line's indentation, as some models would go on with spaces for ever."""

TOKENIZER = "tokenizer/tokenizer.json"


class Grammars:
    """Grammars over one artifact's tokens."""

    def __init__(self, engine: Artifact) -> None:
        """Raises RequestError: SPECC-E0716 without llguidance, E0605 without a tokenizer."""
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise RequestError(
                "SPECC-E0716", "grammars need another package", expected="llguidance",
                cure="pip install 'specc-compiler[grammar]'",
            ) from error  # fmt: skip
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
        # (Given text, it asks the network: what begins with / is a file.)
        self._tokenizer = LLTokenizer(
            str(path.resolve()), n_vocab=model.vocab_size, eos_token=list(self._ends)
        )

    def compile(self, kind: str, source: Any, where: str = "grammar") -> Grammar:
        """One of KINDS; raises RequestError (SPECC-E0717) for what is no such thing, or too much for masks."""
        from llguidance import LLMatcher, grammar_from

        text = source if isinstance(source, str) else json.dumps(source)
        try:
            if kind == "json":
                grammar = LLMatcher.grammar_from_json_schema(text, {"whitespace_pattern": SPACE})
            else:
                grammar = grammar_from(kind, text)  # type: ignore[arg-type]
            fault = LLMatcher.validate_grammar(grammar, self._tokenizer)
        except (ValueError, TypeError) as error:
            fault = str(error)
        if fault and not fault.startswith("WARNING"):
            raise RequestError(
                "SPECC-E0717", f"the {kind} cannot be followed", where=where, found=fault[:300],
                cure=f"correct {where}",
            )  # fmt: skip
        return Grammar(self._tokenizer, grammar, self._ends)


@dataclass(frozen=True)
class Grammar:
    """A compiled grammar."""

    tokenizer: Any
    text: str
    ends: tuple[int, ...]

    def mask(self) -> TokenMask:
        """What follows it in one session."""
        return _Follower(self)


class _Follower:
    """A parser beside a text: it reads what was committed, looks at drafts, and takes them back."""

    def __init__(self, grammar: Grammar) -> None:
        from llguidance import LLMatcher

        self._matcher = LLMatcher(grammar.tokenizer, grammar.text, log_level=0)
        self._ends = grammar.ends
        self._read: list[int] = []

    def __call__(self, new: list[int], drafts: list[int], rows: list[memoryview[int]]) -> int:
        self._follow(new)
        matcher = self._matcher
        allowed = consumed = 0
        self._fill(rows[0])
        for draft in drafts:
            if matcher.is_stopped():
                if draft not in self._ends:
                    break
            elif matcher.validate_tokens([draft]):
                matcher.consume_token(draft)
                consumed += 1
            else:
                break
            allowed += 1
            self._fill(rows[allowed])
        if consumed:
            matcher.rollback(consumed)
        self._check()
        return allowed

    def _follow(self, new: list[int]) -> None:
        """Read the text; where it was taken back, take back."""
        kept = 0
        while kept < min(len(new), len(self._read)) and new[kept] == self._read[kept]:
            kept += 1
        if kept < len(self._read):
            self._matcher.rollback(len(self._read) - kept)
        self._read = new[:kept]
        for token in new[kept:]:
            if self._matcher.is_stopped():
                break
            self._matcher.consume_token(token)
            self._read.append(token)
        self._check()

    def _fill(self, row: memoryview[int]) -> None:
        if self._matcher.is_stopped():  # nothing can follow but the end
            row[:] = bytes(len(row))
            for end in self._ends:
                row[end // 8] |= 1 << end % 8
        else:
            row[:] = self._matcher.compute_bitmask()[: len(row)]  # (it has a word to spare)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(
                "SPECC-E0717", "the grammar cannot be followed further",
                found=self._matcher.get_error()[:300], cure="simplify the grammar",
            )  # fmt: skip
