"""vllm-project/speculators: one config for all its drafters, told apart by `speculators_model_type`.

`transformer_layer_config` describes the draft layers; its vocab_size is the target's.
"""

from __future__ import annotations

from specc.ir.importers.drafters.block import BlockConventions, anchor_flag, read_block
from specc.ir.importers.drafters.eagle import Eagle3Conventions, eagle3_taps, read_eagle3
from specc.ir.importers.drafters.files import Config
from specc.ir.importers.drafters.layers import Parts, foreign
from specc.ir.importers.drafters.mtp import MtpNames, read_mtp
from specc.ir.importers.drafters.native import UNIT_OFFSET
from specc.ir.importers.drafters.spec import DrafterCheckpoint, Recycle

_WRAPPER = (
    "speculators_version",
    "speculators_model_type",
    "speculators_config",
    "transformer_layer_config",
)
_LAYERS_UNUSED = ("tie_word_embeddings", "pretraining_tp", "attn_implementation")


def merged(config: Config) -> Config:
    """The configuration of the layers, with the drafter's own keys over it, all in one place."""
    layers = config.section("transformer_layer_config").values
    own = {k: v for k, v in config.values.items() if k not in _WRAPPER}
    flat = Config({**layers, **own}, config.where)
    flat.skip(*_LAYERS_UNUSED)
    return flat


def speculative_tokens(parts: Parts, kind: str) -> int:
    """K of the default proposal method.

    Raises ModelError: SPECC-E0278 for a lossy one or another algorithm, E0273 for a verifier of another architecture.
    """
    said = parts.config.section("speculators_config")
    said.only("algorithm", kind)
    _check_verifier(parts, said.section("verifier"))
    methods = said.get("proposal_methods", [])
    if not isinstance(methods, list) or not all(isinstance(m, dict) for m in methods):
        raise said.bad("proposal_methods", "a list of objects")
    name = said.get("default_proposal_method")
    method = next(
        (m for m in methods if m.get("proposal_type") == name), methods[0] if methods else {}
    )
    proposal = Config(method, f"{said.where}.proposal_methods")
    proposal.only(
        "verifier_accept_k", 1, cure="it accepts tokens that the target would not say; set it to 1"
    )
    proposal.only(
        "accept_tolerance", 0.0, cure="it accepts tokens that the target would not say; set it to 0"
    )
    return proposal.integer("speculative_tokens", 0, 0)


def _check_verifier(parts: Parts, said: Config) -> None:
    """Refuse another class of language model; what wraps one, with images for instance, has other names."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    named = said.get("architectures", [])
    if not isinstance(named, list) or not all(isinstance(n, str) for n in named):
        raise said.bad("architectures", "a list of names")
    ours = str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(parts.target.architecture, ""))
    if ours and ours not in named and any(n.endswith("ForCausalLM") for n in named):
        raise foreign(parts, "architecture", ours, ", ".join(named))


def read_eagle(parts: Parts, kind: str) -> DrafterCheckpoint:
    """`eagle3` and `peagle`. Taps are hidden-state indices as they stand."""
    tokens = speculative_tokens(parts, kind)
    config = parts.config = merged(parts.config)
    config.skip("embed_requires_grad")
    for buffer in ("rotary_emb.inv_freq", "rotary_emb.original_inv_freq"):
        parts.tensors.drop(buffer)
    ids = config.integers("eagle_aux_hidden_state_layer_ids")
    if ids is None:
        parts.conventions["taps of"] = "no key: hidden states entering layers 2, L / 2 and L - 3"
    else:
        parts.conventions["taps of"] = "eagle_aux_hidden_state_layer_ids, hidden states"
    per_tap, together = config.flag("fc_norm"), config.flag("norm_before_fc")
    if per_tap and together:
        raise config.bad("fc_norm", "fc_norm or norm_before_fc, not both")
    parallel = kind == "peagle"
    said = Eagle3Conventions(
        f"speculators {kind}", ids or eagle3_taps(parts.target.num_layers),
        per_tap_norm=per_tap, pre_norm=together,
        # vLLM reads an absent key as true; speculators trains with false.
        norm_before_residual=config.flag("norm_before_residual"),
        recycle=Recycle.POST_NORM if config.flag("norm_output") else Recycle.PRE_NORM,
        # EAGLE-3's trainer numbers positions from 1, P-EAGLE's from 0.
        position_shift=0 if parallel else 1, speculative_tokens=tokens,
        mask_token_id=config.integer("mask_token_id", least=0) if parallel else None,
        # Not a key of speculators: `specc distill` leaves out a head that is the target's own.
        head_of_target=config.flag("lm_head_of_target"),
    )  # fmt: skip
    return read_eagle3(parts, said)


def read_block_drafter(parts: Parts, kind: str) -> DrafterCheckpoint:
    """`dflash` and `dspark`. Taps are hidden-state indices as they stand.

    Before `sample_from_anchor` was a key, a DSpark's rows filled in their own tokens; that its block then gives one
    token less than it has rows tells the two apart.
    """
    tokens = speculative_tokens(parts, kind)
    config = parts.config = merged(parts.config)
    ids = config.integers("aux_hidden_state_layer_ids")
    size = config.integer("block_size", 8)
    said = anchor_flag(config)
    if said is None and kind == "dspark":
        if tokens not in (size, size - 1):
            raise config.bad(
                "sample_from_anchor", "true if row 0 of a block gives a draft, false if not",
                cure="add it to config.json; the checkpoint's card tells, or its acceptance with either",
            )  # fmt: skip
        said = tokens == size
    parts.conventions["taps of"] = "aux_hidden_state_layer_ids, hidden states"
    conventions = BlockConventions(
        f"speculators {kind}", ids or eagle3_taps(parts.target.num_layers), size,
        config.integer("mask_token_id", least=0), bool(said), _heads(config, kind),
        # Its trainer makes a window's layers causal within the block, and measures the window from the block's start.
        causal=False if config.flag("sliding_window_non_causal") else None, window_at_anchor=True,
        speculative_tokens=tokens, head_of_target=config.flag("lm_head_of_target"),
    )  # fmt: skip
    return read_block(parts, conventions)


def _heads(config: Config, kind: str) -> Config:
    """The keys of the heads with the defaults of their kind."""
    names = (
        "markov_rank",
        "markov_head_type",
        "enable_confidence_head",
        "confidence_head_with_markov",
    )
    if kind == "dflash":
        return Config({}, config.where)
    defaults = dict(zip(names, (256, "vanilla", True, True), strict=True))
    return Config({n: config.get(n, defaults[n]) for n in names}, config.where)


def read_mtp_drafter(parts: Parts) -> DrafterCheckpoint:
    """`mtp`: a layer taken out of its verifier, under names of its own. fc reads [embedding; hidden state]."""
    tokens = speculative_tokens(parts, "mtp")
    parts.config.only("num_nextn_predict_layers", 1)
    config = parts.config = merged(parts.config)
    kind = config.get("model_type")
    config.skip(
        *config.values
    )  # the verifier's own configuration, most of which is not about this layer
    parts.unit_offset = kind in UNIT_OFFSET
    layer = "mtp_layers.0"
    names = MtpNames(
        "speculators mtp", layer, f"{layer}.token_layernorm", f"{layer}.hidden_layernorm", f"{layer}.input_proj",
        f"{layer}.final_layernorm", "embed_tokens.weight", "lm_head.weight", gated=kind in UNIT_OFFSET,
        speculative_tokens=tokens,
    )  # fmt: skip
    return read_mtp(parts, names)
