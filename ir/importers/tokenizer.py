"""A Hugging Face `tokenizer.json` -> `tokenizer.bin`, the tables that the runtime reads.

Everything is data: no code of a model folder runs. A component that the runtime cannot repeat
exactly is refused by name (SPECC-E0231). `truncation` and `padding` are left to the caller, as
transformers leaves them.
"""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Tokenizer

from specc.errors import ModelError
from specc.ir.importers import tokenizer_stages as stages
from specc.ir.importers import tokenizer_unicode as unicode
from specc.ir.importers.token_bytes import vocabulary
from specc.ir.importers.tokenizer_file import (
    NONE,
    Section,
    assemble,
    hash_bytes,
    mix,
    place,
    write_trie,
)
from specc.ir.importers.tokenizer_stages import Shared, bytes_of_token, refuse

_BPE, _UNIGRAM = 1, 2
_BYTE_LEVEL, _BYTE_FALLBACK, _IGNORE_MERGES, _FUSE_UNKNOWN = 1, 2, 4, 8
_PRESENT, _SPECIAL, _RAW = 1, 2, 4
_SINGLE_WORD, _LEFT_STRIP, _RIGHT_STRIP, _ADDED_SPECIAL = 1, 2, 4, 8


def compile_tokenizer(tokenizer_json: dict[str, Any] | Path | str) -> bytes:
    """The bytes of `tokenizer.bin` for a `tokenizer.json`, given as its path or its content."""
    if not isinstance(tokenizer_json, dict):
        tokenizer_json = _read(Path(tokenizer_json))
    try:
        reference = Tokenizer.from_str(json.dumps(tokenizer_json))
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError(
            "SPECC-E0231",
            f"the tokenizer is not valid: {error}",
            where="tokenizer.json",
            cure="save it again with the library that made it",
        ) from error
    # Old files leave out fields that the library fills in: what it writes back is complete.
    document = json.loads(reference.to_str())
    shared = Shared()
    pre_tokenizer, byte_level = stages.write_pre_tokenizer(document, shared)
    sections = {
        "NORM": stages.write_normalizer(document, shared),
        "PRET": pre_tokenizer,
        "POST": stages.write_post_processor(document),
        "DECO": stages.write_decoder(document, shared),
        "ADDT": _write_added_tokens(reference, shared),
        "TOKN": _write_tokens(document, reference, byte_level),
        "MODL": _write_model(document, byte_level),
        "UNIC": stages.write_unicode(shared),
    }
    sections["SETS"] = shared.write_sets()
    sections["REGX"] = shared.write_regexes()
    return assemble(sections)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        _damaged(path, str(error))
    if not isinstance(document, dict) or "model" not in document:
        _damaged(path, "it has no model")
    return document


def _damaged(path: Path, reason: str) -> NoReturn:
    raise ModelError(
        "SPECC-E0231",
        f"the tokenizer cannot be read: {reason}",
        where=str(path),
        cure="give the folder of a model with a whole tokenizer.json",
    )


def _write_tokens(document: dict[str, Any], reference: Tokenizer, byte_level: bool) -> Section:
    """What every id says when decoded, as one blob."""
    texts = vocabulary(document)
    added = reference.get_added_tokens_decoder()
    for index in added:
        text = reference.id_to_token(index)
        assert text is not None, f"added token {index} has no text"
        if index in texts and texts[index] != text and document["model"].get("ignore_merges"):
            refuse("an added token in place of another token", f"token {index}")
        texts[index] = text
    special = {token.content for token in added.values() if token.special}
    if not texts:
        refuse("an empty vocabulary", "model")
    if max(texts) >= 1 << 24:
        refuse(f"token id {max(texts)}", "vocab")
    blob = bytearray()
    offsets = array("I", [0])
    flags = bytearray()
    for index in range(max(texts) + 1):
        text = texts.get(index)
        flag = 0
        if text is not None:
            mapped = bytes_of_token(text) if byte_level else None
            flag = _PRESENT | (_SPECIAL if text in special else 0)
            flag |= _RAW if byte_level and mapped is None else 0
            blob += text.encode() if mapped is None else mapped
        offsets.append(len(blob))
        flags.append(flag)
    section = Section()
    section.array("B", bytes(flags))
    section.array("I", offsets)
    section.array("B", bytes(blob))
    return section


def _write_added_tokens(reference: Tokenizer, shared: Shared) -> Section:
    section = Section()
    tokens = reference.get_added_tokens_decoder()
    strips = any(token.lstrip or token.rstrip for token in tokens.values())
    single = any(token.single_word for token in tokens.values())
    section.u32(shared.pool.add(unicode.whitespace()) if strips else NONE)
    section.u32(shared.pool.add(unicode.word()) if single else NONE)
    exact: dict[bytes, int] = {}
    normalized: dict[bytes, int] = {}
    rows: list[tuple[int, int]] = []
    for index, token in sorted(tokens.items()):
        flags = _SINGLE_WORD * token.single_word | _LEFT_STRIP * token.lstrip
        flags |= _RIGHT_STRIP * token.rstrip | _ADDED_SPECIAL * token.special
        text = token.content
        if token.normalized and reference.normalizer is not None:
            text = reference.normalizer.normalize_str(text)
        if not text:
            refuse(
                f"the added token {token.content!r}, which normalizes to nothing", "added_tokens"
            )
        (normalized if token.normalized else exact)[text.encode()] = len(rows)
        rows.append((index, flags))
    section.u32(len(rows))
    for row in rows:
        section.u32(*row)
    write_trie(section, exact)
    write_trie(section, normalized)
    return section


def _write_model(document: dict[str, Any], byte_level: bool) -> Section:
    model = document["model"]
    if model["type"] not in ("BPE", "Unigram"):
        cure = "export the model's own BPE or Unigram tokenizer"
        refuse(f"the model {model['type']}", "model", cure)
    return _write_bpe(model, byte_level) if model["type"] == "BPE" else _write_unigram(model)


def _byte_tokens(vocab: dict[str, int]) -> list[int]:
    return [vocab.get(f"<0x{byte:02X}>", NONE) for byte in range(256)]


def _write_bpe(model: dict[str, Any], byte_level: bool) -> Section:
    vocab: dict[str, int] = model["vocab"]
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            refuse(f"BPE with {name}", f"model.{name}")
    flags = _BYTE_LEVEL * byte_level
    flags |= _BYTE_FALLBACK * bool(model.get("byte_fallback"))
    flags |= _IGNORE_MERGES * bool(model.get("ignore_merges"))
    flags |= _FUSE_UNKNOWN * bool(model.get("fuse_unk"))
    bytes_first = _byte_tokens(vocab)
    if byte_level:
        bytes_first = [vocab.get(stages.BYTE_TO_CHAR[byte], NONE) for byte in range(256)]
        if NONE in bytes_first and flags & _BYTE_FALLBACK:
            refuse("byte_fallback on an incomplete byte-level alphabet", "model")
    unknown = NONE
    reachable = not byte_level or NONE in bytes_first
    if model.get("unk_token") is not None and reachable:
        if model["unk_token"] not in vocab:
            refuse(
                f"the unknown token {model['unk_token']!r}, which is not in the vocabulary", "model"
            )
        unknown = vocab[model["unk_token"]]
    section = Section()
    section.u32(_BPE, flags, unknown)
    section.array("I", bytes_first)
    letters = sorted((ord(t), i) for t, i in vocab.items() if len(t) == 1 and not byte_level)
    section.array("I", [point for point, _ in letters])
    section.array("I", [index for _, index in letters])
    _write_merges(section, model)
    words: list[int] = []
    hashes: list[int] = []
    if flags & _IGNORE_MERGES:
        for token, index in vocab.items():
            data = bytes_of_token(token) if byte_level else token.encode()
            if data:
                words.append(index)
                hashes.append(hash_bytes(data))
    slots, _, longest = place(hashes, len(hashes))
    section.u32(longest)
    section.array("I", [NONE if slot == NONE else words[slot] for slot in slots])
    return section


def _write_merges(section: Section, model: dict[str, Any]) -> None:
    vocab = model["vocab"]
    merges: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, merge in enumerate(model["merges"]):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        merges[vocab[left], vocab[right]] = rank, vocab[left + right]
    rows = [(*pair, *result) for pair, result in merges.items()]
    slots, _, longest = place((mix(row[0] << 32 | row[1]) for row in rows), len(rows))
    empty = (NONE, NONE, 0, 0)
    section.u32(longest)
    table = array("I")
    for slot in slots:
        table.extend(empty if slot == NONE else rows[slot])
    section.array("I", table)


def _write_unigram(model: dict[str, Any]) -> Section:
    vocab = {token: index for index, (token, _) in enumerate(model["vocab"])}
    flags = _BYTE_FALLBACK * bool(model.get("byte_fallback"))
    unknown = model.get("unk_id")
    section = Section()
    section.u32(_UNIGRAM, flags, NONE if unknown is None else unknown)
    section.array("I", _byte_tokens(vocab))
    section.f64(min(score for _, score in model["vocab"]))
    section.array("d", array("d", [score for _, score in model["vocab"]]))
    write_trie(section, {token.encode(): index for token, index in vocab.items() if token})
    return section
