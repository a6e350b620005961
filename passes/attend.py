"""Attention over a cache and a call's own rows, in operations that every device has; whole, or in parts to merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from specc.ir.graphs import type_of
from specc.ir.types import DTYPES

aten = torch.ops.aten


@dataclass(frozen=True)
class Masks:
    """Added to scores: f32[T, S] for rows of the cache, f32[T, T] for those of the call where they lie apart."""

    old: fx.Node
    new: fx.Node | None


@dataclass(frozen=True)
class Attended:
    """What a `specc.cached_attention` is given: q [T, Hq, D]; caches [Hkv, S, D]; the call's rows [T, Hkv, D].

    The call's rows are None where the caches have them.
    """

    q: fx.Node
    k: fx.Node
    v: fx.Node
    k_new: fx.Node | None
    v_new: fx.Node | None
    scale: float
    softcap: float
    sinks: fx.Node | None


@dataclass(frozen=True)
class _Writer:
    """Appends operations of one attention; `meta` is that of the operation which they stand for."""

    graph: fx.Graph
    meta: dict[str, Any]

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta |= {k: v for k, v in self.meta.items() if k != "type"}
        return node

    def wide(self, x: fx.Node, dtype: str) -> fx.Node:
        """`x` of `dtype` in single precision."""
        return x if dtype == "f32" else self(aten._to_copy.default, x, dtype=torch.float32)


@dataclass(frozen=True)
class _Sizes:
    rows: int
    shared: int
    group: int
    length: int
    deep: int
    dtype: str

    @classmethod
    def of(cls, given: Attended) -> _Sizes:
        t, heads, _ = (int(d) for d in type_of(given.q).shape)
        shared, length, _ = (int(d) for d in type_of(given.k).shape)
        deep = int(type_of(given.v).shape[2])
        return cls(t, shared, heads // shared, length, deep, type_of(given.q).dtype)


def attend(graph: fx.Graph, given: Attended, masks: Masks, meta: dict[str, Any]) -> fx.Node:
    """[T, Hq, Dv], appended where the graph inserts.

    Heads that share keys are rows of one product, so nothing is repeated; scores of cache and call are
    computed apart and joined, so the cache is not copied, where they lie apart. Softmax is in f32.
    """
    op, sizes = _Writer(graph, meta), _Sizes.of(given)
    given = _alike(op, given, sizes)
    parts = _scores(op, given, masks, sizes)
    if given.sinks is not None:
        sinks = op(aten.reshape.default, given.sinks, [sizes.shared, sizes.group, 1, 1])
        sinks = op.wide(sinks, type_of(given.sinks).dtype)
        parts.append(op(aten.expand.default, sinks, [sizes.shared, sizes.group, sizes.rows, 1]))
    scores = op(aten.cat.default, parts, -1) if len(parts) > 1 else parts[0]
    weights = op(aten._softmax.default, scores, -1, False)
    return _as_rows(op, _weighted(op, weights, given, sizes), sizes)


def attend_part(graph: fx.Graph, given: Attended, masks: Masks, meta: dict[str, Any]) -> fx.Node:
    """One device's part of an attention: f32[Hkv, G, T, Dv + 2], G query heads to each head of the cache.

    The last two columns are m, the greatest score, and l, the sum of exp(score - m); the others are the mean of
    values with these weights. A device whose rows are all hidden tells m = -1e30, and so counts for nothing.
    Sinks belong to the whole: `merge` has them.
    """
    op, sizes = _Writer(graph, meta), _Sizes.of(given)
    given = _alike(op, given, sizes)
    scores = op(aten.cat.default, _scores(op, given, masks, sizes), -1)
    most = op(aten.amax.default, scores, [-1], True)
    raised = op(aten.exp.default, op(aten.sub.Tensor, scores, most))
    total = op(aten.sum.dim_IntList, raised, [-1], True)
    weights = op(aten.div.Tensor, raised, total)
    mean = _weighted(op, weights, given, sizes)
    mean = op.wide(mean, sizes.dtype)
    return op(aten.cat.default, [mean, most, total], -1)


def merge(
    graph: fx.Graph, parts: Sequence[fx.Node], sinks: fx.Node | None, dtype: str, meta: dict[str, Any]
) -> fx.Node:  # fmt: skip
    """What `attend` gives, [T, Hq, Dv] of `dtype`, out of `attend_part`'s results for all rows, of some devices each.

    The log-sum-exp merge of partial softmaxes (arXiv 1805.02867, and FlashDecoding): part r weighs l_r exp(m_r - m).
    """
    op = _Writer(graph, meta)
    shared, group, rows, width = (int(d) for d in type_of(parts[0]).shape)
    deep = width - 2
    means, most, total = (
        [op(aten.slice.Tensor, p, -1, begin, end) for p in parts]
        for begin, end in ((0, deep), (deep, deep + 1), (deep + 1, width))
    )
    if sinks is not None:
        sink = op(aten.reshape.default, sinks, [shared, group, 1, 1])
        sink = op.wide(sink, type_of(sinks).dtype)
        most.append(op(aten.expand.default, sink, [shared, group, rows, 1]))
    greatest = op(aten.amax.default, op(aten.cat.default, most, -1), [-1], True)
    raised = [op(aten.exp.default, op(aten.sub.Tensor, m, greatest)) for m in most]
    weights = [op(aten.mul.Tensor, *pair) for pair in zip(raised, total, strict=False)]
    weights += raised[len(parts) :]
    whole = op(aten.sum.dim_IntList, op(aten.cat.default, weights, -1), [-1], True)
    merged = [
        op(aten.mul.Tensor, mean, op(aten.div.Tensor, weight, whole))
        for mean, weight in zip(means, weights, strict=False)
    ]
    both = merged[0]
    for other in merged[1:]:
        both = op(aten.add.Tensor, both, other)
    if dtype != "f32":
        both = op(aten._to_copy.default, both, dtype=DTYPES[dtype])
    return _as_rows(op, both, _Sizes(rows, shared, group, 0, deep, dtype))


def _alike(op: _Writer, given: Attended, sizes: _Sizes) -> Attended:
    """Caches and new rows in the queries' type."""

    def alike(x: fx.Node) -> fx.Node:
        same = type_of(x).dtype == sizes.dtype
        return x if same else op(aten._to_copy.default, x, dtype=DTYPES[sizes.dtype])

    k_new, v_new = (x if x is None else alike(x) for x in (given.k_new, given.v_new))
    return Attended(
        given.q, alike(given.k), alike(given.v), k_new, v_new, given.scale, given.softcap, given.sinks
    )  # fmt: skip


def _scores(op: _Writer, given: Attended, masks: Masks, sizes: _Sizes) -> list[fx.Node]:
    """f32[Hkv, G, T, S] and f32[Hkv, G, T, T]: what the masks hide is far below the rest."""
    t, shared, group = sizes.rows, sizes.shared, sizes.group
    width = int(type_of(given.q).shape[2])
    q = op(aten.mul.Tensor, given.q, given.scale)
    q = op(aten.reshape.default, q, [t, shared, group, width])
    q = op(aten.permute.default, q, [1, 2, 0, 3])
    q = op(aten.reshape.default, q, [shared, group * t, width])
    parts = []
    for keys, order, mask, rows in (
        (given.k, [0, 2, 1], masks.old, sizes.length), (given.k_new, [1, 2, 0], masks.new, t),
    ):  # fmt: skip
        if keys is None:
            continue
        score = op(aten.bmm.default, q, op(aten.permute.default, keys, order))
        score = op(aten.reshape.default, score, [shared, group, t, rows])
        if given.softcap > 0:
            score = op(aten.tanh.default, op(aten.div.Tensor, score, given.softcap))
            score = op(aten.mul.Tensor, score, given.softcap)
        parts.append(op(aten.add.Tensor, op.wide(score, sizes.dtype), mask))
    return parts


def _weighted(op: _Writer, weights: fx.Node, given: Attended, sizes: _Sizes) -> fx.Node:
    """Values weighed by weights f32[Hkv, G, T, S + T], of which more columns count for nothing: [Hkv, G, T, Dv]."""
    t, shared, group, length = sizes.rows, sizes.shared, sizes.group, sizes.length
    if sizes.dtype != "f32":
        weights = op(aten._to_copy.default, weights, dtype=DTYPES[sizes.dtype])
    sums = []
    as_it_is: list[int] = []
    for begin, end, values, order in (
        (0, length, given.v, as_it_is), (length, length + t, given.v_new, [1, 0, 2]),
    ):  # fmt: skip
        if values is None:
            continue
        seen = op(aten.slice.Tensor, weights, -1, begin, end)
        seen = op(aten.reshape.default, seen, [shared, group * t, end - begin])
        ordered = op(aten.permute.default, values, order) if order else values
        sums.append(op(aten.bmm.default, seen, ordered))
    both = op(aten.add.Tensor, *sums) if len(sums) > 1 else sums[0]
    return op(aten.reshape.default, both, [shared, group, t, sizes.deep])


def _as_rows(op: _Writer, x: fx.Node, sizes: _Sizes) -> fx.Node:
    """[T, Hq, Dv] of [Hkv, G, T, Dv]."""
    x = op(aten.permute.default, x, [2, 0, 1, 3])
    return op(aten.reshape.default, x, [sizes.rows, sizes.shared * sizes.group, sizes.deep])
