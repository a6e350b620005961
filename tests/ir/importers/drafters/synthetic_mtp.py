"""Checkpoints with MTP layers in the true layout of each family, for tiny targets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.ir.importers.drafters.synthetic import LATENT, Maker, Tensors, speculators_config, write
from tests.ir.importers.tiny_models import tiny

DEEPSEEK = {
    **LATENT, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid",
}  # fmt: skip
YARN = {
    "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1,
    "mscale": 1.0, "mscale_all_dim": 0.7,
}  # fmt: skip
GLM = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
    "partial_rotary_factor": 0.5, "use_qk_norm": True, "attention_bias": True, "head_dim": 8,
}  # fmt: skip
QWEN = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
    "norm_topk_prob": True, "partial_rotary_factor": 0.5, "head_dim": 8,
}  # fmt: skip


def _whole(m: Maker, kind: str, **values: Any) -> dict[str, Any]:
    """The target's own configuration."""
    return {
        **m.sizes(model_type=kind, architectures=["ForCausalLM"], rope_theta=1e4), "num_hidden_layers": m.layers,
        **values,
    }  # fmt: skip


def _with_target(m: Maker, tensors: Tensors) -> Tensors:
    """The MTP layer among tensors of the target, as in a real checkpoint (here only two of them)."""
    return {
        **tensors,
        "model.embed_tokens.weight": m.embedding(),
        "model.norm.weight": m.norm(m.hidden),
    }


def experts(m: Maker, name: str, *, deepseek: bool, shared: int, fused: bool = False) -> Tensors:
    made: Tensors = {f"{name}.gate.weight": m.make(4, m.hidden)}
    if deepseek:
        made[f"{name}.gate.e_score_correction_bias"] = m.make(4, scale=3.0)
    if fused:
        made[f"{name}.experts.gate_up_proj"] = m.make(4, 32, m.hidden)
        made[f"{name}.experts.down_proj"] = m.make(4, m.hidden, 16)
    else:
        for e in range(4):
            made |= m.mlp(f"{name}.experts.{e}", 16)
    made |= m.mlp(f"{name}.shared_expert{'s' if deepseek else ''}", shared)
    if not deepseek:
        made[f"{name}.shared_expert_gate.weight"] = m.make(1, m.hidden)
    return made


def _norms(m: Maker, names: list[str], *, offset: bool = False) -> Tensors:
    return {f"{n}.weight": m.norm(m.hidden) - (1 if offset else 0) for n in names}


def deepseek(folder: Path, model: PreTrainedModel, *, yarn: bool = False, **keys: Any) -> Path:
    """DeepSeek-V3: latent attention and experts at layer index L, with copies of embedding and head."""
    m = Maker(model)
    name = f"model.layers.{m.layers}"
    attn = f"{name}.self_attn"
    tensors = {
        **_norms(m, [f"{name}.{n}" for n in ("enorm", "hnorm", "shared_head.norm", "input_layernorm",
                                            "post_attention_layernorm")]),
        f"{name}.eh_proj.weight": m.make(m.hidden, 2 * m.hidden),
        f"{name}.embed_tokens.weight": m.embedding(), f"{name}.shared_head.head.weight": m.head(),
        **m.latent(attn, m.hidden, 12), **experts(m, f"{name}.mlp", deepseek=True, shared=16),
    }  # fmt: skip
    config = _whole(m, "deepseek_v3", num_nextn_predict_layers=1, **DEEPSEEK)
    if yarn:
        config["rope_scaling"] = YARN
    return write(folder, {**config, **keys}, _with_target(m, tensors))


def glm(folder: Path, model: PreTrainedModel, **keys: Any) -> Path:
    """GLM-4.x: DeepSeek's names around grouped-query attention with biases, q and k norms and half a rotary."""
    m = Maker(model)
    name = f"model.layers.{m.layers}"
    attn = f"{name}.self_attn"
    tensors = {
        **_norms(m, [f"{name}.{n}" for n in ("enorm", "hnorm", "shared_head.norm", "input_layernorm",
                                            "post_attention_layernorm")]),
        f"{name}.eh_proj.weight": m.make(m.hidden, 2 * m.hidden),
        f"{name}.embed_tokens.weight": m.embedding(), f"{name}.shared_head.head.weight": m.head(),
        **m.attention(attn, m.hidden, qk_norm=True), **_biases(m, attn),
        **experts(m, f"{name}.mlp", deepseek=True, shared=32),
    }  # fmt: skip
    return write(
        folder,
        {**_whole(m, "glm4_moe", num_nextn_predict_layers=1, **GLM), **keys},
        _with_target(m, tensors),
    )


def _biases(m: Maker, attn: str) -> Tensors:
    return {
        f"{attn}.q_proj.bias": m.make(m.heads * m.dim), f"{attn}.k_proj.bias": m.make(m.kv_heads * m.dim),
        f"{attn}.v_proj.bias": m.make(m.kv_heads * m.dim),
    }  # fmt: skip


def _qwen_layer(m: Maker, name: str, *, moe: bool, fused: bool) -> Tensors:
    """Norms as 1 + weight, queries with a gate."""
    attn = m.attention(f"{name}.self_attn", m.hidden, qk_norm=True)
    attn[f"{name}.self_attn.q_proj.weight"] = m.make(2 * m.heads * m.dim, m.hidden)
    for which in ("q_norm", "k_norm"):
        attn[f"{name}.self_attn.{which}.weight"] -= 1
    mlp = (
        experts(m, f"{name}.mlp", deepseek=False, shared=24, fused=fused)
        if moe
        else m.mlp(f"{name}.mlp")
    )
    return {
        **attn,
        **mlp,
        **_norms(m, [f"{name}.input_layernorm", f"{name}.post_attention_layernorm"], offset=True),
    }


def qwen(
    folder: Path,
    model: PreTrainedModel,
    kind: str = "qwen3_next",
    *,
    fused: bool = False,
    **keys: Any,
) -> Path:
    """Qwen3-Next, or with kind qwen3_5_text Qwen3.5, whose configuration is nested and whose layer is dense."""
    m = Maker(model)
    moe = kind != "qwen3_5_text"
    tensors = {
        "mtp.fc.weight": m.make(m.hidden, 2 * m.hidden), **_qwen_layer(m, "mtp.layers.0", moe=moe, fused=fused),
        **_norms(m, ["mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"], offset=True),
    }  # fmt: skip
    types = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * (
        m.layers // 4
    )
    config = _whole(m, kind, layer_types=types, **QWEN)
    if kind == "qwen3_next":
        config["num_nextn_predict_layers"] = 1
    else:
        rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
        config |= {
            "mtp_num_hidden_layers": 1,
            "rope_parameters": {**rope, "mrope_section": [1, 1, 0]},
        }
        config = {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": config,
        }
    return write(folder, {**config, **keys}, _with_target(m, tensors))


def mimo(folder: Path, model: PreTrainedModel, **keys: Any) -> Path:
    """MiMo-7B: a Qwen2 layer, and fc over [hidden state; embedding]."""
    m = Maker(model)
    name = "model.mtp_layers.0"
    tensors = {
        **m.layer(name), **_biases(m, f"{name}.self_attn"), f"{name}.input_proj.weight": m.make(m.hidden, 2 * m.hidden),
        **_norms(m, [f"{name}.token_layernorm", f"{name}.hidden_layernorm", f"{name}.final_layernorm"]),
    }  # fmt: skip
    return write(
        folder, {**_whole(m, "mimo", num_nextn_predict_layers=1), **keys}, _with_target(m, tensors)
    )


def speculators(folder: Path, model: PreTrainedModel, kind: str = "qwen3", **keys: Any) -> Path:
    """speculators' MTP, of a Qwen3 or a Qwen3-Next verifier (experts in one tensor each way)."""
    m = Maker(model)
    name = "mtp_layers.0"
    offset = kind != "qwen3"
    layer = _qwen_layer(m, name, moe=True, fused=True) if offset else m.layer(name, qk_norm=True)
    tensors = {
        **layer, f"{name}.input_proj.weight": m.make(m.hidden, 2 * m.hidden),
        **_norms(m, [f"{name}.token_layernorm", f"{name}.hidden_layernorm", f"{name}.final_layernorm"], offset=offset),
    }  # fmt: skip
    layers = _whole(m, kind, **(QWEN if offset else {"head_dim": m.dim}))
    return write(
        folder,
        {**speculators_config("mtp", layers, 3, num_nextn_predict_layers=1), **keys},
        tensors,
    )


def whole(
    folder: Path, kind: str, make: Callable[..., Path], layers: int = 2, **values: Any
) -> PreTrainedModel:
    """A tiny target with the MTP layer that `make` makes behind its own layers, as DeepSeek and GLM-4.x keep it."""
    model = tiny(kind, **{**values, "num_hidden_layers": layers})
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    made = load_file(make(folder / "mtp", model) / "model.safetensors")
    shutil.rmtree(folder / "mtp")
    tensors = load_file(folder / "model.safetensors")
    tensors |= {n: t for n, t in made.items() if n.startswith(f"model.layers.{layers}.")}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return model


def knowing(folder: Path) -> None:
    """A DeepSeek-V3 of one layer of experts, and an MTP layer that is a copy of it and reads tokens alone.

    So it says what the target says, but for the text's first token, which an MTP layer never sees.
    """
    whole(folder, "deepseek_v3", deepseek, 1, **DEEPSEEK | {"first_k_dense_replace": 0})
    tensors = load_file(folder / "model.safetensors")
    own, layer = "model.layers.0.", "model.layers.1."
    # What is attended to, and what experts say of it, decides.
    for name in tensors:
        tensors[name] *= (
            4 if name.endswith(("lm_head.weight", "q_b_proj.weight", "down_proj.weight")) else 1
        )
    copied = {n.replace(own, layer): t.clone() for n, t in tensors.items() if n.startswith(own)}
    table = tensors["model.embed_tokens.weight"]
    table /= table.pow(2).mean(-1, keepdim=True).sqrt()  # what a norm leaves as it is
    hidden = table.shape[1]
    tensors |= copied | {
        f"{layer}embed_tokens.weight": table.clone(), f"{layer}enorm.weight": torch.ones(hidden),
        f"{layer}shared_head.head.weight": tensors["lm_head.weight"].clone(),
        f"{layer}eh_proj.weight": torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], 1),
        f"{layer}shared_head.norm.weight": tensors["model.norm.weight"].clone(),
    }  # fmt: skip
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
