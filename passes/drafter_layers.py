"""The decoder layers of a drafter checkpoint, as leaves."""

from __future__ import annotations

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Owner, StateBuffer, StateKind, TensorType, Weight
from specc.ir.dialect import ops
from specc.ir.importers.drafters import DrafterCheckpoint, DrafterSpec, Layer, Rope
from specc.passes.drafter_attention import TABLE, attending, kept_sizes
from specc.passes.drafter_mlps import ACTIVATIONS, after_attention
from specc.passes.head_rows import at_places
from specc.passes.leaf_writer import PREFIX, LeafWriter

aten = torch.ops.aten


def given(drafter: DrafterCheckpoint | None) -> DrafterCheckpoint:
    """`drafter`; raises PassError (SPECC-E0354) if there is none."""
    if drafter is None:
        raise PassError("SPECC-E0354", "no drafter was given", cure="add --drafter DIR")
    return drafter


def refuse_unknown_layers(spec: DrafterSpec) -> None:
    """Raise PassError (SPECC-E0366) for a layer or rope that this file cannot write."""
    for number, layer in enumerate(spec.layers):
        unknown = None
        if layer.mlp.activation not in ACTIVATIONS:
            unknown = f"the activation {layer.mlp.activation}"
        elif spec.rope is None:
            unknown = "no rotary positions"
        if unknown is not None:
            raise PassError(
                "SPECC-E0366", f"a {spec.kind} drafter with {unknown} is not built yet",
                where=f"layer {number} of the drafter", expected=f"rotary positions, and {', '.join(ACTIVATIONS)}",
                cure="choose another drafter, or --method suffix",
            )  # fmt: skip


def rope_tables(rope: Rope, inverse: torch.Tensor, rows: int, shift: int) -> dict[str, Weight]:
    """Cosines and sines f32[rows, dim] of row positions 0.. + shift, as LeafWriter.rotate reads them."""
    at = torch.arange(rows, dtype=torch.float32) + shift
    angles = at[:, None] * inverse.float()[None]
    angles = torch.cat([angles, angles], -1)
    scale = rope.attention_scale
    return {
        f"{TABLE}.cos": Weight.of(angles.cos() * scale),
        f"{TABLE}.sin": Weight.of(angles.sin() * scale),
    }


def drafter_weights(drafter: DrafterCheckpoint, rows: int) -> dict[str, Weight]:
    """What is computed from a checkpoint: rope tables of `rows` positions, and where draft ids are mapped, @draft.t2d.

    That is the draft id of each of the target's ids, i64[V]; Vd for those that have none.
    """
    spec, weights = drafter.spec, {}
    if spec.rope is not None:
        inverse = drafter.weights["rope.inv_freq"].load()
        weights = rope_tables(spec.rope, inverse, rows, spec.position_shift)
    if spec.mapped:
        ids = torch.full((spec.vocab_size,), spec.draft_vocab_size)
        ids[drafter.weights["d2t"].load()] = torch.arange(spec.draft_vocab_size)
        weights[f"{PREFIX}t2d"] = Weight.of(ids)
    return weights


def by_target_id(writer: LeafWriter, mapped: bool, logits: fx.Node) -> fx.Node:
    """Logits [T, Vd] of draft ids -> [T, V] of the target's ids, -inf for those that have none."""
    return at_places(writer.op, logits, writer.weight(f"{PREFIX}t2d")) if mapped else logits


def caches(spec: DrafterSpec) -> list[StateBuffer]:
    """Keys and values of every layer."""
    buffers = []
    for number, layer in enumerate(spec.layers):
        heads, *widths = kept_sizes(layer.attention)
        for letter, width in zip("kv", widths, strict=True):
            buffers.append(
                StateBuffer(
                    f"drafter.{letter}.{number}", TensorType("f32", (heads, "S", width)),
                    StateKind.KV_CACHE, Owner.DRAFTER,
                )
            )  # fmt: skip
    return buffers


class LayerWriter:
    """Writes layer `number` of `spec` into a leaf."""

    def __init__(self, writer: LeafWriter, spec: DrafterSpec, number: int) -> None:
        self.writer, self.spec, self.number = writer, spec, number
        self.layer: Layer = spec.layers[number]
        self.name = f"{PREFIX}layers.{number}"
        self.attention = attending(writer, spec, self.layer.attention, f"{self.name}.self_attn")

    def norm(self, x: fx.Node, name: str) -> fx.Node:
        return self.writer.norm(x, f"{self.name}.{name}", self.spec.norm_eps)

    def read(self, x: fx.Node, embedding: fx.Node | None = None) -> tuple[fx.Node, fx.Node]:
        """What attention reads, and the residual: of a feature and an embedding where the layer takes both."""
        if self.layer.hidden_norm:
            assert embedding is not None
            normed = self.norm(x, "hidden_norm")
            pair = self.writer.cat(self.norm(embedding, "input_layernorm"), normed)
            return pair, normed if self.layer.norm_before_residual else x
        return (self.norm(x, "input_layernorm") if self.layer.input_norm else x), x

    def keys_and_values(self, x: fx.Node, positions: fx.Node, rows: fx.Node) -> None:
        """Write keys and values of x [T, input] to the layer's cache."""
        for letter, part in zip("kv", self.attention.keys_and_values(x, positions), strict=True):
            self.writer.keep(f"drafter.{letter}.{self.number}", part, rows)

    def attend(
        self,
        x: fx.Node,
        positions: fx.Node,
        seen: tuple[fx.Node, fx.Node],
        window: int | None = None,
        parents: fx.Node | None = None,
    ) -> fx.Node:
        """Attention of x [T, input] at `positions` -> [T, H].

        `seen`: the positions and rows that cached_attention takes; `window`: another than the layer's; `parents`: of
        rows that are a tree.
        """
        writer, attention = self.writer, self.attention
        width_seen = attention.window if window is None else window
        query, gate = attention.queries(x, positions)
        attended = writer.op(
            ops.cached_attention.default, query, writer.state(f"drafter.k.{self.number}"),
            writer.state(f"drafter.v.{self.number}"), *seen, parents, attention.scale, width_seen, 0.0, None,
        )  # fmt: skip
        if gate is not None:
            attended = writer.op(aten.mul.Tensor, attended, gate)
        heads = self.layer.attention.heads
        flat = writer.op(
            aten.reshape.default, attended, [-1, heads * kept_sizes(self.layer.attention)[2]]
        )
        return writer.linear(flat, f"{self.name}.self_attn.o_proj")

    def finish(self, attended: fx.Node, residual: fx.Node) -> fx.Node:
        """Residual and MLP, or experts -> what the layer gives [T, H]."""
        x = self.writer.op(aten.add.Tensor, residual, attended)
        normed = self.norm(x, "post_attention_layernorm")
        mixed = after_attention(self.writer, f"{self.name}.mlp", self.layer.mlp, normed)
        return self.writer.op(aten.add.Tensor, x, mixed)
