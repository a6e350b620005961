"""SafeAILab's own format: EAGLE-1/2 (`layers.0`, fc over 2H) and EAGLE-3 (`midlayer`, fc over taps).

config.json is the draft layer's LlamaConfig, with num_hidden_layers 1. EAGLE-3's taps are in no key: the code takes the
hidden states that enter layers 2, L / 2 and L - 3.
"""

from __future__ import annotations

from specc.ir.importers.drafters.eagle import (
    Eagle3Conventions,
    eagle3_taps,
    read_eagle1,
    read_eagle3,
)
from specc.ir.importers.drafters.layers import Parts
from specc.ir.importers.drafters.spec import DrafterCheckpoint


def read(parts: Parts) -> DrafterCheckpoint:
    """Either of them, told by the tensors: loading one as the other gives drafts that are never kept."""
    parts.config.only("pretraining_tp", 1)
    parts.config.only("tie_word_embeddings", False)
    if "midlayer.self_attn.q_proj.weight" not in parts.tensors:
        parts.tensors.drop("layers.0.self_attn.rotary_emb.inv_freq")
        return read_eagle1(parts, "SafeAILab EAGLE-1/2")
    parts.config.only("num_hidden_layers", 1)
    layers = parts.target.num_layers
    parts.conventions["taps of"] = (
        "hidden states entering layers 2, L / 2 and L - 3, by SafeAILab's code"
    )
    return read_eagle3(
        parts, Eagle3Conventions("SafeAILab EAGLE-3", eagle3_taps(layers), "midlayer")
    )
