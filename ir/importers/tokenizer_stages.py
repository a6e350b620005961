"""The stages around a tokenizer's model: normalizer, pre-tokenizer, post-processor, decoder."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NoReturn

from specc.errors import ModelError
from specc.ir.importers import tokenizer_unicode as unicode
from specc.ir.importers.tokenizer_file import Section
from specc.ir.importers.tokenizer_regex import (
    GREEDY,
    INFINITE,
    JUMP,
    MATCH,
    SPLIT,
    Pool,
    compile_literal,
    compile_regex,
)

_FORMS = {"NFC": 0, "NFD": 1, "NFKC": 2, "NFKD": 3}
_BEHAVIORS = {
    "Removed": 0,
    "Isolated": 1,
    "MergedWithPrevious": 2,
    "MergedWithNext": 3,
    "Contiguous": 4,
}
_PREPEND = {"never": 0, "first": 1, "always": 2}

_NORMALIZE, _PREPEND_TEXT, _REPLACE, _REPLACE_TEXT, _STRIP, _MAP, _NORMALIZE_BYTES = range(1, 8)
_SPLIT, _SPLIT_SET, _PREFIX_SPACE, _METASPACE, _MAP_BYTES = range(1, 6)
_D_BYTE_LEVEL, _D_REPLACE, _D_REPLACE_TEXT, _D_BYTE_FALLBACK, _D_FUSE, _D_STRIP, _D_METASPACE = (
    range(1, 8)
)

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What ByteLevel splits by when it uses its own regular expression."""


def _byte_alphabet() -> list[str]:
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + hidden.index(byte)) for byte in range(256)]


BYTE_TO_CHAR = _byte_alphabet()
"""The character that stands for each byte in byte-level vocabularies."""
_CHAR_TO_BYTE = {char: byte for byte, char in enumerate(BYTE_TO_CHAR)}


def bytes_of_token(text: str) -> bytes | None:
    """The bytes that a byte-level token stands for; None if it has other characters."""
    try:
        return bytes(_CHAR_TO_BYTE[char] for char in text)
    except KeyError:
        return None


def refuse(what: str, where: str, cure: str = "") -> NoReturn:
    """Refuse a part of the tokenizer by name."""
    raise ModelError(
        "SPECC-E0231",
        f"the tokenizer uses {what}, which specc does not compile",
        where=f"tokenizer.json: {where}",
        cure=cure
        or "compile without a tokenizer (token ids in and out), or ask for this component",
    )


class Shared:
    """What stages refer to by number: character sets, regular expressions, Unicode forms in use."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.programs: list[list[tuple[int, int, int, int]]] = []
        self.forms: set[int] = set()

    def regex(self, program: list[tuple[int, int, int, int]]) -> int:
        if program not in self.programs:
            self.programs.append(program)
        return self.programs.index(program)

    def pattern(self, pattern: str, where: str) -> int:
        return self.regex(compile_regex(pattern, self.pool, where))

    def write_sets(self) -> Section:
        section = Section()
        section.u32(len(self.pool.sets))
        for ranges in self.pool.sets:
            section.array("I", [bound for pair in ranges for bound in pair])
        return section

    def write_regexes(self) -> Section:
        section = Section()
        section.u32(len(self.programs))
        for program in self.programs:
            section.array("I", [word for instruction in program for word in instruction])
        return section


def flatten(component: dict[str, Any] | None, key: str) -> Iterator[dict[str, Any]]:
    """The stages of a tokenizer.json's component in order; `key` is under what a sequence has its parts."""
    if component is None:
        return
    if component["type"] == "Sequence":
        for item in component[key]:
            yield from flatten(item, key)
    else:
        yield component


def _words_or_symbols(shared: Shared) -> list[tuple[int, int, int, int]]:
    r"""`\w+|[^\w\s]+` with the classes of Rust's regex crate."""
    words = shared.pool.add(unicode.word())
    spaces_and_words = unicode.join(unicode.word(), unicode.whitespace())
    symbols = shared.pool.add(unicode.complement(spaces_and_words))
    return [
        (SPLIT, 1, 3, 0),
        (GREEDY, words, 1, INFINITE),
        (JUMP, 4, 0, 0),
        (GREEDY, symbols, 1, INFINITE),
        (MATCH, 0, 0, 0),
    ]


def _write_map(section: Section, table: dict[int, str]) -> None:
    points = sorted(table)
    offsets = array("I", [0])
    targets = array("I")
    for point in points:
        targets.extend(map(ord, table[point]))
        offsets.append(len(targets))
    section.array("I", points)
    section.array("I", offsets)
    section.array("I", targets)


def _write_replace(section: Section, item: dict[str, Any], shared: Shared, by_regex: int) -> None:
    pattern, where = item["pattern"], "Replace"
    if "String" in pattern:
        if not pattern["String"]:
            refuse("Replace of an empty string", where)
        section.u32(by_regex + 1)
        section.text(pattern["String"])
    else:
        section.u32(by_regex, shared.pattern(pattern["Regex"], where))
    section.text(item["content"])


def write_normalizer(document: dict[str, Any], shared: Shared) -> Section:
    """Operations on the text, in order."""
    section = Section()
    items = list(flatten(document["normalizer"], "normalizers"))
    section.u32(len(items))
    for item in items:
        kind = item["type"]
        if kind in _FORMS:
            shared.forms.add(_FORMS[kind])
            section.u32(_NORMALIZE, _FORMS[kind])
        elif kind == "Prepend":
            section.u32(_PREPEND_TEXT)
            section.text(item["prepend"])
        elif kind == "Replace":
            _write_replace(section, item, shared, _REPLACE)
        elif kind == "Strip":
            spaces = shared.pool.add(unicode.whitespace())
            section.u32(_STRIP, int(item["strip_left"]), int(item["strip_right"]), spaces)
        elif kind in ("Lowercase", "StripAccents", "Nmt"):
            section.u32(_MAP)
            _write_map(section, unicode.character_map(kind))
        elif kind == "ByteLevel":
            section.u32(_NORMALIZE_BYTES)
        else:
            refuse(f"the normalizer {kind}", "normalizer")
    return section


def write_unicode(shared: Shared) -> Section:
    """Tables of the normalization forms in use: decompositions, classes, compositions."""
    section = Section()
    _write_map(section, unicode.decompositions(compatible=False) if shared.forms & {0, 1} else {})
    _write_map(section, unicode.decompositions(compatible=True) if shared.forms & {2, 3} else {})
    classes = unicode.combining_classes() if shared.forms else {}
    points = sorted(classes)
    section.array("I", points)
    section.array("B", bytes(classes[point] for point in points))
    pairs = unicode.compositions() if shared.forms & {0, 2} else {}
    section.array("I", [word for pair in sorted(pairs) for word in (*pair, pairs[pair])])
    return section


def write_pre_tokenizer(document: dict[str, Any], shared: Shared) -> tuple[Section, bool]:
    """Operations that split the text, in order; and whether the model then works on plain bytes.

    A final ByteLevel in front of BPE is left out: instead of renaming every byte to a character
    the runtime keeps the bytes, and the vocabulary is stored as bytes.
    """
    items = list(flatten(document["pre_tokenizer"], "pretokenizers"))
    byte_level = (
        bool(items) and items[-1]["type"] == "ByteLevel" and document["model"]["type"] == "BPE"
    )
    section = Section()
    count = 0
    for number, item in enumerate(items):
        kind = item["type"]
        count += 1
        if kind == "Split":
            pattern = item["pattern"]
            if "Regex" in pattern:
                regex = shared.pattern(pattern["Regex"], "pre_tokenizer.Split")
            elif pattern["String"]:
                regex = shared.regex(compile_literal(pattern["String"]))
            else:
                refuse("Split at an empty string", "pre_tokenizer")
            section.u32(_SPLIT, regex, _BEHAVIORS[item["behavior"]], int(item["invert"]))
        elif kind == "Whitespace":
            regex = shared.regex(_words_or_symbols(shared))
            section.u32(_SPLIT, regex, _BEHAVIORS["Removed"], 1)
        elif kind == "Digits":
            behavior = "Isolated" if item["individual_digits"] else "Contiguous"
            section.u32(_SPLIT_SET, shared.pool.add(unicode.numeric()), _BEHAVIORS[behavior])
        elif kind == "Punctuation":
            punctuation = shared.pool.add(unicode.punctuation())
            section.u32(_SPLIT_SET, punctuation, _BEHAVIORS[item["behavior"]])
        elif kind in ("WhitespaceSplit", "BertPreTokenizer"):
            section.u32(_SPLIT_SET, shared.pool.add(unicode.whitespace()), _BEHAVIORS["Removed"])
            if kind == "BertPreTokenizer":
                punctuation = shared.pool.add(unicode.punctuation())
                section.u32(_SPLIT_SET, punctuation, _BEHAVIORS["Isolated"])
                count += 1
        elif kind == "CharDelimiterSplit":
            point = ord(item["delimiter"])
            section.u32(_SPLIT_SET, shared.pool.add(((point, point),)), _BEHAVIORS["Removed"])
        elif kind == "Metaspace":
            section.u32(_METASPACE, _PREPEND[item["prepend_scheme"]], int(item["split"]))
            section.u32(ord(item["replacement"]))
        elif kind == "ByteLevel":
            count -= 1
            if item["add_prefix_space"]:
                section.u32(_PREFIX_SPACE)
                count += 1
            if item["use_regex"]:
                regex = shared.pattern(GPT2_PATTERN, "pre_tokenizer.ByteLevel")
                section.u32(_SPLIT, regex, _BEHAVIORS["Isolated"], 0)
                count += 1
            if not (byte_level and number == len(items) - 1):
                section.u32(_MAP_BYTES)
                count += 1
        else:
            refuse(f"the pre-tokenizer {kind}", "pre_tokenizer")
    whole = Section()
    whole.u32(count)
    whole.data += section.data
    return whole, byte_level


def write_post_processor(document: dict[str, Any]) -> Section:
    """Ids before and after the text when special tokens are asked for."""
    before: list[int] = []
    after: list[int] = []
    templates = 0
    for item in flatten(document["post_processor"], "processors"):
        kind = item["type"]
        if kind == "ByteLevel":  # only trims offsets
            continue
        templates += 1
        if templates > 1:
            refuse("two templates one after the other", "post_processor")
        if kind in ("BertProcessing", "RobertaProcessing"):
            before, after = [item["cls"][1]], [item["sep"][1]]
        elif kind == "TemplateProcessing":
            before, after = _template(item)
        else:
            refuse(f"the post-processor {kind}", "post_processor")
    section = Section()
    section.array("I", before)
    section.array("I", after)
    return section


def _template(item: dict[str, Any]) -> tuple[list[int], list[int]]:
    parts: list[list[int]] = [[]]
    for piece in item["single"]:
        if "Sequence" in piece:
            if piece["Sequence"]["id"] != "A":
                refuse("a single template with a second text", "post_processor")
            parts.append([])
        else:
            parts[-1] += item["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    if len(parts) != 2:
        refuse("a template without the text, or with it twice", "post_processor")
    return parts[0], parts[1]


def write_decoder(document: dict[str, Any], shared: Shared) -> Section:
    """Operations on the list of token texts, in order."""
    section = Section()
    items = list(flatten(document["decoder"], "decoders"))
    section.u32(int(document["decoder"] is not None), len(items))
    for item in items:
        kind = item["type"]
        if kind == "ByteLevel":
            section.u32(_D_BYTE_LEVEL)
        elif kind == "Replace":
            _write_replace(section, item, shared, _D_REPLACE)
        elif kind == "ByteFallback":
            section.u32(_D_BYTE_FALLBACK)
        elif kind == "Fuse":
            section.u32(_D_FUSE)
        elif kind == "Strip":
            section.u32(_D_STRIP, ord(item["content"]), item["start"], item["stop"])
        elif kind == "Metaspace":
            drops_first = item["prepend_scheme"] != "never"
            section.u32(_D_METASPACE, ord(item["replacement"]), int(drops_first))
        else:
            refuse(f"the decoder {kind}", "decoder")
    return section
