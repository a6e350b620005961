"""DFlash (arXiv 2602.06036) and DSpark (2607.05147), eager."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.ir.importers.drafters.reference import (
    Raw,
    attend,
    embedding_of,
    head_of,
    hidden_states,
    rotary,
    turn,
)


def _keys(raw: Raw) -> dict[str, Any]:
    """All keys in one place: a DFlash keeps half of them in a section."""
    return {**raw.config, **(raw.outer.get("dflash_config") or {})}


def taps_of(raw: Raw, keys: dict[str, Any]) -> list[int]:
    """Hidden-state indices."""
    if "speculators_model_type" in raw.outer:
        return list(keys["aux_hidden_state_layer_ids"])
    said = keys.get("target_layer_ids")
    if said is None:
        layers, count = keys["num_target_layers"], keys["num_hidden_layers"]
        last = layers - 3
        said = (
            [layers // 2]
            if count == 1
            else [round(1 + i * (last - 1) / (count - 1)) for i in range(count)]
        )
    return [i + 1 for i in said]


def anchor_first(raw: Raw, keys: dict[str, Any]) -> bool:
    """Whether row 0 of the block gives the first draft."""
    for flag in ("sample_from_anchor", "query_zero_predicts_next"):
        if keys.get(flag) is not None:
            return bool(keys[flag])
    kind = raw.outer.get("speculators_model_type")
    if kind == "dspark":
        methods = raw.outer["speculators_config"]["proposal_methods"]
        return bool(methods[0]["speculative_tokens"] == keys["block_size"])
    return raw.outer["architectures"][0] in ("Qwen3DSparkModel", "DSparkDraftModel")


def _allowed(raw: Raw, keys: dict[str, Any], layer: int, context: int, size: int) -> Tensor:
    """bool[size, context + size]: what the rows of a block at `context` see."""
    windowed = (keys.get("layer_types") or ["full_attention"] * 99)[layer] == "sliding_attention"
    speculators = "speculators_model_type" in raw.outer
    explicit = keys.get("causal", keys.get("is_causal"))
    if speculators:
        causal = windowed and not keys.get("sliding_window_non_causal")
    else:
        causal = windowed if explicit is None else explicit
    rows, at = torch.arange(size)[:, None] + context, torch.arange(context + size)[None]
    seen = at <= rows if causal else torch.ones(size, context + size, dtype=torch.bool)
    if windowed:
        first = (
            context - keys["sliding_window"] if speculators else rows - keys["sliding_window"] + 1
        )
        seen = seen & ((at >= first) | (at >= context))
    return seen


def draft(
    raw: Raw, model: PreTrainedModel, committed: list[int], k: int
) -> tuple[list[int], list[float]]:
    """All drafts of one block, and the confidence in each if the drafter has such a head."""
    del k  # a block is drafted whole; who wants fewer takes the first
    keys = _keys(raw)
    states = hidden_states(model, committed[:-1])
    joined = torch.cat([states[j] for j in taps_of(raw, keys)], -1)
    context = raw.rms(raw.linear(joined, "fc"), "hidden_norm.weight")
    start, size = len(context), int(keys["block_size"])
    table = raw.tensors.get("embed_tokens.weight", embedding_of(model))
    x = table[[committed[-1]] + [keys["mask_token_id"]] * (size - 1)]
    tables = rotary(raw.config, raw.head_dim, torch.arange(start + size))
    of_block = tuple(t[start:] for t in tables)
    for i in range(keys["num_hidden_layers"]):
        name = f"layers.{i}"
        read = raw.rms(x, f"{name}.input_layernorm.weight")
        both, attn = torch.cat([context, read]), f"{name}.self_attn"
        q = turn(raw.heads(read, f"{attn}.q_proj", f"{attn}.q_norm"), of_block)
        key = turn(raw.heads(both, f"{attn}.k_proj", f"{attn}.k_norm"), tables)
        mixed = attend(
            q, key, raw.heads(both, f"{attn}.v_proj"), _allowed(raw, keys, i, start, size), raw.head_dim**-0.5
        )  # fmt: skip
        x = x + raw.linear(mixed, f"{attn}.o_proj")
        x = x + raw.mlp(raw.rms(x, f"{name}.post_attention_layernorm.weight"), f"{name}.mlp")
    hidden = raw.rms(x, "norm.weight")
    if not anchor_first(raw, keys):
        hidden = hidden[1:]
    logits = hidden @ raw.tensors.get("lm_head.weight", head_of(model)).T
    return _walk(raw, keys, hidden, logits, committed[-1])


def _walk(
    raw: Raw, keys: dict[str, Any], hidden: Tensor, logits: Tensor, anchor: int
) -> tuple[list[int], list[float]]:
    prefix = "logit_head." if any(n.startswith("logit_head.") for n in raw.tensors) else ""
    markov = f"{prefix}markov_head"
    first = raw.tensors.get(f"{markov}.markov_w1.weight")
    state = torch.zeros(0 if first is None else first.shape[1])
    before, drafts, confidences = anchor, [], []
    for h, row in zip(hidden, logits, strict=True):
        if first is not None:
            e = first[before]
            inner = e
            if keys.get("markov_head_type") == "gated":
                inner = torch.sigmoid(raw.linear(torch.cat([h, e]), f"{markov}.gate_proj")) * e
            elif keys.get("markov_head_type") == "rnn":
                g, c, o = raw.linear(torch.cat([state, e, h]), f"{markov}.joint_proj").chunk(3)
                state = torch.sigmoid(g) * state + (1 - torch.sigmoid(g)) * torch.tanh(c)
                inner = torch.tanh(o)
            row = row + raw[f"{markov}.markov_w2.weight"] @ inner
        if f"{prefix}confidence_head.proj.weight" in raw.tensors:
            reads = (
                torch.cat([h, first[before]])
                if keys.get("confidence_head_with_markov", True)
                else h
            )
            confidences.append(
                float(torch.sigmoid(raw.linear(reads, f"{prefix}confidence_head.proj")))
            )
        before = int(raw.target_ids(row.argmax()))
        drafts.append(before)
    return drafts, confidences
