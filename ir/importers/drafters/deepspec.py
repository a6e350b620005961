"""DeepSpec's drafters: the target's configuration with keys added at the top, own embedding and head.

`target_layer_ids` are layers whose *output* is taken. Embedding and head are copies of the target's unless they were
trained too, which their content tells.
"""

from __future__ import annotations

from specc.ir.importers.drafters.block import BlockConventions, anchor_flag, read_block
from specc.ir.importers.drafters.eagle import Eagle3Conventions, read_eagle3
from specc.ir.importers.drafters.layers import Parts
from specc.ir.importers.drafters.spec import DrafterCheckpoint


def read_eagle(parts: Parts) -> DrafterCheckpoint:
    """Qwen3Eagle3Model. More than one layer never worked in DeepSpec itself, and is refused."""
    config = parts.config
    config.only("draft_num_hidden_layers", 1)
    config.only("num_hidden_layers", 1)
    config.skip("step_loss_decay", "target_model_name_or_path")
    said = Eagle3Conventions(
        "DeepSpec EAGLE-3", _taps(parts), target_layers=config.integer("num_target_layers"),
        speculative_tokens=config.integer("ttt_length"),
    )  # fmt: skip
    return read_eagle3(parts, said)


def read_dspark(parts: Parts) -> DrafterCheckpoint:
    """Qwen3DSparkModel, which is also what its DFlash is called: rank 0, and no confidence head.

    Row k gives the token after its own in both.
    """
    config = parts.config
    config.skip("num_anchors")
    said = anchor_flag(config)
    conventions = BlockConventions(
        "DeepSpec DSpark" if config.get("markov_rank") else "DeepSpec DFlash", _taps(parts),
        config.integer("block_size"), config.integer("mask_token_id", least=0),
        True if said is None else said, config, config.integer("num_target_layers"), causal=False,
    )  # fmt: skip
    return read_block(parts, conventions)


def _taps(parts: Parts) -> tuple[int, ...]:
    parts.config.only("tie_word_embeddings", False)
    ids = parts.config.integers("target_layer_ids")
    if ids is None:
        raise parts.config.bad("target_layer_ids", "the layers whose outputs are taken")
    parts.conventions["taps of"] = "target_layer_ids, outputs of layers"
    return tuple(i + 1 for i in ids)
