"""What Unicode says, asked of the `tokenizers` library itself.

Python, Rust and Oniguruma each carry their own Unicode version. Every table that the runtime
needs is therefore read out of the library whose results it has to repeat, by running it once over
all code points.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from tokenizers import PreTokenizedString, Regex, normalizers, pre_tokenizers

Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint, inclusive ranges of code points."""

HANGUL = range(0xAC00, 0xD7A4)
_LIMIT = 0x110000


@cache
def _all_characters() -> str:
    return "".join(map(chr, _code_points()))


def _code_points() -> Iterator[int]:
    yield from range(0xD800)
    yield from range(0xE000, _LIMIT)


def _ranges(points: Iterable[int]) -> Ranges:
    """Ranges of ascending code points."""
    found: list[list[int]] = []
    for point in points:
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return tuple((low, high) for low, high in found)


def complement(ranges: Ranges) -> Ranges:
    """All other code points, surrogates left out."""
    result = []
    start = 0
    for low, high in (*ranges, (_LIMIT, _LIMIT)):
        for first, last in ((start, min(low, 0xD800) - 1), (max(start, 0xE000), low - 1)):
            if first <= last:
                result.append((first, last))
        start = high + 1
    return tuple(dict.fromkeys(result))


def join(one: Ranges, other: Ranges) -> Ranges:
    """The code points of both."""
    return _ranges(sorted({p for low, high in (*one, *other) for p in range(low, high + 1)}))


def contains(ranges: Ranges, point: int) -> bool:
    """Whether `point` lies in one of the ranges."""
    return any(low <= point <= high for low, high in ranges)


@cache
def class_ranges(source: str) -> Ranges:
    """Code points that a one-character pattern matches (Oniguruma, as `tokenizers` has it)."""
    erase = normalizers.Replace(Regex(f"(?:{source})+"), "")
    kept = array("I", erase.normalize_str(_all_characters()).encode("utf-32-le"))
    return complement(_ranges(kept))


def _runs(pre_tokenizer: pre_tokenizers.PreTokenizer) -> list[str]:
    text = PreTokenizedString(_all_characters())
    pre_tokenizer.pre_tokenize(text)
    splits = text.get_splits(offset_referential="original", offset_type="byte")
    return [piece for piece, _, _ in splits]


@cache
def numeric() -> Ranges:
    """Rust's `char::is_numeric`, which the Digits pre-tokenizer uses."""
    digits = pre_tokenizers.Digits(individual_digits=False)
    runs = _runs(digits)
    is_digit = [len(digits.pre_tokenize_str(f"a{run[0]}")) == 2 for run in runs]
    return _ranges(ord(c) for run, yes in zip(runs, is_digit, strict=True) if yes for c in run)


@cache
def whitespace() -> Ranges:
    r"""Rust's `char::is_whitespace`; its regex crate's `\s` is the same property."""
    kept = _ranges(ord(c) for run in _runs(pre_tokenizers.WhitespaceSplit()) for c in run)
    return complement(kept)


@cache
def punctuation() -> Ranges:
    """What the Punctuation pre-tokenizer takes for punctuation."""
    kept = _ranges(ord(c) for run in _runs(pre_tokenizers.Punctuation("removed")) for c in run)
    return complement(kept)


@cache
def word() -> Ranges:
    r"""`\w` of Rust's regex crate."""
    words = pre_tokenizers.Whitespace()
    runs = _runs(words)
    is_word = [len(words.pre_tokenize_str(f"a{run[0]}")) == 1 for run in runs]
    return _ranges(ord(c) for run, yes in zip(runs, is_word, strict=True) if yes for c in run)


def _map_each(normalize: Callable[[str], str], points: Iterable[int]) -> dict[int, str]:
    """What `normalize` makes of each code point alone, where that differs."""
    before = [chr(point) for point in points if point != 0x0A]
    after = normalize("\n".join(before)).split("\n")
    return {ord(b): a for b, a in zip(before, after, strict=True) if b != a}


@cache
def character_map(kind: str) -> dict[int, str]:
    """The table of a normalizer of single characters: Lowercase, StripAccents or Nmt."""
    normalizer = getattr(normalizers, kind)()
    points = list(_code_points())
    if kind == "Nmt":  # maps line feed and other controls, so that no separator survives
        table = {chr(p): normalizer.normalize_str(chr(p)) for p in points}
        return {ord(b): a for b, a in table.items() if a != b}
    return _map_each(normalizer.normalize_str, points)


@cache
def decompositions(compatible: bool) -> dict[int, str]:
    """Full decompositions, Hangul syllables left out (they are computed)."""
    normalizer = normalizers.NFKD() if compatible else normalizers.NFD()
    return _map_each(normalizer.normalize_str, (p for p in _code_points() if p not in HANGUL))


@cache
def combining_classes() -> dict[int, int]:
    """Canonical combining classes that are not zero, found by which marks change places.

    For each class, a mark that the library knows as one stands for it (newer ones it takes for
    letters).
    """
    nfd = normalizers.NFD().normalize_str
    lowest, highest = "\u0334", "\u0345"  # classes 1 and 240
    decomposing = decompositions(compatible=False)
    points = [p for p in _code_points() if p not in HANGUL and p != 0x0A and p not in decomposing]

    def below(mark: str, candidates: list[int]) -> set[int]:
        """Those of a class lower than the mark's, but not zero: they move in front of it."""
        if not candidates:
            return set()
        lines = nfd("\n".join(mark + chr(p) for p in candidates)).split("\n")
        return {p for p, line in zip(candidates, lines, strict=True) if line[0] != mark}

    candidates = below(highest, points)
    marks: dict[int, str] = {}
    for point in sorted(candidates):
        marks.setdefault(unicodedata.combining(chr(point)), chr(point))
    marks.pop(0, None)
    lines = nfd("\n".join(chr(p) + lowest for p in points)).split("\n")
    above = {p for p, line in zip(points, lines, strict=True) if line[0] == lowest}
    classes = dict.fromkeys(above - candidates - {ord(lowest)}, unicodedata.combining(highest))
    for value in sorted(marks, reverse=True):
        still = below(marks[value], sorted(candidates))
        classes.update(dict.fromkeys(candidates - still, value))
        candidates = still
    return classes


@cache
def compositions() -> dict[tuple[int, int], int]:
    """Pairs that compose into one character, Hangul left out."""
    nfc = normalizers.NFC().normalize_str
    whole = {p: text for p, text in decompositions(compatible=False).items() if len(text) > 1}
    points = list(whole)
    kept = nfc("\n".join(map(chr, points))).split("\n")
    primary = [p for p, text in zip(points, kept, strict=True) if text == chr(p)]
    firsts = nfc("\n".join(whole[p][:-1] for p in primary)).split("\n")
    pairs = {}
    for point, first in zip(primary, firsts, strict=True):
        if len(first) == 1:
            pairs[ord(first), ord(whole[point][-1])] = point
    return pairs
