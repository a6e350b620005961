"""EAGLE-3 as DeepSpec exports it: any number of taps, norms of queries and keys, own embedding and head.

`target_layer_ids` are layers whose *output* is taken. Embedding and head are copies of the target's unless they were
trained too, which their content tells.
"""

from __future__ import annotations

from specc.ir.importers.drafters.eagle import Eagle3Conventions, read_eagle3
from specc.ir.importers.drafters.layers import Parts
from specc.ir.importers.drafters.spec import DrafterCheckpoint


def read(parts: Parts) -> DrafterCheckpoint:
    """Qwen3Eagle3Model. More than one layer never worked in DeepSpec itself, and is refused."""
    config = parts.config
    config.only("draft_num_hidden_layers", 1)
    config.only("num_hidden_layers", 1)
    config.only("tie_word_embeddings", False)
    config.skip("step_loss_decay", "target_model_name_or_path")
    ids = config.integers("target_layer_ids")
    if ids is None:
        raise config.bad("target_layer_ids", "the layers whose outputs are taken")
    parts.conventions["taps of"] = "target_layer_ids, outputs of layers"
    return read_eagle3(
        parts,
        Eagle3Conventions(
            "DeepSpec EAGLE-3", tuple(i + 1 for i in ids), target_layers=config.integer("num_target_layers"),
            speculative_tokens=config.integer("ttt_length"),
        ),
    )  # fmt: skip
