"""What each token of a tokenizer.json stands for, in bytes: what tokens of two tokenizers are compared by."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from specc.ir.importers.tokenizer_stages import bytes_of_token

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenBytes:
    """Token ids by kind: those that are a piece of text, and special ones, which are a name."""

    text: dict[int, bytes]
    special: dict[int, str]


def token_bytes(tokenizer_json: str) -> TokenBytes:
    """Read a tokenizer.json (the format of Hugging Face's `tokenizers`).

    Byte-level vocabularies name each byte by a character; others write a space as the decoder says (`Replace`,
    `Metaspace`), and, where it falls back to bytes, a byte as <0x0A>.
    """
    document = json.loads(tokenizer_json)
    decoders = list(_flat(document.get("decoder")))
    kinds = {d["type"] for d in (*decoders, *_flat(document.get("pre_tokenizer")))}
    written = [_replaced(d) for d in decoders if d["type"] in ("Replace", "Metaspace")]
    text: dict[int, bytes] = {}
    for index, token in _vocabulary(document["model"]):
        piece = bytes_of_token(token) if "ByteLevel" in kinds else None
        if piece is None and "ByteFallback" in kinds and (byte := _BYTE.fullmatch(token)):
            piece = bytes.fromhex(byte[1])
        if piece is None:
            for pattern, content in written:
                token = token.replace(pattern, content)
            piece = token.encode()
        text[index] = piece
    special: dict[int, str] = {}
    for added in document.get("added_tokens", []):
        text.pop(added["id"], None)
        if added["special"]:
            special[added["id"]] = added["content"]
        else:
            text[added["id"]] = added["content"].encode()
    return TokenBytes(text, special)


def _vocabulary(model: dict[str, Any]) -> Iterator[tuple[int, str]]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram
        return enumerate(token for token, _ in vocabulary)
    return ((index, token) for token, index in vocabulary.items())


def _flat(stage: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if stage is None:
        return
    inside = stage.get("decoders", stage.get("pretokenizers"))
    if inside is None:
        yield stage
    for part in inside or ():
        yield from _flat(part)


def _replaced(decoder: dict[str, Any]) -> tuple[str, str]:
    if decoder["type"] == "Metaspace":
        return decoder["replacement"], " "
    return decoder["pattern"].get("String", ""), decoder["content"]
