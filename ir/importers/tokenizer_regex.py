"""Regular expressions of pre-tokenizers -> small programs for the runtime's matcher.

The syntax is Oniguruma's, as `tokenizers` builds it. Whatever matches exactly one character (a
class, a property, a letter under `(?i)`) is not interpreted here: `class_ranges` asks Oniguruma
itself which code points it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import NoReturn

from specc.errors import ModelError
from specc.ir.importers.tokenizer_unicode import Ranges, class_ranges, contains

INFINITE = 0xFFFFFFFF
_LONGEST_PROGRAM = 1 << 16

MATCH, CHAR, SET, SPLIT, JUMP, GREEDY, LAZY, POSSESSIVE, LOOK, ATOMIC, ASSERT = range(11)
"""Operations; the operands are described in `runtime/cpp/tokenizer/regex.h`."""

LINE_START, LINE_END, TEXT_START, TEXT_END, TEXT_END_OR_NEWLINE, WORD_EDGE, NO_WORD_EDGE = range(7)

_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7, "e": 27}
_ASSERTS = {
    "A": TEXT_START,
    "z": TEXT_END,
    "Z": TEXT_END_OR_NEWLINE,
    "b": WORD_EDGE,
    "B": NO_WORD_EDGE,
}


@dataclass(frozen=True)
class Node:
    """A piece of the pattern: `kind` says which of the other fields count."""

    kind: str
    items: tuple[Node, ...] = ()
    ranges: Ranges = ()
    value: int = 0
    least: int = 0
    most: int = 0
    mode: int = GREEDY
    negative: bool = False
    behind: bool = False


@dataclass
class Pool:
    """The character sets of a tokenizer, each stored once."""

    sets: list[Ranges] = field(default_factory=list)

    def add(self, ranges: Ranges) -> int:
        if ranges not in self.sets:
            self.sets.append(ranges)
        return self.sets.index(ranges)


@cache
def _long_foldings() -> frozenset[str]:
    """Strings that equal one character when case is ignored ("ss" and sharp s)."""
    return frozenset(text for _, text in _folding_characters())


@cache
def _folding_characters() -> tuple[tuple[int, str], ...]:
    folded = ((p, chr(p).casefold()) for p in range(0xDF, 0xFB18))
    return tuple((p, text) for p, text in folded if len(text) > 1)


class _Parser:
    """Recursive descent over the pattern's text."""

    def __init__(self, pattern: str, where: str) -> None:
        self.text = pattern
        self.where = where
        self.at = 0
        self.ignore_case = False
        self.folded_run = ""

    def parse(self) -> Node:
        node = self._alternatives()
        if self.at < len(self.text):
            self.refuse("an unmatched parenthesis")
        return node

    def refuse(self, what: str) -> NoReturn:
        raise ModelError(
            "SPECC-E0231",
            f"the tokenizer's regular expression uses {what}, which specc does not compile",
            where=f"{self.where}, at character {self.at} of {self.text!r}",
            cure="convert the tokenizer to a pattern without it",
        )

    def _peek(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def _take(self, token: str) -> bool:
        if self._peek(token):
            self.at += len(token)
            return True
        return False

    def _alternatives(self) -> Node:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Node("alt", tuple(branches))

    def _sequence(self) -> Node:
        items: list[Node] = []
        self.folded_run = ""
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            if self._peek("(?i)") or self._peek("(?-i)"):
                outer, self.ignore_case = self.ignore_case, self._peek("(?i)")
                self.at = self.text.index(")", self.at) + 1
                items.append(self._alternatives())  # Oniguruma: a(?i)b|c is a(?i:b|c)
                self.ignore_case = outer
            else:
                items.append(self._quantified())
        return items[0] if len(items) == 1 else Node("cat", tuple(items))

    def _quantified(self) -> Node:
        node = self._atom()
        while True:
            bounds = self._bounds()
            if bounds is None:
                return node
            least, most, interval = bounds
            mode = GREEDY
            if self._take("?"):
                if interval and least == most:
                    self.refuse("a lazy fixed count")
                mode = LAZY
            elif not interval and self._take("+"):
                mode = POSSESSIVE
            if node.kind == "assert" or node.kind == "look":
                self.refuse("a repeated assertion")
            self.folded_run = ""
            node = Node("repeat", (node,), least=least, most=most, mode=mode)

    def _bounds(self) -> tuple[int, int, bool] | None:
        for token, least, most in (("*", 0, INFINITE), ("+", 1, INFINITE), ("?", 0, 1)):
            if self._take(token):
                return least, most, False
        if not self._peek("{"):
            return None
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if end < 0 or not (low + high).isdecimal() or not (low + high).isascii():
            return None  # a literal brace
        self.at = end + 1
        least = int(low or 0)
        most = (int(high) if high else INFINITE) if comma else least
        if most < least or least > 1000 or (most > 1000 and most != INFINITE):
            self.refuse("such a count")
        return least, most, True

    def _atom(self) -> Node:
        char = self.text[self.at]
        if char == "(":
            return self._group()
        if char == "[":
            return self._class(self._class_source())
        if char == "\\":
            return self._escape()
        self.at += 1
        if char == ".":
            return self._class(".")
        if char == "^":
            return Node("assert", value=LINE_START)
        if char == "$":
            return Node("assert", value=LINE_END)
        if char in "*+?":
            self.refuse("a quantifier with nothing before it")
        return self._literal(ord(char))

    def _group(self) -> Node:
        self.at += 1
        self.folded_run = ""
        outer = self.ignore_case
        kind, negative, behind = "group", False, False
        if self._take("?"):
            prefixes = {
                ":": ("group", False, False),
                "=": ("look", False, False),
                "!": ("look", True, False),
                "<=": ("look", False, True),
                "<!": ("look", True, True),
                ">": ("atomic", False, False),
                "i:": ("group", False, False),
                "-i:": ("group", False, False),
            }
            for prefix in sorted(prefixes, key=len, reverse=True):
                if self._take(prefix):
                    kind, negative, behind = prefixes[prefix]
                    if "i" in prefix:
                        self.ignore_case = prefix == "i:"
                    break
            else:
                self.refuse(f"the group (?{self.text[self.at : self.at + 2]}")
        node = self._alternatives()
        if not self._take(")"):
            self.refuse("an unmatched parenthesis")
        self.ignore_case = outer
        self.folded_run = ""
        return node if kind == "group" else Node(kind, (node,), negative=negative, behind=behind)

    def _class_source(self) -> str:
        start = self.at
        depth = 0
        while True:
            if self.at >= len(self.text):
                self.refuse("a bracket that never closes")
            if self._take("\\"):
                self.at += 1
            elif self._peek("[:") and depth and ":]" in self.text[self.at :]:
                self.at = self.text.index(":]", self.at) + 2
            elif self._take("["):
                depth += 1
                self._take("^")
                self._take("]")
            elif self._take("]"):
                depth -= 1
                if depth == 0:
                    return self.text[start : self.at]
            else:
                self.at += 1

    def _class(self, source: str) -> Node:
        if self.ignore_case:
            ranges = class_ranges(source)
            if any(contains(ranges, point) for point, _ in _folding_characters()):
                plain = source.startswith("[^") or source in {".", r"\S", r"\D", r"\W"}
                if not plain and not source.startswith(r"\p"):
                    self.refuse("a class with letters that fold to several, ignoring case,")
            source = f"(?i:{source})"
        self.folded_run = ""
        return Node("set", ranges=class_ranges(source))

    def _literal(self, point: int) -> Node:
        if not self.ignore_case:
            return Node("char", value=point)
        self.folded_run += chr(point).casefold()
        if any(folding in self.folded_run for folding in _long_foldings()):
            self.refuse("letters that fold to one, ignoring case,")
        ranges = class_ranges(rf"(?i:\x{{{point:X}}})")
        if ranges == ((point, point),):
            return Node("char", value=point)
        return Node("set", ranges=ranges)

    def _escape(self) -> Node:
        start = self.at
        self.at += 2
        if self.at > len(self.text):
            self.refuse("a backslash at the end")
        char = self.text[self.at - 1]
        if char in "sSdDwWhH":
            return self._class(f"\\{char}")
        if char in "pP" and self._peek("{"):
            self.at = self.text.find("}", self.at) + 1
            return self._class(self.text[start : self.at])
        if char in _ASSERTS:
            return Node("assert", value=_ASSERTS[char])
        if char in _CONTROLS:
            return self._literal(_CONTROLS[char])
        if char == "x" and self._take("{"):
            end = self.text.find("}", self.at)
            digits, self.at = self.text[self.at : end], end + 1
        elif char in "xu":
            width = 2 if char == "x" else 4
            digits, self.at = self.text[self.at : self.at + width], self.at + width
        elif char.isalnum():
            self.refuse(f"\\{char}")
        else:
            return self._literal(ord(char))
        try:
            point = int(digits, 16)
        except ValueError:
            self.refuse(f"\\{char}{digits}")
        return self._literal(point)


def _width(node: Node) -> int | None:
    """Number of characters that `node` always takes, or None."""
    if node.kind in ("char", "set"):
        return 1
    if node.kind in ("assert", "look"):
        return 0
    widths = [_width(item) for item in node.items]
    if any(width is None for width in widths):
        return None
    known = [width for width in widths if width is not None]
    if node.kind == "alt":
        return known[0] if len(set(known)) == 1 else None
    if node.kind == "repeat":
        return known[0] * node.least if node.least == node.most else None
    return sum(known)


def _may_be_empty(node: Node) -> bool:
    if node.kind in ("char", "set"):
        return False
    if node.kind in ("assert", "look"):
        return True
    if node.kind == "alt":
        return any(_may_be_empty(item) for item in node.items)
    if node.kind == "repeat":
        return node.least == 0 or _may_be_empty(node.items[0])
    return all(_may_be_empty(item) for item in node.items)


class _Emitter:
    def __init__(self, parser: _Parser, pool: Pool) -> None:
        self.parser = parser
        self.pool = pool
        self.code: list[tuple[int, int, int, int]] = []

    def put(self, op: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        if len(self.code) >= _LONGEST_PROGRAM:
            self.parser.refuse("counts that make it too long")
        self.code.append((op, a, b, c))
        return len(self.code) - 1

    def emit(self, node: Node) -> None:
        getattr(self, f"_{node.kind}")(node)

    def _char(self, node: Node) -> None:
        self.put(CHAR, node.value)

    def _set(self, node: Node) -> None:
        self.put(SET, self.pool.add(node.ranges))

    def _cat(self, node: Node) -> None:
        for item in node.items:
            self.emit(item)

    def _alt(self, node: Node) -> None:
        ends = []
        for item in node.items[:-1]:
            split = self.put(SPLIT)
            self.emit(item)
            ends.append(self.put(JUMP))
            self.code[split] = (SPLIT, split + 1, len(self.code), 0)
        self.emit(node.items[-1])
        for end in ends:
            self.code[end] = (JUMP, len(self.code), 0, 0)

    def _assert(self, node: Node) -> None:
        edge = node.value in (WORD_EDGE, NO_WORD_EDGE)
        self.put(ASSERT, node.value, self.pool.add(class_ranges(r"\w")) if edge else 0)

    def _look(self, node: Node) -> None:
        behind = 0
        if node.behind:
            width = _width(node.items[0])
            if width is None:
                self.parser.refuse("a lookbehind of varying width")
            behind = width + 1
        look = self.put(LOOK)
        self.emit(node.items[0])
        self.put(MATCH)
        self.code[look] = (LOOK, len(self.code), int(node.negative), behind)

    def _atomic(self, node: Node) -> None:
        atomic = self.put(ATOMIC)
        self.emit(node.items[0])
        self.put(MATCH)
        self.code[atomic] = (ATOMIC, len(self.code), 0, 0)

    def _repeat(self, node: Node) -> None:
        body = node.items[0]
        if body.kind in ("char", "set"):
            ranges = body.ranges or ((body.value, body.value),)
            self.put(node.mode, self.pool.add(ranges), node.least, node.most)
            return
        if node.most > 1 and _may_be_empty(body):  # Oniguruma has rules of its own for these
            self.parser.refuse("a repetition of something that may be empty")
        if node.mode == POSSESSIVE:
            greedy = Node("repeat", node.items, least=node.least, most=node.most)
            self._atomic(Node("atomic", (greedy,)))
            return
        for _ in range(node.least):
            self.emit(body)
        if node.most == INFINITE:
            split = self.put(SPLIT)
            self.emit(body)
            self.put(JUMP, split)
            self._branch(split, node.mode)
            return
        splits = []
        for _ in range(node.most - node.least):
            splits.append(self.put(SPLIT))
            self.emit(body)
        for split in splits:
            self._branch(split, node.mode)

    def _branch(self, split: int, mode: int) -> None:
        into, out = split + 1, len(self.code)
        self.code[split] = (SPLIT, out, into, 0) if mode == LAZY else (SPLIT, into, out, 0)


def compile_regex(pattern: str, pool: Pool, where: str) -> list[tuple[int, int, int, int]]:
    """The program of `pattern`; its character sets go to `pool`."""
    parser = _Parser(pattern, where)
    emitter = _Emitter(parser, pool)
    emitter.emit(parser.parse())
    emitter.put(MATCH)
    return emitter.code


def compile_literal(text: str) -> list[tuple[int, int, int, int]]:
    """The program that matches `text` and nothing else."""
    return [*((CHAR, ord(c), 0, 0) for c in text), (MATCH, 0, 0, 0)]
