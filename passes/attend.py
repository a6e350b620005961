"""Attention over a cache and a call's own rows, in operations that every device has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from specc.ir.graphs import type_of
from specc.ir.types import DTYPES

aten = torch.ops.aten


@dataclass(frozen=True)
class Masks:
    """Added to scores: f32[T, S] for rows of the cache, f32[T, T] for those of the call."""

    old: fx.Node
    new: fx.Node


@dataclass(frozen=True)
class Attended:
    """What a `specc.cached_attention` is given: q [T, Hq, D]; caches [Hkv, S, D]; the call's rows [T, Hkv, D]."""

    q: fx.Node
    k: fx.Node
    v: fx.Node
    k_new: fx.Node
    v_new: fx.Node
    scale: float
    softcap: float
    sinks: fx.Node | None


def attend(graph: fx.Graph, given: Attended, masks: Masks, meta: dict[str, Any]) -> fx.Node:
    """[T, Hq, Dv], appended where the graph inserts.

    Heads that share keys are rows of one product, so nothing is repeated; scores of cache and call are
    computed apart and joined, so the cache is not copied. Softmax is in f32.
    """

    def op(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = graph.call_function(target, args, kwargs)
        node.meta |= {k: v for k, v in meta.items() if k != "type"}
        return node

    t, heads, width = (int(d) for d in type_of(given.q).shape)
    shared, length, _ = (int(d) for d in type_of(given.k).shape)
    deep = int(type_of(given.v).shape[2])
    group, dtype = heads // shared, type_of(given.q).dtype
    k, v, k_new, v_new = (
        x if type_of(x).dtype == dtype else op(aten._to_copy.default, x, dtype=DTYPES[dtype])
        for x in (given.k, given.v, given.k_new, given.v_new)
    )
    q = op(aten.mul.Tensor, given.q, given.scale)
    q = op(aten.reshape.default, q, [t, shared, group, width])
    q = op(aten.permute.default, q, [1, 2, 0, 3])
    q = op(aten.reshape.default, q, [shared, group * t, width])
    parts = []
    for keys, order, mask, rows in (
        (k, [0, 2, 1], masks.old, length), (k_new, [1, 2, 0], masks.new, t),
    ):  # fmt: skip
        score = op(aten.bmm.default, q, op(aten.permute.default, keys, order))
        score = op(aten.reshape.default, score, [shared, group, t, rows])
        if given.softcap > 0:
            score = op(aten.tanh.default, op(aten.div.Tensor, score, given.softcap))
            score = op(aten.mul.Tensor, score, given.softcap)
        if dtype != "f32":
            score = op(aten._to_copy.default, score, dtype=torch.float32)
        parts.append(op(aten.add.Tensor, score, mask))
    if given.sinks is not None:
        sinks = op(aten.reshape.default, given.sinks, [shared, group, 1, 1])
        if type_of(given.sinks).dtype != "f32":
            sinks = op(aten._to_copy.default, sinks, dtype=torch.float32)
        parts.append(op(aten.expand.default, sinks, [shared, group, t, 1]))
    weights = op(aten._softmax.default, op(aten.cat.default, parts, -1), -1, False)
    if dtype != "f32":
        weights = op(aten._to_copy.default, weights, dtype=DTYPES[dtype])
    sums = []
    as_it_is: list[int] = []
    for begin, end, values, order in (
        (0, length, v, as_it_is), (length, length + t, v_new, [1, 0, 2]),
    ):  # fmt: skip
        seen = op(aten.slice.Tensor, weights, -1, begin, end)
        seen = op(aten.reshape.default, seen, [shared, group * t, end - begin])
        ordered = op(aten.permute.default, values, order) if order else values
        sums.append(op(aten.bmm.default, seen, ordered))
    both = op(aten.add.Tensor, *sums)
    both = op(aten.reshape.default, both, [shared, group, t, deep])
    both = op(aten.permute.default, both, [2, 0, 1, 3])
    return op(aten.reshape.default, both, [t, heads, deep])
