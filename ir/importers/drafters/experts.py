"""Layers of target checkpoints that drafters are made of: mixtures of experts, and latent attention."""

from __future__ import annotations

import math

from torch import Tensor

from specc.ir.importers.drafters.layers import ACTIVATIONS, Parts
from specc.ir.importers.drafters.spec import Experts, LatentAttention
from specc.ir.types import TensorType
from specc.ir.weights import Weight

_GATED = ("gate_proj", "up_proj", "down_proj")


def read_experts(parts: Parts, source: str, name: str, hidden: int) -> Experts:
    """Take a mixture of experts from `SOURCE.*`: DeepSeek's keys (n_routed_experts) or Qwen's (num_experts)."""
    config, tensors = parts.config, parts.tensors
    deepseek = config.get("n_routed_experts") is not None
    count = config.integer("n_routed_experts" if deepseek else "num_experts")
    size = config.integer("moe_intermediate_size")
    activation = str(config.get("hidden_act", "silu"))
    if activation not in ACTIVATIONS:
        raise config.bad("hidden_act", " or ".join(ACTIVATIONS))
    parts.take(f"{source}.gate.weight", [count, hidden], f"{name}.gate.weight")
    correction = f"{source}.gate.e_score_correction_bias" in tensors
    if correction:
        parts.take(f"{source}.gate.e_score_correction_bias", [count], f"{name}.gate.correction")
    if f"{source}.experts.gate_up_proj" in tensors:
        _fused(parts, source, name, count, hidden, size)
    else:
        for expert in range(count):
            _mlp(parts, f"{source}.experts.{expert}", f"{name}.experts.{expert}", hidden, size)
    shared, shared_gate = 0, False
    if deepseek:
        config.only("scoring_func", "sigmoid")
        config.only("topk_method", "noaux_tc")
        shared = size * config.integer("n_shared_experts", 0, 0)
        source_shared = f"{source}.shared_experts"
    else:
        shared = config.integer("shared_expert_intermediate_size", 0, 0)
        source_shared = f"{source}.shared_expert"
        shared_gate = shared > 0
    if shared:
        _mlp(parts, source_shared, f"{name}.shared_expert", hidden, shared)
    if shared_gate:
        parts.take(f"{source}.shared_expert_gate.weight", [1, hidden], f"{name}.shared_gate.weight")
    return Experts(
        count, config.integer("num_experts_per_tok"), size, activation, "sigmoid" if deepseek else "softmax",
        config.flag("norm_topk_prob", True), config.number("routed_scaling_factor", 1.0),
        config.integer("n_group", 1), config.integer("topk_group", 1), correction, shared, shared_gate,
    )  # fmt: skip


def _mlp(parts: Parts, source: str, name: str, hidden: int, size: int) -> None:
    for which in _GATED:
        shape = [hidden, size] if which == "down_proj" else [size, hidden]
        parts.take(f"{source}.{which}.weight", shape, f"{name}.{which}.weight")


def _fused(parts: Parts, source: str, name: str, count: int, hidden: int, size: int) -> None:
    """Experts in one tensor each way, [E, 2I, H] with gates first, and [E, H, I]."""
    both = parts.tensors.take(f"{source}.experts.gate_up_proj", [count, 2 * size, hidden])
    down = parts.tensors.take(f"{source}.experts.down_proj", [count, hidden, size])
    wide, narrow = TensorType("f32", (size, hidden)), TensorType("f32", (hidden, size))
    for expert in range(count):
        to = f"{name}.experts.{expert}"
        parts.weights[f"{to}.gate_proj.weight"] = _part(both, wide, expert, 0)
        parts.weights[f"{to}.up_proj.weight"] = _part(both, wide, expert, size)
        parts.weights[f"{to}.down_proj.weight"] = _part(down, narrow, expert, 0)


def _part(fused: Weight, type_: TensorType, expert: int, begin: int) -> Weight:
    """Rows of one expert from `begin` on."""

    def rows(tensor: Tensor) -> Tensor:
        return tensor[expert, begin : begin + type_.at()[0]].contiguous()

    return fused.derive(f"expert {expert} from {begin}", type_, rows)


def read_latent(parts: Parts, source: str, name: str, hidden: int) -> LatentAttention:
    """Take DeepSeek's latent attention from `SOURCE.*`."""
    config = parts.config
    heads = config.integer("num_attention_heads")
    q_rank, kv_rank = config.integer("q_lora_rank", 0, 0), config.integer("kv_lora_rank")
    nope, turning = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    value, bias = config.integer("v_head_dim"), config.flag("attention_bias")
    wide = heads * (nope + turning)
    shapes = {
        "kv_a_proj_with_mqa.weight": [kv_rank + turning, hidden], "kv_a_layernorm.weight": [kv_rank],
        "kv_b_proj.weight": [heads * (nope + value), kv_rank], "o_proj.weight": [hidden, heads * value],
    }  # fmt: skip
    if q_rank:
        shapes |= {
            "q_a_proj.weight": [q_rank, hidden], "q_a_layernorm.weight": [q_rank], "q_b_proj.weight": [wide, q_rank],
        }  # fmt: skip
    else:
        shapes["q_proj.weight"] = [wide, hidden]
    if bias:
        shapes |= {"kv_a_proj_with_mqa.bias": [kv_rank + turning], "o_proj.bias": [hidden]}
        shapes |= {"q_a_proj.bias": [q_rank]} if q_rank else {}
    for which, shape in shapes.items():
        parts.take(f"{source}.{which}", shape, f"{name}.{which}")
    return LatentAttention(
        heads, q_rank, kv_rank, nope, turning, value, _scale(parts, nope + turning), bias
    )


def _scale(parts: Parts, width: int) -> float:
    """1 / sqrt(width), raised for yarn where the configuration says so (DeepSeek's mscale_all_dim)."""
    parameters = parts.config.get("rope_parameters") or parts.config.get("rope_scaling") or {}
    scale: float = width**-0.5
    all_dim = float(parameters.get("mscale_all_dim") or 0)
    factor = float(parameters.get("factor") or 1)
    if parameters.get("rope_type", parameters.get("type", "default")) == "default" or not all_dim:
        return scale
    raised = 0.1 * all_dim * math.log(factor) + 1.0 if factor > 1 else 1.0
    return scale * raised * raised
