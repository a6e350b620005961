"""EAGLE-1 (arXiv 2401.15077), EAGLE-3 (2503.01840), P-EAGLE (2602.01469) and Medusa (2401.10774), eager."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DeepseekV3Config, PreTrainedModel
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)

from tests.ir.importers.drafters.reference import (
    Raw,
    attend,
    causal,
    embedding_of,
    head_of,
    hidden_states,
    rotary,
    turn,
)


def _latent(raw: Raw, x: Tensor, name: str, positions: Tensor, allowed: Tensor) -> Tensor:
    """transformers' own DeepSeek-V3 attention, whose first projections read as many channels as `x` has."""
    names = {n.removeprefix(f"{name}."): t for n, t in raw.tensors.items() if n.startswith(name)}
    values = {k: v for k, v in raw.config.items() if k not in ("architectures", "model_type")}
    config = DeepseekV3Config(**values)
    config._attn_implementation = "eager"
    module = DeepseekV3Attention(config, 0)
    for which in ("q_a_proj", "q_proj", "kv_a_proj_with_mqa"):
        if f"{which}.weight" in names:
            rows, columns = names[f"{which}.weight"].shape
            setattr(module, which, torch.nn.Linear(columns, rows, bias=False))
    module.load_state_dict(names, strict=True)
    tables = DeepseekV3RotaryEmbedding(config)(x[None], positions[None])
    mask = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)[None, None]
    with torch.no_grad():
        return module(x[None], position_embeddings=tables, attention_mask=mask)[0][0]


def _attention(raw: Raw, x: Tensor, name: str, positions: Tensor, allowed: Tensor) -> Tensor:
    if f"{name}.kv_a_proj_with_mqa.weight" in raw.tensors:
        return _latent(raw, x, name, positions, allowed)
    tables = rotary(raw.config, raw.head_dim, positions)
    q = turn(raw.heads(x, f"{name}.q_proj", f"{name}.q_norm"), tables)
    k = turn(raw.heads(x, f"{name}.k_proj", f"{name}.k_norm"), tables)
    mixed = attend(q, k, raw.heads(x, f"{name}.v_proj"), allowed, raw.head_dim**-0.5)
    return raw.linear(mixed, f"{name}.o_proj")


def _finish(raw: Raw, residual: Tensor, attended: Tensor, name: str) -> Tensor:
    x = residual + attended
    return x + raw.mlp(raw.rms(x, f"{name}.post_attention_layernorm.weight"), f"{name}.mlp")


def _plain_layer(raw: Raw, x: Tensor, name: str, positions: Tensor, allowed: Tensor) -> Tensor:
    norm = f"{name}.input_layernorm.weight"
    read = raw.rms(x, norm) if norm in raw.tensors else x
    return _finish(raw, x, _attention(raw, read, f"{name}.self_attn", positions, allowed), name)


def _paired_layer(
    raw: Raw, e: Tensor, f: Tensor, name: str, positions: Tensor, allowed: Tensor
) -> Tensor:
    normed = raw.rms(f, f"{name}.hidden_norm.weight")
    both = torch.cat([raw.rms(e, f"{name}.input_layernorm.weight"), normed], -1)
    residual = normed if raw.config.get("norm_before_residual") else f
    return _finish(
        raw, residual, _attention(raw, both, f"{name}.self_attn", positions, allowed), name
    )


def eagle1(raw: Raw, model: PreTrainedModel, committed: list[int], k: int) -> list[int]:
    """Features after the target's final norm; fc reads [embedding of the next token; feature]."""
    table = raw.tensors.get("embed_tokens.weight", embedding_of(model))
    features = hidden_states(model, committed[:-1])[-1]
    tokens = list(committed[1:])
    drafts: list[int] = []
    for _ in range(k):
        x = raw.linear(torch.cat([table[tokens], features], -1), "fc")
        positions = torch.arange(len(tokens))
        for i in range(raw.config["num_hidden_layers"]):
            x = _plain_layer(raw, x, f"layers.{i}", positions, causal(len(tokens)))
        drafts.append(int((head_of(model) @ x[-1]).argmax()))
        features, tokens = torch.cat([features, x[-1:]]), [*tokens, drafts[-1]]
    return drafts


def taps_of(raw: Raw, layers: int) -> list[int]:
    """Hidden-state indices of an EAGLE-3, by the conventions of its format."""
    if "speculators_model_type" in raw.outer:
        said = raw.outer.get("eagle_aux_hidden_state_layer_ids")
        return said or [2, layers // 2, layers - 3]
    if raw.outer["architectures"] == ["Qwen3Eagle3Model"]:
        return [i + 1 for i in raw.outer["target_layer_ids"]]
    said = (raw.outer.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return [i + 1 for i in said] if said else [2, layers // 2, layers - 3]


def _fused(raw: Raw, taps: list[Tensor]) -> Tensor:
    if "fc_norm.0.weight" in raw.tensors:
        taps = [raw.rms(t, f"fc_norm.{i}.weight") for i, t in enumerate(taps)]
    return _project(raw, torch.cat(taps, -1))


def _project(raw: Raw, joined: Tensor) -> Tensor:
    if "input_norm.weight" in raw.tensors:
        joined = raw.rms(joined, "input_norm.weight")
    return raw.linear(joined, "fc")


def _taps(raw: Raw, model: PreTrainedModel, tokens: list[int]) -> list[Tensor]:
    states = hidden_states(model, tokens)
    return [states[j] for j in taps_of(raw, len(states) - 1)]


def _stack(raw: Raw, e: Tensor, f: Tensor, positions: Tensor, allowed: Tensor) -> Tensor:
    first = "midlayer" if "midlayer.hidden_norm.weight" in raw.tensors else "layers.0"
    x = _paired_layer(raw, e, f, first, positions, allowed)
    for i in range(1, raw.config["num_hidden_layers"]):
        x = _plain_layer(raw, x, f"layers.{i}", positions, allowed)
    return x


def eagle3(raw: Raw, model: PreTrainedModel, committed: list[int], k: int) -> list[int]:
    """fc over the taps; what the last layer gives is the next feature, normed first where norm_output is set."""
    table = raw.tensors.get("embed_tokens.weight", embedding_of(model))
    features, tokens = _fused(raw, _taps(raw, model, committed[:-1])), list(committed[1:])
    start = 1 if "speculators_model_type" in raw.outer else 0
    drafts: list[int] = []
    for _ in range(k):
        positions = torch.arange(len(tokens)) + start
        last = _stack(raw, table[tokens], features, positions, causal(len(tokens)))[-1:]
        normed = raw.rms(last, "norm.weight")
        drafts.append(int(raw.target_ids((raw.linear(normed, "lm_head")).argmax())))
        fed = normed if raw.config.get("norm_output") else last
        features, tokens = torch.cat([features, fed]), [*tokens, drafts[-1]]
    return drafts


def peagle(raw: Raw, model: PreTrainedModel, committed: list[int], k: int) -> list[int]:
    """One pass: after the true pairs, k - 1 rows of mask token and mask feature at the positions that follow."""
    taps = torch.cat(_taps(raw, model, committed[:-1]), -1)
    joined = torch.cat([taps, raw["mask_hidden"].reshape(1, -1).expand(k - 1, -1)])
    features = _project(raw, joined)
    tokens = committed[1:] + [raw.config["mask_token_id"]] * (k - 1)
    rows = len(tokens)
    x = _stack(raw, raw["embed_tokens.weight"][tokens], features, torch.arange(rows), causal(rows))
    logits = raw.linear(raw.rms(x[-k:], "norm.weight"), "lm_head")
    return [int(raw.target_ids(row.argmax())) for row in logits]


def medusa(raw: Raw, model: PreTrainedModel, committed: list[int], k: int) -> list[int]:
    """Each head on the hidden state that gave the last token."""
    prefix = next(n for n in raw.tensors if n.endswith("0.0.linear.weight")).removesuffix(
        "0.0.linear.weight"
    )
    last = hidden_states(model, committed[:-1])[-1][-1]
    drafts: list[int] = []
    while len(drafts) < k and f"{prefix}{len(drafts)}.0.linear.weight" in raw.tensors:
        name, x, block = f"{prefix}{len(drafts)}", last, 0
        while f"{name}.{block}.linear.weight" in raw.tensors:
            x = x + functional.silu(raw.linear(x, f"{name}.{block}.linear"))
            block += 1
        matrix = raw.tensors.get(f"{name}.{block}.weight", head_of(model))
        drafts.append(int((matrix @ x).argmax()))
    return drafts
