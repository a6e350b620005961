"""The decoder layers of a drafter checkpoint, as leaves."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Owner, StateBuffer, StateKind, TensorType, Weight
from specc.ir.dialect import ops
from specc.ir.importers.drafters import Attention, DrafterCheckpoint, DrafterSpec, Layer, Mlp, Rope
from specc.passes.head_rows import at_places
from specc.passes.leaf_writer import PREFIX, LeafWriter

aten = torch.ops.aten
TABLE = f"{PREFIX}table"
_ACTIVATIONS: dict[str, tuple[Any, dict[str, str]]] = {
    "silu": (aten.silu.default, {}), "swish": (aten.silu.default, {}), "relu": (aten.relu.default, {}),
    "gelu": (aten.gelu.default, {}), "gelu_pytorch_tanh": (aten.gelu.default, {"approximate": "tanh"}),
}  # fmt: skip


def given(drafter: DrafterCheckpoint | None) -> DrafterCheckpoint:
    """`drafter`; raises PassError (SPECC-E0354) if there is none."""
    if drafter is None:
        raise PassError("SPECC-E0354", "no drafter was given", cure="add --drafter DIR")
    return drafter


def refuse_unknown_layers(spec: DrafterSpec) -> None:
    """Raise PassError (SPECC-E0366) for a layer or rope that this file cannot write."""
    for number, layer in enumerate(spec.layers):
        attention, mlp = layer.attention, layer.mlp
        unknown = None
        if not isinstance(attention, Attention):
            unknown = "latent attention"
        elif not isinstance(mlp, Mlp):
            unknown = "a mixture of experts"
        elif mlp.activation not in _ACTIVATIONS:
            unknown = f"the activation {mlp.activation}"
        elif spec.rope is None or spec.rope.interleaved:
            unknown = "its rotary positions"
        if unknown is not None:
            raise PassError(
                "SPECC-E0366", f"a {spec.kind} drafter with {unknown} is not built yet",
                where=f"layer {number} of the drafter", expected="attention by heads and a gated MLP",
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
        attention = layer.attention
        assert isinstance(attention, Attention)
        for letter in ("k", "v"):
            type_ = TensorType("f32", (attention.kv_heads, "S", attention.head_dim))
            buffers.append(
                StateBuffer(f"drafter.{letter}.{number}", type_, StateKind.KV_CACHE, Owner.DRAFTER)
            )
    return buffers


class LayerWriter:
    """Writes layer `number` of `spec` into a leaf."""

    def __init__(self, writer: LeafWriter, spec: DrafterSpec, number: int) -> None:
        self.writer, self.spec, self.number = writer, spec, number
        self.layer: Layer = spec.layers[number]
        assert isinstance(self.layer.attention, Attention)
        self.attention: Attention = self.layer.attention
        self.name = f"{PREFIX}layers.{number}"

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
        writer, width = self.writer, self.attention.head_dim
        key = writer.heads(writer.linear(x, f"{self.name}.self_attn.k_proj"), width)
        if self.attention.qk_norm:
            key = self.norm(key, "self_attn.k_norm")
        value = writer.heads(writer.linear(x, f"{self.name}.self_attn.v_proj"), width)
        writer.keep(f"drafter.k.{self.number}", writer.rotate(key, positions, TABLE), rows)
        writer.keep(f"drafter.v.{self.number}", value, rows)

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
        width, heads = attention.head_dim, attention.heads
        width_seen = attention.window if window is None else window
        query = writer.linear(x, f"{self.name}.self_attn.q_proj")
        gate = None
        if attention.gated:
            both = writer.heads(query, 2 * width)
            query = writer.op(aten.slice.Tensor, both, -1, 0, width)
            gate = writer.op(aten.slice.Tensor, both, -1, width, 2 * width)
        else:
            query = writer.heads(query, width)
        if attention.qk_norm:
            query = self.norm(query, "self_attn.q_norm")
        query = writer.rotate(query, positions, TABLE)
        attended = writer.op(
            ops.cached_attention.default, query, writer.state(f"drafter.k.{self.number}"),
            writer.state(f"drafter.v.{self.number}"), *seen, parents, width**-0.5, width_seen, 0.0, None,
        )  # fmt: skip
        if gate is not None:
            attended = writer.op(aten.mul.Tensor, attended, writer.op(aten.sigmoid.default, gate))
        flat = writer.op(aten.reshape.default, attended, [-1, heads * width])
        return writer.linear(flat, f"{self.name}.self_attn.o_proj")

    def finish(self, attended: fx.Node, residual: fx.Node) -> fx.Node:
        """Residual and MLP -> what the layer gives [T, H]."""
        writer, mlp = self.writer, self.layer.mlp
        assert isinstance(mlp, Mlp)
        x = writer.op(aten.add.Tensor, residual, attended)
        normed = self.norm(x, "post_attention_layernorm")
        function, how = _ACTIVATIONS[mlp.activation]
        gate = writer.linear(normed, f"{self.name}.mlp.gate_proj")
        gate = writer.builder.graph.call_function(function, (gate,), dict(how))
        wide = writer.op(aten.mul.Tensor, gate, writer.linear(normed, f"{self.name}.mlp.up_proj"))
        return writer.op(aten.add.Tensor, x, writer.linear(wide, f"{self.name}.mlp.down_proj"))
