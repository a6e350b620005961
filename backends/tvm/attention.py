"""Attention over caches as TIR: only rows that are seen are read, whatever the caches could hold.

A query is one row and one query head. Its arithmetic depends on the order of the rows that it sees and on nothing
else: they are cut into chunks of 256 places, each with a softmax of its own, and chunks are merged in order, the sink
last. So a path of a token tree has the bits that a chain would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T  # noqa: N812 (TVM's own name for it)

from specc.backends.tvm.templates import (
    LANES,
    argument,
    bound,
    broadcast,
    exp_down,
    i64,
    kernel,
    local,
    loop,
    ramp,
    require,
    store,
    when,
    zeros,
)

_CHUNK = 256
_LOWEST = -3.0e38
_TOGETHER = 3
"""Heads of a group whose sums are in registers at a time, beside four registers of a value."""

_WIDE = 4 * LANES


@dataclass(frozen=True)
class Attention:
    """What a kernel is made for; `cache` is a TVM dtype, `window` and `softcap` 0 for none."""

    heads: int
    kv_heads: int
    rows: int
    width: int
    value_width: int
    cache: str
    scale: float
    window: int
    softcap: float
    sinks: bool
    parents: bool

    @property
    def group(self) -> int:
        """Query heads of a key-value head."""
        return self.heads // self.kv_heads


def seen(rows: int, parents: bool) -> Any:
    """(positions, rows, parents?) -> start, length[, shared, path]: which cache rows each row of a call sees.

    Place j of row t is cache row start[t] + j, or path[t, j - shared[t]] from shared[t] on; all i64[T], path [T, T].
    Fails for rows outside the cache and for parents that are no earlier row.
    """
    with kernel() as made:
        count = T.int64()
        positions = argument("positions", (count,), "int64")
        at = argument("rows", (count,), "int64")
        above = argument("parents", (count,), "int64") if parents else None
        start = argument("start", (count,), "int64")
        length = argument("length", (count,), "int64")
        shared: Any = argument("shared", (count,), "int64") if parents else None
        path: Any = argument("path", (count, count), "int64") if parents else None
        with loop(count) as t:
            inside = T.And(positions[t] >= i64(0), T.And(positions[t] <= at[t], at[t] < i64(rows)))
            require(inside, "a position or a row is not in the cache")
            if above is not None:
                require(T.And(above[t] >= i64(-1), above[t] < t), "a parent is no earlier row")
        with loop(count) as t:
            store(start, at[t] - positions[t], t)
            store(length, positions[t] + i64(1), t)
            if above is not None:
                store(shared, positions[t] + i64(1), t)
                with when(above[t] >= i64(0)):
                    parent = bound(above[t])
                    store(start, start[parent], t)
                    store(shared, shared[parent], t)
                    store(length, length[parent] + i64(1), t)
                    own = bound(length[parent] - shared[parent])
                    with loop(own) as i:
                        store(path, path[parent, i], t, i)
                    store(path, at[t], t, own)
    return made.get()


def attention(shape: Attention) -> Any:
    """(q f32[T, heads, width], k, v, start, length[, shared, path][, sinks]) -> f32[T, heads, value_width]."""
    with kernel() as made:
        count = T.int64()
        q = argument("q", (count, i64(shape.heads), i64(shape.width)))
        k = argument("k", (i64(shape.kv_heads), i64(shape.rows), i64(shape.width)), shape.cache)
        v = argument(
            "v", (i64(shape.kv_heads), i64(shape.rows), i64(shape.value_width)), shape.cache
        )
        start = argument("start", (count,), "int64")
        length = argument("length", (count,), "int64")
        shared: Any = argument("shared", (count,), "int64") if shape.parents else None
        path: Any = argument("path", (count, count), "int64") if shape.parents else None
        sinks = argument("sinks", (i64(shape.heads),)) if shape.sinks else None
        out = argument("out", (count, i64(shape.heads), i64(shape.value_width)))
        with loop(count * i64(shape.kv_heads), parallel=True) as task:
            t, head = bound(task // i64(shape.kv_heads)), bound(task % i64(shape.kv_heads))

            def row(place: Any) -> Any:
                if shared is None:
                    return start[t] + place
                return T.if_then_else(
                    place < shared[t], start[t] + place, path[t, place - shared[t]]
                )

            query = _Query(shape, q, k, v, t, head)
            end = bound(length[t])
            begin = bound(T.max(i64(0), end - i64(shape.window))) if shape.window else i64(0)
            query.begin()
            with loop((end + i64(_CHUNK - 1)) // i64(_CHUNK), begin=begin // i64(_CHUNK)) as chunk:
                first = bound(T.max(begin, chunk * i64(_CHUNK)))
                last = bound(T.min(end, (chunk + i64(1)) * i64(_CHUNK)))
                query.score(chunk, first, last, row)
                query.soften(chunk, last)
                query.add_values(chunk, first, last, row)
            query.finish(out, sinks)
    return made.get()


class _Query:
    """The heads of one row that share a key-value head."""

    def __init__(self, shape: Attention, q: Any, k: Any, v: Any, t: Any, head: Any) -> None:
        self.shape, self.q, self.k, self.v, self.t, self.head = shape, q, k, v, t, head
        group = shape.group
        self.scores = T.alloc_buffer((i64(group), i64(_CHUNK)), "float32")
        self.sums = T.alloc_buffer((i64(group), i64(shape.value_width)), "float32")
        self.top, self.total = local(group), local(group)
        self.old, self.new = local(group), local(group)

    def begin(self) -> None:
        """Nothing is seen yet."""
        with loop(i64(self.shape.group)) as g:
            store(self.top, T.float32(_LOWEST), g)
            store(self.total, T.float32(0), g)
            with _columns(self.shape.value_width) as (at, lanes):
                store(self.sums, zeros(lanes), g, at)

    def score(self, chunk: Any, first: Any, last: Any, row: Any) -> None:
        """Scores of the places first to last - 1 of a chunk; the others of its last registers are the lowest."""
        shape = self.shape
        base = bound(chunk * i64(_CHUNK))
        with loop(i64(shape.group)) as g, loop((last - base + i64(LANES - 1)) // i64(LANES)) as i:
            store(self.scores, broadcast(T.float32(_LOWEST)), g, ramp(i * i64(LANES)))
        whole, rest = divmod(shape.width, LANES)
        with loop(last, begin=first) as place:
            at = bound(row(place))
            with loop(i64(shape.group)) as g:
                lanes, dot = local(LANES), local(1)
                head = self.head * i64(shape.group) + g
                store(lanes, zeros(), ramp(i64(0)))
                for d in range(whole):
                    columns = ramp(i64(d * LANES))
                    key = _widened(self.k[self.head, at, columns], LANES)
                    store(
                        lanes,
                        T.fma(self.q[self.t, head, columns], key, lanes[ramp(i64(0))]),
                        ramp(i64(0)),
                    )
                store(dot, _added(lanes), i64(0))
                for d in range(whole * LANES, whole * LANES + rest):
                    key = _widened(self.k[self.head, at, i64(d)], 1)
                    store(dot, T.fma(self.q[self.t, head, i64(d)], key, dot[i64(0)]), i64(0))
                score = dot[i64(0)] * T.float32(shape.scale)
                if shape.softcap:
                    cap = T.float32(shape.softcap)
                    score = cap * T.tanh(score / cap)
                store(self.scores, score, g, place - base)

    def soften(self, chunk: Any, last: Any) -> None:
        """Scores become exponentials; what is to be multiplied with old sums and with this chunk's is kept."""
        count = bound((last - chunk * i64(_CHUNK) + i64(LANES - 1)) // i64(LANES))
        with loop(i64(self.shape.group)) as g:
            lanes, top = local(LANES), local(1)
            store(lanes, broadcast(T.float32(_LOWEST)), ramp(i64(0)))
            with loop(count) as i:
                score = bound(self.scores[g, ramp(i * i64(LANES))])
                store(
                    lanes,
                    T.Select(score > lanes[ramp(i64(0))], score, lanes[ramp(i64(0))]),
                    ramp(i64(0)),
                )
            store(top, lanes[i64(0)], i64(0))
            for lane in range(1, LANES):
                store(top, T.max(top[i64(0)], lanes[i64(lane)]), i64(0))
            store(lanes, zeros(), ramp(i64(0)))
            with loop(count) as i:
                below = bound(self.scores[g, ramp(i * i64(LANES))] - broadcast(top[i64(0)]))
                value = bound(exp_down(below, LANES))
                store(self.scores, value, g, ramp(i * i64(LANES)))
                store(lanes, lanes[ramp(i64(0))] + value, ramp(i64(0)))
            highest = bound(T.max(self.top[g], top[i64(0)]))
            store(self.old, exp_down(bound(self.top[g] - highest), 1), g)
            store(self.new, exp_down(bound(top[i64(0)] - highest), 1), g)
            store(self.top, highest, g)
            store(self.total, T.fma(self.total[g], self.old[g], _added(lanes) * self.new[g]), g)

    def add_values(self, chunk: Any, first: Any, last: Any, row: Any) -> None:
        """Old sums, scaled, and the chunk's values by their weights."""
        group, base = self.shape.group, bound(chunk * i64(_CHUNK))
        for begin in range(0, group, _TOGETHER):
            heads = range(begin, min(begin + _TOGETHER, group))
            for columns in _blocks(self.shape.value_width):
                registers = local(_TOGETHER * _WIDE)
                slots = [
                    (g, c, w, (g - begin) * _WIDE + c - columns[0][0])
                    for g in heads
                    for c, w in columns
                ]
                for _, _, lanes, slot in slots:
                    store(registers, zeros(lanes), _at(slot, lanes))
                with loop(last, begin=first) as place:
                    at = bound(row(place))
                    for g, c, lanes, slot in slots:
                        value = _widened(self.v[self.head, at, _at(c, lanes)], lanes)
                        weight = broadcast(self.scores[i64(g), place - base], lanes)
                        there = _at(slot, lanes)
                        store(registers, T.fma(weight, value, registers[there]), there)
                for g, c, lanes, slot in slots:
                    old, new = (broadcast(x[i64(g)], lanes) for x in (self.old, self.new))
                    there = _at(c, lanes)
                    kept = self.sums[i64(g), there] * old
                    store(self.sums, T.fma(registers[_at(slot, lanes)], new, kept), i64(g), there)

    def finish(self, out: Any, sinks: Any) -> None:
        """The sink joins, and sums become the result."""
        with loop(i64(self.shape.group)) as g:
            head = bound(self.head * i64(self.shape.group) + g)
            total, over = self.total[g], T.float32(1)
            if sinks is not None:
                highest = bound(T.max(self.top[g], sinks[head]))
                over = bound(exp_down(bound(self.top[g] - highest), 1))
                total = bound(T.fma(self.total[g], over, exp_down(bound(sinks[head] - highest), 1)))
            with _columns(self.shape.value_width) as (at, lanes):
                scale, by = broadcast(over, lanes), broadcast(total, lanes)
                store(out, self.sums[g, at] * scale / by, self.t, head, at)


@contextmanager
def _columns(width: int) -> Iterator[tuple[Any, int]]:
    """A loop over columns, by registers where they fit."""
    lanes = LANES if width % LANES == 0 else 1
    with loop(i64(width // lanes)) as i:
        yield ramp(i * i64(lanes), lanes), lanes


def _blocks(width: int) -> list[list[tuple[int, int]]]:
    """Columns in blocks of four registers: (first, how many) of each register, single ones at the end."""
    whole = width - width % LANES
    parts = [(c, LANES) for c in range(0, whole, LANES)] + [(c, 1) for c in range(whole, width)]
    blocks: dict[int, list[tuple[int, int]]] = {}
    for part in parts:
        blocks.setdefault(part[0] // _WIDE, []).append(part)
    return list(blocks.values())


def _at(first: int, lanes: int) -> Any:
    return ramp(i64(first), lanes)


def _widened(value: Any, lanes: int) -> Any:
    return T.cast(value, f"float32x{lanes}" if lanes > 1 else "float32")


def _added(lanes: Any) -> Any:
    """The eight lanes in one, always in this order."""
    a = [lanes[i64(i)] for i in range(LANES)]
    pairs = [a[i] + a[i + LANES // 2] for i in range(LANES // 2)]
    return (pairs[0] + pairs[2]) + (pairs[1] + pairs[3])
