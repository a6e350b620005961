"""The tokenizer inside a GGUF file, as a `tokenizer.json` document.

transformers converts the vocabulary, the merges and the special tokens. A GGUF names its
pre-tokenizer instead of describing it (`tokenizer.ggml.pre`), and transformers knows only some of
the names: for the rest it silently splits as GPT-2 does, and it never restores a normalizer.
Wrong splits change the prompts of a model without any error, so the names are mended here or
refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specc.errors import ModelError

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_EACH_DIGIT = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTES],
}
_NFC = {"type": "NFC"}

# What the models' own tokenizer.json files say: (pre-tokenizer, normalizer); None keeps what
# transformers says.
_MENDED: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None]] = {
    "gpt-2": (_BYTES, None),
    "smollm": (_EACH_DIGIT, None),
    "starcoder": (_EACH_DIGIT, None),
    "command-r": (_EACH_DIGIT, _NFC),
    "mpt": (_BYTES, _NFC),
    "olmo": (_BYTES, _NFC),
    "qwen2": (None, _NFC),
    "deepseek-r1-qwen": (None, None),
    "qwen35": (None, _NFC),
    "llama-bpe": (None, None),
    "llama3": (None, None),
    "llama-v3": (None, None),
    "falcon3": (None, None),
    "smaug-bpe": (None, None),
    "dbrx": (None, None),
    "lfm2": (None, None),
    "tekken": (None, None),
    "gpt-4o": (None, None),
    "llama4": (None, None),
}


def mend_gguf_tokenizer(document: dict[str, Any], pre: str) -> dict[str, Any]:
    """A document that transformers made of a byte-level GGUF, with the stages of `pre`."""
    if pre not in _MENDED:
        raise ModelError(
            "SPECC-E0231",
            f"the GGUF file names the pre-tokenizer {pre!r}, which specc does not know",
            where="tokenizer.ggml.pre",
            expected="one of " + ", ".join(sorted(_MENDED)),
            found=pre,
            cure="give the model's own tokenizer.json",
        )
    pre_tokenizer, normalizer = _MENDED[pre]
    changes: dict[str, Any] = {"normalizer": normalizer} if normalizer else {}
    if pre_tokenizer:
        changes["pre_tokenizer"] = pre_tokenizer
    return document | changes


def read_gguf_tokenizer(path: Path) -> dict[str, Any]:
    """The document for `compile_tokenizer`, from a GGUF file."""
    from gguf import GGUFReader
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    document: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    fields = GGUFReader(str(path)).fields
    if fields["tokenizer.ggml.model"].contents() != "gpt2":
        return document  # sentencepiece kinds have no named pre-tokenizer
    pre = fields.get("tokenizer.ggml.pre")
    return mend_gguf_tokenizer(document, "gpt-2" if pre is None else str(pre.contents()))
