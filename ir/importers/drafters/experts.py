"""Layers of target checkpoints that drafters are made of: mixtures of experts, and latent attention."""

from __future__ import annotations

import math

from specc.ir.importers.drafters.files import Config
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
    _take_experts(parts, f"{source}.experts", f"{name}.experts", count, hidden, size)
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
    groups, per_token = _groups(config, count), config.integer("num_experts_per_tok")
    if per_token > count // groups[0] * groups[1]:
        raise config.bad("num_experts_per_tok", f"at most {count // groups[0] * groups[1]}")
    return Experts(
        count, per_token, size, activation, "sigmoid" if deepseek else "softmax",
        config.flag("norm_topk_prob", True), config.number("routed_scaling_factor", 1.0), *groups, correction, shared,
        shared_gate,
    )  # fmt: skip


def _groups(config: Config, count: int) -> tuple[int, int]:
    """Into how many groups `count` experts are divided, and of how many of them a row's may be."""
    groups = config.integer("n_group", 1)
    if count % groups or (groups > 1 and count < 2 * groups):
        raise config.bad("n_group", f"a divisor of {count} experts that leaves two or more in each")
    chosen = config.integer("topk_group", 1)
    if chosen > groups:
        raise config.bad("topk_group", f"at most n_group, {groups}")
    return groups, chosen


def _take_experts(parts: Parts, source: str, name: str, count: int, hidden: int, size: int) -> None:
    """Take all experts in one tensor each way, in which some files have them already."""
    both, down = f"{source}.gate_up_proj", f"{source}.down_proj"
    if both in parts.tensors:
        parts.take(both, [count, 2 * size, hidden], f"{name}.gate_up_proj")
        parts.take(down, [count, hidden, size], f"{name}.down_proj")
        return
    take, every = parts.tensors.take, [f"{source}.{expert}" for expert in range(count)]
    wide = [take(f"{e}.{w}.weight", [size, hidden]) for e in every for w in _GATED[:2]]
    narrow = [take(f"{e}.down_proj.weight", [hidden, size]) for e in every]
    parts.weights[f"{name}.gate_up_proj"] = _by_expert(wide, count)
    parts.weights[f"{name}.down_proj"] = _by_expert(narrow, count)


def _mlp(parts: Parts, source: str, name: str, hidden: int, size: int) -> None:
    for which in _GATED:
        shape = [hidden, size] if which == "down_proj" else [size, hidden]
        parts.take(f"{source}.{which}.weight", shape, f"{name}.{which}.weight")


def _by_expert(rows: list[Weight], count: int) -> Weight:
    """Matrices below each other, as many rows for each expert, as [count, ...] of one for each."""
    below = Weight.stacked(rows)
    total, columns = below.type.at()
    type_ = TensorType("f32", (count, total // count, columns))
    return below.derive("by expert", type_, lambda t: t.reshape(type_.at()))


def read_latent(
    parts: Parts, source: str, name: str, hidden: int, input_size: int
) -> LatentAttention:
    """Take DeepSeek's latent attention from `SOURCE.*`; it reads `input_size` channels and gives `hidden`."""
    config = parts.config
    heads = config.integer("num_attention_heads")
    q_rank, kv_rank = config.integer("q_lora_rank", 0, 0), config.integer("kv_lora_rank")
    nope, turning = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    value, bias = config.integer("v_head_dim"), config.flag("attention_bias")
    wide = heads * (nope + turning)
    shapes = {
        "kv_a_proj_with_mqa.weight": [kv_rank + turning, input_size], "kv_a_layernorm.weight": [kv_rank],
        "kv_b_proj.weight": [heads * (nope + value), kv_rank], "o_proj.weight": [hidden, heads * value],
    }  # fmt: skip
    if q_rank:
        shapes |= {
            "q_a_proj.weight": [q_rank, input_size], "q_a_layernorm.weight": [q_rank],
            "q_b_proj.weight": [wide, q_rank],
        }  # fmt: skip
    else:
        shapes["q_proj.weight"] = [wide, input_size]
    if bias:
        shapes |= {"kv_a_proj_with_mqa.bias": [kv_rank + turning], "o_proj.bias": [hidden]}
        shapes |= {"q_a_proj.bias": [q_rank]} if q_rank else {}
    for which, shape in shapes.items():
        parts.take(f"{source}.{which}", shape, f"{name}.{which}")
    return LatentAttention(
        heads, q_rank, kv_rank, nope, turning, value, input_size, _scale(parts, nope + turning), bias
    )  # fmt: skip


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
