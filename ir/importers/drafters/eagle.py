"""EAGLE-1/2, EAGLE-3 and P-EAGLE: the tensors that all their formats share. What differs comes as arguments."""

from __future__ import annotations

from dataclasses import dataclass

from specc.ir.importers.drafters.experts import read_latent
from specc.ir.importers.drafters.layers import (
    Parts,
    attention_sizes,
    check_target,
    read_embedding,
    read_head,
    read_layer,
    read_rows_of_head,
)
from specc.ir.importers.drafters.positions import latent_rope, rope
from specc.ir.importers.drafters.spec import (
    Block,
    DrafterCheckpoint,
    DrafterSpec,
    Fuse,
    Kind,
    Ownership,
    Recycle,
)
from specc.ir.importers.drafters.vocabulary import draft_ids
from specc.ir.weights import Weight, WeightStore


@dataclass(frozen=True)
class Eagle3Conventions:
    """What an EAGLE-3 format says in keys of its own. Taps are hidden-state indices."""

    source: str
    taps: tuple[int, ...]
    first_layer: str = "layers.0"
    target_layers: int | None = None
    per_tap_norm: bool = False
    pre_norm: bool = False
    norm_before_residual: bool = False
    recycle: Recycle = Recycle.PRE_NORM
    position_shift: int = 0
    speculative_tokens: int = 0
    mask_token_id: int | None = None
    """Of a P-EAGLE, which also has a `mask_hidden`."""
    head_of_target: bool = False
    """There is no head in the checkpoint: rows of the target's, those of the draft vocabulary, are meant."""


def read_eagle1(parts: Parts, source: str) -> DrafterCheckpoint:
    """EAGLE-1: fc over [embedding; final hidden state], then a layer without a norm before its attention.

    Its output is a feature of the next position, and feeds the target's head as it is.
    """
    config = parts.config
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    count, layers = config.integer("num_hidden_layers"), parts.target.num_layers
    check_target(parts, hidden=hidden, vocab=vocab)
    parts.take("fc.weight", [hidden, 2 * hidden])
    bias = config.flag("bias", True)  # what SafeAILab's code takes where the key is absent
    if bias:
        parts.take("fc.bias", [hidden])
    read = [
        read_layer(parts, f"layers.{i}", i, hidden, input_norm=i > 0, window=0)
        for i in range(count)
    ]
    described, frequencies = rope(config, attention_sizes(config, hidden)[2])
    parts.weights["rope.inv_freq"] = frequencies
    size = min(vocab, parts.target.rows)
    embedding = read_embedding(parts, "embed_tokens.weight", hidden, size)
    head = read_head(parts, "lm_head.weight", hidden, size)
    rows = int(parts.weights["lm_head.weight"].type.shape[0])
    parts.conventions |= {
        "feature": "after the target's final norm",
        "head": f"{head}, without a norm",
    }
    spec = DrafterSpec(
        Kind.EAGLE, source, hidden, hidden, layers, rows, rows, (layers,),
        Fuse(bias=bias, tokens=True), tuple(read), described, norm=False,
        norm_eps=config.number("rms_norm_eps", 1e-6), recycle=Recycle.PRE_NORM,
        embedding=embedding, head=head, conventions=parts.conventions,
    )  # fmt: skip
    return DrafterCheckpoint(spec, WeightStore(parts.weights))


def read_eagle3(parts: Parts, said: Eagle3Conventions) -> DrafterCheckpoint:
    """EAGLE-3 and P-EAGLE: fc over taps, a first layer that reads token and feature, an own norm and head.

    Attention is latent where the configuration has a `kv_lora_rank`, as DeepSeek's have.
    """
    config, tensors, target = parts.config, parts.tensors, parts.target
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    theirs = config.integer("target_hidden_size", hidden)
    check_target(parts, hidden=theirs, vocab=vocab, layers=said.target_layers, taps=said.taps)
    count = len(said.taps)
    parts.take("fc.weight", [hidden, count * theirs])
    if said.per_tap_norm:
        for tap in range(count):
            parts.take(f"fc_norm.{tap}.weight", [theirs])
    if said.pre_norm:
        parts.take("input_norm.weight", [count * theirs])
    names = (
        f"layers.{i}" if i else said.first_layer
        for i in range(config.integer("num_hidden_layers", 1))
    )
    latent = config.get("kv_lora_rank") is not None
    layers = [
        read_layer(
            parts, name, i, hidden, paired=i == 0, latent=read_latent if latent else None,
            norm_before_residual=said.norm_before_residual and i == 0,
        )
        for i, name in enumerate(names)
    ]  # fmt: skip
    parts.take("norm.weight", [hidden])
    described, frequencies = (
        latent_rope(config) if latent else rope(config, attention_sizes(config, hidden)[2])
    )
    parts.weights["rope.inv_freq"] = frequencies
    drafts = config.integer("draft_vocab_size", vocab)
    ids, how = draft_ids(tensors, drafts, vocab)
    if ids is not None:
        parts.weights["d2t"] = Weight.of(ids)
    size = min(vocab, target.rows)
    embedding = read_embedding(parts, "embed_tokens.weight", hidden, size)
    if said.head_of_target:
        head = read_rows_of_head(parts, "lm_head.weight", hidden, size, ids)
    else:
        head = read_head(
            parts, "lm_head.weight", hidden, size if ids is None else drafts, required=True
        )
    rows = int(parts.weights["lm_head.weight"].type.shape[0])
    block = _masks(parts, said, count * theirs)
    parts.conventions |= {
        "taps": f"hidden states {', '.join(map(str, said.taps))}", "vocabulary": how,
        "embedding": str(embedding), "head": str(head), "recycled": str(said.recycle),
    }  # fmt: skip
    spec = DrafterSpec(
        Kind.PEAGLE if block else Kind.EAGLE3, said.source, hidden, theirs, target.num_layers,
        vocab if ids is not None else rows, drafts if ids is not None else rows, said.taps,
        Fuse(per_tap_norm=said.per_tap_norm, pre_norm=said.pre_norm), tuple(layers), described,
        said.position_shift, norm_eps=config.number("rms_norm_eps", 1e-6),
        recycle=Recycle.NONE if block else said.recycle, embedding=embedding, head=head, block=block,
        speculative_tokens=said.speculative_tokens, conventions=parts.conventions,
    )  # fmt: skip
    return DrafterCheckpoint(spec, WeightStore(parts.weights))


def _masks(parts: Parts, said: Eagle3Conventions, width: int) -> Block | None:
    """A P-EAGLE's masks. Row 0 is the last token with its feature, so all rows of its block draft."""
    if said.mask_token_id is None:
        return None
    stored = parts.tensors.take("mask_hidden", [1, 1, width])
    parts.weights["mask_hidden"] = stored.derive(
        "reshape", type(stored.type)("f32", (width,)), lambda t: t.reshape(-1)
    )
    return Block(said.speculative_tokens, True, said.mask_token_id)


def eagle3_taps(layers: int) -> tuple[int, int, int]:
    """The taps of checkpoints that name none: low, middle and high, as every trainer's default has them."""
    return 2, layers // 2, layers - 3


__all__ = ["Eagle3Conventions", "Ownership", "eagle3_taps", "read_eagle1", "read_eagle3"]
