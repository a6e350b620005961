"""EAGLE-3 and P-EAGLE as SpecForge and ModelOpt export them: SafeAILab's sizes, with conventions in keys.

Taps are in `eagle_config`, as layers whose *output* is taken (l -> hidden state l + 1). SpecForge calls the first layer
`midlayer`, ModelOpt `layers.0`. For DeepSeek's targets layers have latent attention and a plain MLP, in a configuration
that is a copy of the target's and speaks of experts too (vLLM's Eagle3DeepseekV2ForCausalLM).
"""

from __future__ import annotations

from specc.ir.importers.drafters.eagle import Eagle3Conventions, eagle3_taps, read_eagle3
from specc.ir.importers.drafters.files import Config
from specc.ir.importers.drafters.layers import Parts
from specc.ir.importers.drafters.spec import DrafterCheckpoint, Recycle

_MASKS = ("mask_token_id", "pard_token", "ptd_token_id")
_NOT_OF_LAYERS = (
    "num_key_value_heads", "head_dim", "qk_head_dim",
    "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_layer_freq",
    "first_k_dense_replace", "norm_topk_prob", "n_group", "topk_group", "topk_method", "scoring_func", "seq_aux",
    "aux_loss_alpha", "routed_scaling_factor", "ep_size", "num_nextn_predict_layers",
)  # fmt: skip
_TRAINING = ("num_depths", "cod_ratio", "down_sample_ratio", "down_sample_ratio_min", "ttt_length")


def read_deepseek(parts: Parts) -> DrafterCheckpoint:
    """Eagle3DeepseekV2ForCausalLM, whose layers have no experts whatever the configuration says of them.

    Raises ModelError (SPECC-E0278) without a `kv_lora_rank`, or for a count of taps other than that of their list.
    """
    config = parts.config
    config.skip(*_NOT_OF_LAYERS)
    config.only("logit_scale", 1.0)
    config.integer("kv_lora_rank")
    count = len(taps(config, parts))
    config.only("num_aux_hidden_states", count)
    return read(parts)


def read(parts: Parts) -> DrafterCheckpoint:
    """LlamaForCausalLMEagle3 or PEagleDraftModel."""
    config, tensors = parts.config, parts.tensors
    config.skip(*_TRAINING, "draft_vocab_size")
    config.only("tie_word_embeddings", False)
    config.only("pretraining_tp", 1)
    parallel = "mask_hidden" in tensors
    first = "midlayer" if "midlayer.hidden_norm.weight" in tensors else "layers.0"
    # `norm_output` true is EAGLE-3.1, as servers read it: what feeds the head is fed back too.
    post = config.flag("norm_output")
    source = (
        "ModelOpt EAGLE-3" if _modelopt(config.section("eagle_config")) else "SpecForge EAGLE-3"
    )
    spec = Eagle3Conventions(
        source.replace("EAGLE-3", "P-EAGLE") if parallel else source, taps(config, parts), first,
        target_layers=config.integer("num_target_layers") if config.get("num_target_layers") else None,
        per_tap_norm=config.flag("fc_norm"), pre_norm=config.flag("norm_before_fc"),
        norm_before_residual=config.flag("norm_before_residual"),
        recycle=Recycle.POST_NORM if post else Recycle.PRE_NORM,
        speculative_tokens=config.integer("num_depths", 8) if parallel else 0,
        mask_token_id=_mask(config) if parallel else None,
    )  # fmt: skip
    return read_eagle3(parts, spec)


def _mask(config: Config) -> int:
    """The token of rows that are not known yet. SpecForge takes it from its command line, and may not write it down."""
    said = [k for k in _MASKS if config.get(k) is not None]
    if not said:
        raise config.bad(
            "mask_token_id", "the token that stood for unknown ones in training",
            "add it to config.json, as it was given to the trainer",
        )  # fmt: skip
    return config.integer(said[0], least=0)


def _modelopt(section: Config) -> bool:
    """Whether ModelOpt wrote it, by keys that only its template has. Features that it alone knows are refused."""
    section.only("use_aux_hidden_state", True)
    section.only("use_mtp_layernorm", False)
    section.only("use_last_layernorm", True)
    section.only("use_input_layernorm_in_first_layer", True)
    section.only("next_layer_regular", True)
    section.only(
        "parallel_draft_step",
        1,
        cure="this is an EAGLE with Medusa heads, which specc does not read",
    )
    section.skip(
        "parallel_draft_heads_num_layers", "eagle_aux_hidden_state_layer_ids", "has_lm_head"
    )
    section.finish()
    return "use_last_layernorm" in section.values


def taps(config: Config, parts: Parts) -> tuple[int, ...]:
    """Hidden-state indices, as many as fc reads. Raises ModelError (SPECC-E0276, E0278)."""
    said = config.section("eagle_config").integers("eagle_aux_hidden_state_layer_ids")
    layers = parts.target.num_layers
    found = tuple(i + 1 for i in said) if said else eagle3_taps(layers)
    parts.conventions["taps of"] = (
        "eagle_config.eagle_aux_hidden_state_layer_ids, outputs of layers" if said
        else "no key: hidden states entering layers 2, L / 2 and L - 3"
    )  # fmt: skip
    return found
