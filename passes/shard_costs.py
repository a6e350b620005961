"""What it costs to cut caches by rows or by heads, and which is cheaper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from specc.errors import PassError
from specc.ir.graphs import type_of
from specc.ir.sharding import ShardCost, Sharding, Way
from specc.ir.types import itemsize

_F32 = 4
_STATISTICS = 2
"""m and l, beside each head's mean of values."""


@dataclass(frozen=True)
class Sizes:
    """One attention: query heads, heads of the cache, its rows, widths of keys and values, bytes of an element."""

    heads: int
    shared: int
    length: int
    width: int
    deep: int
    element: int

    @classmethod
    def of(cls, attention: fx.Node) -> Sizes:
        """Of a `specc.masked_attention`."""
        q, k, v = (type_of(n) for n in attention.args[:3])  # type: ignore[arg-type]
        shared, length, width = k.at()
        return cls(q.at()[1], shared, length, width, v.at()[2], itemsize(k.dtype))


def costs(attentions: Sequence[Sizes], count: int) -> tuple[ShardCost, ...]:
    """Of each way to lay the caches of one call's `attentions` on `count` devices."""
    return tuple(_cost(way, attentions, count) for way in Way)


def _cost(way: Way, attentions: Sequence[Sizes], count: int) -> ShardCost:
    rows, heads = (count, 1) if way is Way.ROWS else (1, count)
    for a in attentions:
        if way is Way.ROWS and a.length % count:
            return ShardCost(way, refused=f"{a.length} positions are no multiple of {count}")
        if way is Way.HEADS and a.shared % count:
            return ShardCost(way, refused=f"{a.shared} heads of keys are no multiple of {count}")
    sent = sum(a.heads // heads * (a.deep + _STATISTICS) * _F32 for a in attentions)
    return ShardCost(
        way, len(attentions), sent * (count - 1),
        sum(a.length * a.shared * (a.width + a.deep) * a.element // count for a in attentions),
        sum(a.heads // heads * (a.length // rows + 1) * (a.width + a.deep) for a in attentions),
    )  # fmt: skip


def choose(attentions: Sequence[Sizes], count: int, way: Way | None) -> Sharding:
    """The way that was asked for, else the one that moves fewer bytes.

    Raises PassError (SPECC-E0373) where the model cannot be cut so.
    """
    known = costs(attentions, count)
    able = [c for c in known if not c.refused and way in (None, c.way)]
    if not able:
        reasons = [f"by {c.way}: {c.refused}" for c in known if c.refused and way in (None, c.way)]
        raise PassError(
            "SPECC-E0373", f"the caches cannot lie on {count} devices",
            expected=f"heads of keys, or a --max-model-len, that {count} divides", found="; ".join(reasons),
            cure=f"choose a --max-model-len that {count} divides, or another --kv-shards",
        )  # fmt: skip
    return Sharding(count, min(able, key=lambda c: c.bytes_received).way, known)
