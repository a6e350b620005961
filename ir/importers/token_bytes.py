"""What each token of a tokenizer.json stands for, in bytes: what tokens of two tokenizers are compared by."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specc.ir.importers.tokenizer_stages import bytes_of_token, flatten, refuse

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenBytes:
    """Token ids by kind: those that are a piece of text, and special ones, which are a name."""

    text: dict[int, bytes]
    special: dict[int, str]


def vocabulary(tokenizer: dict[str, Any]) -> dict[int, str]:
    """The tokens of a tokenizer.json's model by id, without those that were added."""
    found = tokenizer["model"]["vocab"]
    if isinstance(found, list):  # Unigram
        return dict(enumerate(token for token, _ in found))
    return {index: token for token, index in found.items()}


def token_bytes(tokenizer_json: str) -> TokenBytes:
    """Read a tokenizer.json (the format of Hugging Face's `tokenizers`).

    Byte-level vocabularies name each byte by a character; others write a space as the decoder says (`Replace`,
    `Metaspace`), and, where it falls back to bytes, a byte as <0x0A>.

    Raises ModelError (SPECC-E0231) for a `Replace` of anything but a fixed text.
    """
    document = json.loads(tokenizer_json)
    piece = _reader(document)
    text = {index: piece(token) for index, token in vocabulary(document).items()}
    special: dict[int, str] = {}
    for added in document.get("added_tokens", []):
        text.pop(added["id"], None)
        if added["special"]:
            special[added["id"]] = added["content"]
        else:
            text[added["id"]] = added["content"].encode()
    return TokenBytes(text, special)


def decoded_bytes(tokenizer_json: str) -> dict[int, bytes]:
    """What each token but the special ones adds to a text that is decoded.

    That differs from what it stands for in added tokens, which are found as they are, but decoded as others. Raises
    ModelError as `token_bytes` does.
    """
    document = json.loads(tokenizer_json)
    piece, added = _reader(document), document.get("added_tokens", [])
    names = vocabulary(document) | {each["id"]: each["content"] for each in added}
    for each in added:
        if each["special"]:
            del names[each["id"]]
    return {index: piece(token) for index, token in names.items()}


def _reader(document: dict[str, Any]) -> Callable[[str], bytes]:
    """What decodes one token."""
    decoders = list(flatten(document.get("decoder"), "decoders"))
    splitters = flatten(document.get("pre_tokenizer"), "pretokenizers")
    kinds = {stage["type"] for stage in (*decoders, *splitters)}
    written = [_replaced(d) for d in decoders if d["type"] in ("Replace", "Metaspace")]

    def piece(token: str) -> bytes:
        found = bytes_of_token(token) if "ByteLevel" in kinds else None
        if found is None and "ByteFallback" in kinds and (byte := _BYTE.fullmatch(token)):
            found = bytes.fromhex(byte[1])
        if found is None:
            for pattern, content in written:
                token = token.replace(pattern, content)
            found = token.encode()
        return found

    return piece


def _replaced(decoder: dict[str, Any]) -> tuple[str, str]:
    if decoder["type"] == "Metaspace":
        return decoder["replacement"], " "
    pattern: str = decoder["pattern"].get("String", "")
    if not pattern:
        refuse(
            f"the pattern {decoder['pattern']} to say what tokens stand for", "decoder.Replace",
            "choose a drafter with the model's own tokens, and leave out --translate-tokens",
        )  # fmt: skip
    return pattern, decoder["content"]
