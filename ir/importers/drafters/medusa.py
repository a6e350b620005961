"""Medusa: heads on the target's last hidden state, head i for the token i + 2 places on.

Tensors are `{i}.{b}.linear.{weight,bias}` for residual blocks and `{i}.{blocks}.weight` for a head's own matrix, as
FasterDecoding saves them, or `medusa_head.{i}...`; config.json's numbers may be stale, so the tensors decide.
"""

from __future__ import annotations

import re

from specc.errors import ModelError
from specc.ir.importers.drafters.layers import Parts, check_target
from specc.ir.importers.drafters.spec import (
    DrafterCheckpoint,
    DrafterSpec,
    Fuse,
    Kind,
    Medusa,
    Ownership,
)
from specc.ir.weights import WeightStore

_PREFIXES = ("medusa_head.", "medusa_heads.", "heads.", "")
_FIRST = re.compile(r"(\d+)\.0\.linear\.weight$")


def is_medusa(parts: Parts) -> bool:
    """Whether the tensors are Medusa heads."""
    return _prefix(parts) is not None


def _prefix(parts: Parts) -> str | None:
    return next((p for p in _PREFIXES if f"{p}0.0.linear.weight" in parts.tensors), None)


def read(parts: Parts) -> DrafterCheckpoint:
    """Raises ModelError (SPECC-E0273 for another target, E0274 to E0276 for tensors that do not fit)."""
    config, tensors, target = parts.config, parts.tensors, parts.target
    config.skip(
        "medusa_num_heads", "medusa_num_layers", "base_model_name_or_path", "hidden_size", "vocab_size",
        "num_hidden_layers", "version", "medusa_hidden_size", "tie_word_embeddings",
    )  # fmt: skip
    config.only("truncated_vocab_size", None, cure="take heads over the whole vocabulary")
    prefix = _prefix(parts)
    assert prefix is not None
    hidden = tensors.shape(f"{prefix}0.0.linear.weight")[0]
    check_target(parts, hidden=hidden, vocab=target.rows)
    found = {
        int(m[1]) for n in tensors.names() if (m := _FIRST.fullmatch(n.removeprefix(prefix)))
    }  # fmt: skip
    heads = len(found)
    blocks = 0
    while f"{prefix}0.{blocks}.linear.weight" in tensors:
        blocks += 1
    if found != set(range(heads)):
        raise ModelError(
            "SPECC-E0274", "a Medusa head is missing among the others", where=tensors.where,
            expected=f"heads 0 to {max(found)}", found=", ".join(map(str, sorted(found))),
            cure="download all files of the checkpoint",
        )  # fmt: skip
    shared = f"{prefix}0.{blocks}.weight" not in tensors
    for head in range(heads):
        for block in range(blocks):
            name = f"heads.{head}.blocks.{block}"
            parts.take(f"{prefix}{head}.{block}.linear.weight", [hidden, hidden], f"{name}.weight")
            parts.take(f"{prefix}{head}.{block}.linear.bias", [hidden], f"{name}.bias")
        if shared:
            parts.weights[f"heads.{head}.lm_head.weight"] = target.head
        else:
            source = f"{prefix}{head}.{blocks}.weight"
            rows = _rows(parts, source)
            parts.take(source, [rows, hidden], f"heads.{head}.lm_head.weight")
    said = config.get("medusa_num_heads")
    parts.conventions |= {
        "heads": f"{heads} by the tensors" + (f" (config.json says {said})" if said not in (None, heads) else ""),
        "blocks per head": str(blocks), "head matrices": "the target's" if shared else "one per head",
    }  # fmt: skip
    spec = DrafterSpec(
        Kind.MEDUSA, "Medusa", hidden, hidden, target.num_layers, target.rows, target.rows,
        (target.num_layers,), Fuse(fc=False), norm=False, embedding=Ownership.NONE,
        head=Ownership.TARGET if shared else Ownership.OWN,
        medusa=Medusa(heads, blocks, shared), speculative_tokens=heads, conventions=parts.conventions,
    )  # fmt: skip
    return DrafterCheckpoint(spec, WeightStore(parts.weights))


def _rows(parts: Parts, source: str) -> int:
    rows, target = parts.tensors.shape(source)[0], parts.target
    if not target.vocab_size <= rows <= target.rows:
        raise ModelError(
            "SPECC-E0273", "the drafter was trained for another target: its vocabulary differs",
            where=f"{parts.tensors.where}: {source}", expected=f"{target.vocab_size} to {target.rows} ids",
            found=str(rows), cure="take the heads of this very model",
        )  # fmt: skip
    return rows
