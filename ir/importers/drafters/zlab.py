"""DFlash as z-lab, SpecForge and ModelOpt write it (DFlashDraftModel), and SpecForge's DSpark on top of it.

`dflash_config` holds what is not of the layers: mask token, taps as layers whose *output* is taken, heads. DFlash rows
fill in the token at their own position; SpecForge trains its DSpark's row k on the token after it (its labels start one
place on), unless a flag says otherwise.
"""

from __future__ import annotations

from specc.ir.importers.drafters.block import BlockConventions, anchor_flag, read_block
from specc.ir.importers.drafters.layers import Parts
from specc.ir.importers.drafters.spec import DrafterCheckpoint

_TRAINING = (
    "num_anchors", "max_anchors", "loss_decay_gamma", "ce_loss_alpha", "l1_loss_alpha", "shift_label",
    "pure_draft_prefix_len",
)  # fmt: skip
_DFLASH2 = (
    "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k", "output_multiplier",
    "input_embedding_scale", "final_logit_softcapping",
)  # fmt: skip
_CURE2 = "this is a DFlash-2 or a drafter for a scaled target, which specc does not build"


def read_dflash(parts: Parts) -> DrafterCheckpoint:
    """DFlashDraftModel; its projector_type tells a DSpark or a Domino."""
    return _read(
        parts, dspark=parts.config.section("dflash_config").get("projector_type") == "dspark"
    )


def read_dspark(parts: Parts) -> DrafterCheckpoint:
    """DSparkDraftModel."""
    return _read(parts, dspark=True)


def _read(parts: Parts, *, dspark: bool) -> DrafterCheckpoint:
    config, section = parts.config, parts.config.section("dflash_config")
    config.only("tie_word_embeddings", False)
    config.skip("num_anchors", "quantization_config")
    section.skip(*_TRAINING)
    section.only(
        "projector_type",
        "dspark" if dspark else None,
        None,
        "dflash",
        cure="this is a Domino or another drafter that specc does not build",
    )
    section.only("attention_mode", "gqa", "mha")
    section.only("use_aux_hidden_state", True)
    section.only("attention_sink_bias", False)
    for key in _DFLASH2:
        section.only(key, None, cure=_CURE2)
    if section.get("use_swa") and not config.get("layer_types"):
        raise section.bad("use_swa", "layer_types, which say which layers have a window")
    section.skip("swa_window_size")
    count, layers = config.integer("num_hidden_layers"), config.integer("num_target_layers")
    ids = section.integers("target_layer_ids") or spread(layers, count)
    causal = section.get("causal", config.get("is_causal"))
    if causal is not None and not isinstance(causal, bool):
        raise config.bad("is_causal", "true or false")
    said = anchor_flag(config, section)
    parts.conventions["taps of"] = "dflash_config.target_layer_ids, outputs of layers"
    conventions = BlockConventions(
        "SpecForge DSpark" if dspark else "z-lab DFlash", tuple(i + 1 for i in ids),
        section.integer("block_size") if "block_size" in section.values else config.integer("block_size"),
        section.integer("mask_token_id", least=0), dspark if said is None else said,
        section, layers, causal,
    )  # fmt: skip
    checkpoint = read_block(parts, conventions)
    section.finish()
    return checkpoint


def spread(layers: int, count: int) -> tuple[int, ...]:
    """The layers that z-lab's code takes where the configuration names none."""
    if count == 1:
        return (layers // 2,)
    span = layers - 4
    return tuple(round(1 + i * span / (count - 1)) for i in range(count))
