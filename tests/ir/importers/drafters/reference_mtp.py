"""MTP layers: the wrapper from the DeepSeek-V3 report (arXiv 2412.19437) and the formats, eager.

The decoder layer inside is transformers' own code for the target's architecture.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from tests.ir.importers.drafters.reference import Raw, embedding_of, head_of, hidden_states, rms

_CLASSES = {
    "deepseek_v3": "DeepseekV3", "glm4_moe": "Glm4Moe", "qwen3_next": "Qwen3Next", "qwen3_5_text": "Qwen3_5",
    "qwen3_5_moe_text": "Qwen3_5Moe", "qwen3": "Qwen3", "mimo": "Qwen2",
}  # fmt: skip
_NAMES = (
    # layer, token norm, feature norm, fc, norm, hidden state first
    ("mtp.layers.0", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm", False),
    ("model.mtp_layers.0", "model.mtp_layers.0.token_layernorm", "model.mtp_layers.0.hidden_layernorm",
     "model.mtp_layers.0.input_proj", "model.mtp_layers.0.final_layernorm", True),
    ("mtp_layers.0", "mtp_layers.0.token_layernorm", "mtp_layers.0.hidden_layernorm", "mtp_layers.0.input_proj",
     "mtp_layers.0.final_layernorm", False),
)  # fmt: skip


def _names(raw: Raw) -> tuple[str, str, str, str, str, bool] | None:
    last = f"model.layers.{raw.config.get('num_hidden_layers')}"
    deepseek = (
        last,
        f"{last}.enorm",
        f"{last}.hnorm",
        f"{last}.eh_proj",
        f"{last}.shared_head.norm",
        False,
    )
    return next((n for n in (*_NAMES, deepseek) if f"{n[3]}.weight" in raw.tensors), None)


def has_layers(raw: Raw) -> bool:
    return _names(raw) is not None


def _module(raw: Raw, prefix: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The decoder layer with its weights, and its rotary embedding."""
    kind = raw.config["model_type"]
    home = {"mimo": "qwen2", "qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe"}.get(
        kind, kind
    )
    code = importlib.import_module(f"transformers.models.{home}.modeling_{home}")
    values = {
        k: v
        for k, v in raw.config.items()
        if k not in ("architectures", "model_type", "text_config")
    }
    values["layer_types"] = ["full_attention"] * values["num_hidden_layers"]
    config = AutoConfig.for_model("qwen2" if kind == "mimo" else kind, **values)
    config._attn_implementation = config._experts_implementation = "eager"
    layer: Any = getattr(code, f"{_CLASSES[kind]}DecoderLayer")(
        config, values["num_hidden_layers"] - 1
    )
    if not hasattr(layer, "self_attn"):
        raise AssertionError("this is no layer of full attention")
    own = {
        n.removeprefix(f"{prefix}."): t
        for n, t in raw.tensors.items()
        if n.startswith(f"{prefix}.")
    }
    own = {n: t for n, t in own.items() if n.split(".")[0] in dict(layer.named_children())}
    missing = layer.load_state_dict(_stacked(own), strict=True)
    assert not missing.missing_keys
    name = _CLASSES[kind]
    rotary = next(
        n for n in (f"{name}RotaryEmbedding", f"{name}TextRotaryEmbedding") if hasattr(code, n)
    )
    return layer.eval(), getattr(code, rotary)(config)


def _stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Experts in one tensor each way, as transformers keeps them."""
    found = {int(m[1]) for n in tensors if (m := re.match(r"mlp\.experts\.(\d+)\.", n))}
    if not found:
        return tensors
    rest = {n: t for n, t in tensors.items() if not n.startswith("mlp.experts.")}
    each = [f"mlp.experts.{e}" for e in sorted(found)]
    both = [
        torch.cat([tensors[f"{n}.gate_proj.weight"], tensors[f"{n}.up_proj.weight"]]) for n in each
    ]
    return {
        **rest, "mlp.experts.gate_up_proj": torch.stack(both),
        "mlp.experts.down_proj": torch.stack([tensors[f"{n}.down_proj.weight"] for n in each]),
    }  # fmt: skip


def draft(raw: Raw, model: PreTrainedModel, committed: list[int], k: int) -> list[int]:
    names = _names(raw)
    assert names is not None
    prefix, token_norm, feature_norm, fc, norm, hidden_first = names
    layer, rotary = _module(raw, prefix)
    offset = 1.0 if raw.config["model_type"].startswith(("qwen3_next", "qwen3_5")) else 0.0
    eps = float(raw.config.get("rms_norm_eps", 1e-6))

    def normed(x: Tensor, name: str) -> Tensor:
        return rms(x, offset + raw[f"{name}.weight"], eps)

    table, head = embedding_of(model), head_of(model)
    features = hidden_states(model, committed[:-1])[-1]
    tokens, drafts = list(committed[1:]), []
    for _ in range(k):
        e, h = normed(table[tokens], token_norm), normed(features, feature_norm)
        x = raw.linear(torch.cat([h, e] if hidden_first else [e, h], -1), fc)
        rows, positions = len(tokens), torch.arange(len(tokens))[None]
        mask = torch.full((rows, rows), -torch.inf).triu(1)[None, None]
        out = layer(
            x[None], position_embeddings=rotary(x[None], positions), attention_mask=mask, position_ids=positions
        )  # fmt: skip
        out = out[0] if isinstance(out, tuple) else out
        last = normed(out[0, -1:], norm)
        drafts.append(int((head @ last[0]).argmax()))
        features, tokens = torch.cat([features, last]), [*tokens, drafts[-1]]
    return drafts
