"""Tiny random models of every family, as configurations."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specc.ir import SpeculativeProgram
from specc.ir.evaluate import evaluate

VOCABULARY = 96

_BASE: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_GPT: dict[str, Any] = {
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_NARROW = {"head_dim": 8}
_WINDOW = {"sliding_window": 8}
_ALTERNATE = _WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ROUTED = _EXPERTS | {
    "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
_LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "num_key_value_heads": 4,
}  # fmt: skip
_LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16,
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
}  # fmt: skip


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-mqa-bias-tied": ("llama", {
        "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True,
        "tie_word_embeddings": True,
    }),
    "llama-mha-wide-head": ("llama", {"num_key_value_heads": 4, "head_dim": 16}),
    "llama-no-eos": ("llama", {"eos_token_id": None, "bos_token_id": None}),
    "llama-rope-llama3": ("llama", _rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16,
    )),
    "llama-rope-yarn": ("llama", _rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama-rope-linear": ("llama", _rope("linear", factor=4.0)),
    "llama-rope-dynamic": ("llama", _rope("dynamic", factor=4.0)),
    "arcee": ("arcee", {}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {
        "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1,
    }),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "mistral": ("mistral", _WINDOW),
    "ministral": ("ministral", _NARROW | _WINDOW),
    "gemma": ("gemma", _NARROW),
    "gemma2": ("gemma2", _NARROW | _WINDOW | {"query_pre_attn_scalar": 16}),
    "gemma3": ("gemma3_text", _NARROW | _ALTERNATE),
    "gemma4": ("gemma4_text", _NARROW | _ALTERNATE | {
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 0,
        "global_head_dim": 16,
    }),
    "phi3": ("phi3", {}),
    "phi3-longrope": ("phi3", {
        "original_max_position_embeddings": 16, "rope_parameters": _LONG,
    }),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "olmo": ("olmo", {"clip_qkv": 1.0}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", _ALTERNATE),
    "granite": ("granite", {
        "embedding_multiplier": 2.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5,
        "logits_scaling": 3.0,
    }),
    "glm4": ("glm4", _NARROW),
    "cohere-qk-norm": ("cohere", {"use_qk_norm": True}),
    "cohere2": ("cohere2", _ALTERNATE),
    "starcoder2": ("starcoder2", _WINDOW),
    "stablelm-qk-norm": ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True}),
    "exaone4": ("exaone4", _ALTERNATE),
    "nemotron": ("nemotron", _NARROW),
    "phi-partial-rotary": ("phi", {}),
    "opt": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "gpt2": ("gpt2", _GPT),
    "gptj": ("gptj", _GPT | {"rotary_dim": 4}),
    "gpt-bigcode-mqa": ("gpt_bigcode", _GPT),
    "gpt-neox": ("gpt_neox", {"rotary_pct": 0.5}),
    "qwen3-moe": ("qwen3_moe", _NARROW | _EXPERTS | {"num_experts": 4}),
    "qwen2-moe": ("qwen2_moe", _EXPERTS | {
        "num_experts": 4, "shared_expert_intermediate_size": 24,
    }),
    "mixtral": ("mixtral", _WINDOW | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek-v3": ("deepseek_v3", _ROUTED | _LATENT),
    "deepseek-v3-full-rank": ("deepseek_v3", _ROUTED | _LATENT | {"q_lora_rank": None}),
    "glm4-moe": ("glm4_moe", _ROUTED | _NARROW | {"use_qk_norm": True}),
    "olmoe": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "granite-moe": ("granitemoe", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "ernie4.5": ("ernie4_5", _NARROW),
    "apertus": ("apertus", {}),
    "seed-oss": ("seed_oss", _NARROW),
    "hunyuan": ("hunyuan_v1_dense", _NARROW),
    "glm": ("glm", _NARROW),
    "exaone": ("exaone", {}),
    "gpt-oss-sinks": ("gpt_oss", _NARROW | _WINDOW | {
        "num_local_experts": 4, "num_experts_per_tok": 2,
    }),
}  # fmt: skip
"""Name -> (model type, what differs from the base)."""


def tiny(kind: str, **values: Any) -> PreTrainedModel:
    """A model of type `kind` with random weights of a size that makes attention matter."""
    base = {} if kind in ("gpt2", "gptj", "gpt_bigcode") else _BASE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(kind, **{**base, **values})
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.set_attn_implementation("eager")
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.15)
    return model.eval()


def eager_logits(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [T, V] by transformers' own code."""
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=tokens[None], use_cache=False).logits[0]
    return logits


def prompt() -> torch.Tensor:
    """24 tokens."""
    return torch.randint(3, VOCABULARY, (24,), generator=torch.Generator().manual_seed(1))


def logits_of(program: SpeculativeProgram, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [T, V] by a program as it was imported."""
    return evaluate(program, "target", [tokens, torch.arange(len(tokens))], {})[0]


def difference(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest, of the largest number in `want`."""
    return float((got - want).abs().max() / want.abs().max())
