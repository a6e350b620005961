"""The attention of a drafter's layer: by heads, or DeepSeek's latent attention."""

from __future__ import annotations

import torch
from torch import fx

from specc.ir.importers.drafters import Attention, DrafterSpec, LatentAttention
from specc.passes.leaf_writer import PREFIX, LeafWriter

aten = torch.ops.aten
TABLE = f"{PREFIX}table"
"""Of a drafter's rotary positions, as `LeafWriter.rotate` reads them."""


def kept_sizes(attention: Attention | LatentAttention) -> tuple[int, int, int]:
    """Heads of the caches of one layer, and the widths of a key and of a value.

    Latent attention keeps them as its heads read them, as targets do; its latents would be less, and are no operation.
    """
    if isinstance(attention, Attention):
        return attention.kv_heads, attention.head_dim, attention.head_dim
    return attention.heads, attention.nope_dim + attention.rope_dim, attention.value_dim


class ByHeads:
    """Grouped-query attention with weights `name`.*, x being what it reads [T, input]."""

    def __init__(
        self, writer: LeafWriter, spec: DrafterSpec, attention: Attention, name: str
    ) -> None:
        self.writer, self.spec, self.attention, self.name = writer, spec, attention, name
        self.scale, self.window = attention.head_dim**-0.5, attention.window

    def keys_and_values(self, x: fx.Node, positions: fx.Node) -> tuple[fx.Node, fx.Node]:
        """Keys and values [T, Hkv, D]."""
        key, value = (self._heads(x, f"{letter}_proj") for letter in "kv")
        return self._turned(key, "k_norm", positions), value

    def queries(self, x: fx.Node, positions: fx.Node) -> tuple[fx.Node, fx.Node | None]:
        """Queries [T, Hq, D], and the gates of what they find, if there are any."""
        op, width = self.writer.op, self.attention.head_dim
        if not self.attention.gated:
            return self._turned(self._heads(x, "q_proj"), "q_norm", positions), None
        both = self._heads(x, "q_proj", 2)
        query = op(aten.slice.Tensor, both, -1, 0, width)
        gate = op(aten.slice.Tensor, both, -1, width, 2 * width)
        return self._turned(query, "q_norm", positions), op(aten.sigmoid.default, gate)

    def _heads(self, x: fx.Node, which: str, times: int = 1) -> fx.Node:
        product = self.writer.linear(x, f"{self.name}.{which}")
        return self.writer.heads(product, times * self.attention.head_dim)

    def _turned(self, x: fx.Node, norm: str, positions: fx.Node) -> fx.Node:
        if self.attention.qk_norm:
            x = self.writer.norm(x, f"{self.name}.{norm}", self.spec.norm_eps)
        return _turned(self.writer, self.spec, x, positions)


class Latent:
    """DeepSeek's latent attention with weights `name`.*, x being what it reads [T, input]."""

    window = 0

    def __init__(
        self, writer: LeafWriter, spec: DrafterSpec, attention: LatentAttention, name: str
    ) -> None:
        self.writer, self.spec, self.attention, self.name = writer, spec, attention, name
        self.scale = attention.scale

    def keys_and_values(self, x: fx.Node, positions: fx.Node) -> tuple[fx.Node, fx.Node]:
        """Keys [T, Hq, nope + rope] and values [T, Hq, Dv]; the turning part of a key is the same in all heads."""
        op, sizes = self.writer.op, self.attention
        low, shared = self._parts(self._linear(x, "kv_a_proj_with_mqa"), sizes.kv_rank)
        wide = self._linear(self._norm(low, "kv_a_layernorm"), "kv_b_proj")
        wide = self.writer.heads(wide, sizes.nope_dim + sizes.value_dim)
        plain, value = self._parts(wide, sizes.nope_dim)
        turned = op(aten.unsqueeze.default, shared, 1)
        turned = _turned(self.writer, self.spec, turned, positions)
        turned = op(aten.expand.default, turned, [-1, sizes.heads, -1])
        return self.writer.cat(plain, turned), value

    def queries(self, x: fx.Node, positions: fx.Node) -> tuple[fx.Node, fx.Node | None]:
        """Queries [T, Hq, nope + rope], and no gates."""
        if self.attention.q_rank:
            low = self._norm(self._linear(x, "q_a_proj"), "q_a_layernorm")
            query = self._linear(low, "q_b_proj")
        else:
            query = self._linear(x, "q_proj")
        query = self.writer.heads(query, self.attention.nope_dim + self.attention.rope_dim)
        plain, turning = self._parts(query, self.attention.nope_dim)
        turned = _turned(self.writer, self.spec, turning, positions)
        return self.writer.cat(plain, turned), None

    def _linear(self, x: fx.Node, which: str) -> fx.Node:
        return self.writer.linear(x, f"{self.name}.{which}")

    def _norm(self, x: fx.Node, which: str) -> fx.Node:
        return self.writer.norm(x, f"{self.name}.{which}", self.attention.norm_eps)

    def _parts(self, x: fx.Node, first: int) -> tuple[fx.Node, fx.Node]:
        """The first `first` channels, and the others."""
        op = self.writer.op
        width = self.writer.width(x)
        return op(aten.slice.Tensor, x, -1, 0, first), op(aten.slice.Tensor, x, -1, first, width)


def attending(
    writer: LeafWriter, spec: DrafterSpec, attention: Attention | LatentAttention, name: str
) -> ByHeads | Latent:
    """What writes `attention` with weights `name`.*."""
    if isinstance(attention, Attention):
        return ByHeads(writer, spec, attention, name)
    return Latent(writer, spec, attention, name)


def _turned(writer: LeafWriter, spec: DrafterSpec, x: fx.Node, positions: fx.Node) -> fx.Node:
    assert spec.rope is not None
    return writer.rotate(x, positions, TABLE, interleaved=spec.rope.interleaved)
