"""GGUF metadata -> a transformers configuration, architecture by architecture.

GGUF stores what llama.cpp reads, not what config.json says; what llama.cpp knows by heart (gemma's scale and pattern of
windows, for one) is in no field and is written here. Key names follow llama.cpp's gguf-py/gguf/constants.py and the
meaning of each follows its src/llama-model.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from specc.errors import ModelError

Fields = Mapping[str, Any]


class Metadata:
    """Typed reads of one file's fields, under its architecture's prefix."""

    def __init__(self, fields: Fields, where: str) -> None:
        self.fields, self.where = fields, where
        self.architecture = str(fields.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `ARCHITECTURE.key`, or `default`."""
        return self.fields.get(f"{self.architecture}.{key}", default)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; raises ModelError if it is absent (and has no default) or of another kind."""
        value = self.get(key, default)
        if isinstance(value, list) and value and len(set(value)) == 1:
            value = value[0]  # one per layer, all the same
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise self._bad(key, "a whole number", value)
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A float, with the digits that were meant: 1e-06, not 9.999999974752427e-07 (GGUF stores float32)."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise self._bad(key, "a number", value)
        return float(str(np.float32(value)))

    def _bad(self, key: str, expected: str, found: Any) -> ModelError:
        return ModelError(
            "SPECC-E0252",
            f"the GGUF's {self.architecture}.{key} is {'missing' if found is None else 'wrong'}",
            where=self.where,
            expected=expected,
            found="" if found is None else str(found)[:80],
            cure="convert the model again with llama.cpp's convert_hf_to_gguf.py",
        )


def configuration(meta: Metadata, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Keyword arguments of the transformers configuration, `model_type` among them.

    `shapes` are the file's tensors as torch sees them. Raises ModelError (SPECC-E0251, E0252).
    """
    specific = ARCHITECTURES.get(meta.architecture)
    if specific is None:
        raise ModelError(
            "SPECC-E0251",
            f"GGUF architecture {meta.architecture or '(none)'} is not supported",
            where=meta.where,
            expected=", ".join(sorted(ARCHITECTURES)),
            cure="use the model's Hugging Face folder instead",
        )
    if "token_embd.weight" not in shapes:
        raise ModelError("SPECC-E0253", "the GGUF has no token_embd.weight", where=meta.where,
                         cure="take a GGUF of a whole model, not of a part or adapter")  # fmt: skip
    layers = meta.integer("block_count")
    if layers > len(shapes):
        raise ModelError(
            "SPECC-E0252", "the GGUF's metadata has more layers than there are tensors", where=meta.where,
            expected=f"a block_count of at most {len(shapes)}", found=str(layers),
            cure="convert the model again with llama.cpp's convert_hf_to_gguf.py",
        )  # fmt: skip
    heads = meta.integer("attention.head_count")
    hidden = meta.integer("embedding_length")
    head_dim = meta.integer("attention.key_length", hidden // heads)
    config = {
        "hidden_size": hidden,
        "intermediate_size": meta.integer("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon", 1e-5),
        "max_position_embeddings": meta.integer("context_length"),
        "vocab_size": shapes["token_embd.weight"][0],
        "tie_word_embeddings": "output.weight" not in shapes,
        "bos_token_id": meta.fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _ends(meta),
        "pad_token_id": meta.fields.get("tokenizer.ggml.padding_token_id"),
        "rope_parameters": _rope(meta, head_dim),
    }
    config.update(specific(meta, config, shapes))
    return config


def _ends(meta: Metadata) -> int | list[int] | None:
    """End-of-sequence and end-of-turn ids: generation stops at either."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [meta.fields.get(f"tokenizer.ggml.{key}") for key in keys]
    found = list(dict.fromkeys(int(i) for i in ids if i is not None))
    return None if not found else found[0] if len(found) == 1 else found


def _rope(meta: Metadata, head_dim: int) -> dict[str, Any]:
    """`rope_parameters`: base, rotary part of the head, scaling."""
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": meta.number("rope.freq_base", 10000.0),
    }
    rotary = meta.integer("rope.dimension_count", head_dim)
    if rotary != head_dim:
        rope["partial_rotary_factor"] = rotary / head_dim
    kind = meta.get("rope.scaling.type", "none")
    if kind in ("none", "longrope"):  # longrope's factors are tensors
        return rope
    if kind not in ("linear", "yarn"):
        raise ModelError(
            "SPECC-E0252",
            f"rope scaling {kind} is not known",
            where=meta.where,
            expected="linear or yarn",
            cure="use the model's Hugging Face folder",
        )
    rope["rope_type"] = kind
    rope["factor"] = meta.number("rope.scaling.factor")
    if kind == "yarn":
        rope["original_max_position_embeddings"] = meta.integer(
            "rope.scaling.original_context_length", meta.integer("context_length")
        )
    return rope


Specific = Callable[[Metadata, dict[str, Any], Mapping[str, tuple[int, ...]]], dict[str, Any]]


def _llama(
    meta: Metadata, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    if meta.integer("expert_count", 0):
        raise ModelError("SPECC-E0251", "GGUFs of llama with experts (mixtral) are not supported",
                         where=meta.where, cure="use the model's Hugging Face folder")  # fmt: skip
    return {
        "model_type": "llama",
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_gate.bias" in shapes,
    }


def _smollm3(
    meta: Metadata, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    # llama.cpp: every fourth layer has no rope, known by architecture alone.
    layers = config["num_hidden_layers"]
    return {
        "model_type": "smollm3",
        "no_rope_layers": [int((i + 1) % 4 != 0) for i in range(layers)],
        "use_sliding_window": False,
    }


def _granite(
    meta: Metadata, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    if meta.integer("expert_count", 0):
        raise ModelError("SPECC-E0251", "GGUF architecture granite with experts is not supported",
                         where=meta.where, cure="use the model's Hugging Face folder")  # fmt: skip
    return {
        "model_type": "granite",
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_gate.bias" in shapes,
        "attention_multiplier": meta.number("attention.scale", config["head_dim"] ** -0.5),
        "embedding_multiplier": meta.number("embedding_scale", 1.0),
        "residual_multiplier": meta.number("residual_scale", 1.0),
        "logits_scaling": meta.number("logit_scale", 1.0),
    }


def _qwen2(
    meta: Metadata, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    return {"model_type": "qwen2", "use_sliding_window": False}


def _qwen3(
    meta: Metadata, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "use_sliding_window": False,
        "attention_bias": "blk.0.attn_q.bias" in shapes,
    }


def _qwen3moe(
    meta: Metadata, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe",
        "use_sliding_window": False,
        "num_experts": meta.integer("expert_count"),
        "num_experts_per_tok": meta.integer("expert_used_count"),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,  # llama.cpp normalises for this architecture
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _gemma(
    meta: Metadata, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    return {"model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(
    meta: Metadata, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    return {
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": meta.integer("attention.sliding_window", 4096),
        "layer_types": _pattern(layers, 2),
        "attn_logit_softcapping": meta.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": meta.number("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _scalar(config, layers == 46),
    }


def _gemma3(
    meta: Metadata, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    pattern = meta.get("attention.sliding_window_pattern", 6)
    cap = meta.get("final_logit_softcapping")
    return {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": meta.integer("attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if windowed else "full_attention" for windowed in pattern
        ] if isinstance(pattern, list) else _pattern(layers, int(pattern)),
        "final_logit_softcapping": None if cap is None else meta.number("final_logit_softcapping"),
        "query_pre_attn_scalar": _scalar(config, layers == 62),
        # Scaling is for the full layers alone; windowed ones keep their own base.
        "rope_parameters": {
            "full_attention": config["rope_parameters"],
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": meta.number("rope.freq_base_swa", 10000.0),
            },
        },
    }  # fmt: skip


def _pattern(layers: int, period: int) -> list[str]:
    """Windowed layers, and a full one at the end of each period."""
    return [
        "full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)
    ]


def _scalar(config: dict[str, Any], is_27b: bool) -> int:
    """Gemma scales queries by head width, its 27B by hidden over heads; llama.cpp tells it by the number of layers."""
    if is_27b:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


def _phi3(
    meta: Metadata, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    window = meta.integer("attention.sliding_window", 0)
    original = meta.integer(
        "rope.scaling.original_context_length", config["max_position_embeddings"]
    )
    return {
        "model_type": "phi3",
        "sliding_window": window or None,
        "original_max_position_embeddings": original,
    }


ARCHITECTURES: dict[str, Specific] = {
    "llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3, "qwen3moe": _qwen3moe, "gemma": _gemma,
    "gemma2": _gemma2, "gemma3": _gemma3, "phi3": _phi3, "smollm3": _smollm3, "granite": _granite,
}  # fmt: skip
"""What is added to the common part, by `general.architecture`."""

PERMUTED = {"llama", "smollm3", "granite"}
"""Architectures whose query and key rows are stored for interleaved rope; transformers wants halves."""

NORM_PLUS_ONE = {"gemma", "gemma2", "gemma3"}
"""Architectures whose norm weights are stored with the 1 that transformers adds itself."""
