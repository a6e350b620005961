"""Kernels as TIR, written by hand: TVM's own schedules for skinny products and caches are not usable.

Every one is for any number of rows, and a row's result is one fixed chain of operations whatever rows are beside it:
decoding one token and verifying nine have the same bits. Fused multiply-adds are asked for by name; nothing is left to
fast-math.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812 (TVM's own name for it)

from specc.ir.encodings import TILE

LANES = 8
"""Floats of an AVX2 register."""

_ROWS = 6
"""Rows of a block: with the 16 columns of a tile their sums fill 12 of AVX2's 16 registers."""

_GROUP = 96
"""Rows per pass over the weights: their sums stay in L1, their inputs in L2."""

_DEPTH = 64
"""Columns of the matrix per pass over the rows: 4 KB of a tile, which stay in L1."""

OWN = "specc.template"
"""The attribute of kernels that are written here, and scheduled as they are."""

_SERIAL = 1 << 16
"""Bytes of weights below which one thread is faster than waking another."""


def i64(value: Any) -> Any:
    """A number as TIR's int64."""
    return T.int64(value)


@contextmanager
def kernel() -> Iterator[IRBuilder]:
    """Within it, `T` writes one function, which is opaque to fusion; `get()` of what it yields is that function."""
    with IRBuilder() as builder, T.prim_func(private=True):
        # 8: kOpaque of tvm/relax/op_attr_types.h.
        T.func_attr({"tirx.noalias": True, "op_pattern": 8, OWN: True})
        yield builder


def argument(name: str, shape: Sequence[Any], dtype: str = "float32") -> Any:
    """The next argument: a buffer."""
    return T.match_buffer(T.arg(name, T.handle()), tuple(shape), dtype)


def ramp(start: Any, lanes: int = LANES) -> Any:
    """Consecutive indices; of one lane, the index."""
    return T.Ramp(start, i64(1), lanes) if lanes > 1 else start


def local(count: int, dtype: str = "float32") -> Any:
    """Memory of the function, on its stack: registers, where all indices are numbers.

    (Of the scope `local` it would be asked for by a call, and LLVM had to take every store for seen by others.)
    """
    return T.alloc_buffer((i64(count),), dtype)


def store(buffer: Any, value: Any, *indices: Any) -> None:
    """Assign to an element, or to several by a ramp."""
    T.buffer_store(buffer, value, list(indices))


def broadcast(value: Any, lanes: int = LANES) -> Any:
    """The same in every lane."""
    return T.Broadcast(value, lanes) if lanes > 1 else value


def zeros(lanes: int = LANES) -> Any:
    """Zero in every lane."""
    return broadcast(T.float32(0), lanes)


def loop(count: Any, *, parallel: bool = False, begin: Any = 0) -> Any:
    """A loop from `begin` to before `count`."""
    return (T.parallel if parallel else T.serial)(
        i64(begin) if isinstance(begin, int) else begin, count
    )


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """What is written within happens if `condition` holds."""
    with T.If(condition), T.Then():
        yield


def require(condition: Any, message: str) -> None:
    """The kernel fails with `message` unless `condition` holds; not within a parallel loop."""
    with T.Assert(condition, message):
        pass


def bound(value: Any) -> Any:
    """A name for `value`, so that it is computed once."""
    return T.Bind(value)


def exp_down(x: Any, lanes: int, name: Callable[[Any], Any] = bound) -> Any:
    """e^x for x <= 0 to about 1e-7 (Cephes expf, netlib.org/cephes); below -87.3 zero. NaN stays NaN.

    `name` is given what is used more than once.
    """

    def number(value: float) -> Any:
        return broadcast(T.float32(value), lanes)

    def integer(value: int) -> Any:
        return broadcast(T.int32(value), lanes)

    suffix = "" if lanes == 1 else f"x{lanes}"
    low = number(-87.33654)
    kept = name(T.Select(x < low, low, x))
    power = name(T.floor(T.fma(kept, number(1.44269504), number(0.5))))
    rest = T.fma(power, number(-0.693359375), kept)
    rest = name(T.fma(power, number(2.12194440e-4), rest))
    series = number(1.9875691500e-4)
    for factor in (
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    ):
        series = T.fma(series, rest, number(factor))
    series = T.fma(series * rest, rest, rest) + number(1)
    bits = T.cast(power, "int32" + suffix)
    scale = T.reinterpret("float32" + suffix, (bits + integer(127)) << integer(23))
    return T.Select(x < low, number(0), series * scale)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x) of one f32, as an expression that LLVM makes vectors of: libm's e^x is a call for each."""
    small = exp_down(T.Select(x < T.float32(0), x, T.float32(0) - x), 1, lambda value: value)
    return T.Select(x < T.float32(0), small, T.float32(1)) / (T.float32(1) + small)


def linear(n: int, k: int, weights: str, bias: bool) -> Any:
    """(x f32[T, k], w [tiles, k, 16] of f32 or bf16, bias f32[n]) -> f32[T, n].

    An output is one chain of fused multiply-adds over k from 0 on, then the bias.
    """
    tiles = -(-n // TILE)
    size = 2 if weights == "bfloat16" else 4
    with kernel() as made:
        rows = T.int64()
        x = argument("x", (rows, i64(k)))
        w = argument("w", (i64(tiles), i64(k), i64(TILE)), weights)
        b = argument("bias", (i64(n),)) if bias else None
        y = argument("y", (rows, i64(n)))
        wide = tiles * k * TILE * size >= _SERIAL
        call = _Linear(x, w, b, y, n, k, rows)
        with T.If(rows == i64(1)):
            with T.Then(), loop(i64((tiles + 1) // 2), parallel=wide) as pair:
                _one_row(call, pair, tiles)
            with T.Else(), loop(i64(tiles), parallel=wide) as tile:
                _many_rows(call, tile)
    return made.get()


class _Linear:
    """The operands of one product."""

    def __init__(self, x: Any, w: Any, bias: Any, y: Any, n: int, k: int, rows: Any) -> None:
        self.x, self.w, self.bias, self.y = x, w, bias, y
        self.n, self.k, self.rows = n, k, rows
        count = -(-n // TILE) * k * TILE
        self._stream = T.decl_buffer((i64(count),), str(w.dtype), data=w.data)

    def fetch(self, tile: Any, k: Any) -> None:
        """Have the line that is `_DEPTH` columns on brought to the cache. Beyond the end that does nothing."""
        ahead = self._stream[((tile * i64(self.k) + k) + i64(_DEPTH)) * i64(TILE)]
        # (To read, into all levels of the cache, as data.)
        T.evaluate(
            T.call_intrin("void", "tirx.prefetch", T.address_of(ahead), *map(T.int32, (0, 3, 1)))
        )

    def weight(self, tile: Any, k: Any) -> Any:
        """The 16 columns at `k`."""
        found = self.w[tile, k, ramp(i64(0), TILE)]
        return T.cast(found, f"float32x{TILE}") if str(self.w.dtype) == "bfloat16" else found

    def finish(self, row: Any, tile: Any, sums: Any) -> None:
        """Write a row of a tile, of which the last may be wider than the matrix is."""
        last, filled = self.n // TILE, self.n % TILE
        if not filled:
            self._whole(row, tile, sums)
            return
        with T.If(tile < i64(last)):
            with T.Then():
                self._whole(row, tile, sums)
            with T.Else(), loop(i64(filled)) as c:
                at = i64(last * TILE) + c
                lone = local(TILE)
                store(lone, sums, ramp(i64(0), TILE))
                value = lone[c] if self.bias is None else lone[c] + self.bias[at]
                store(self.y, value, row, at)

    def _whole(self, row: Any, tile: Any, sums: Any) -> None:
        at = ramp(tile * TILE, TILE)
        store(self.y, sums if self.bias is None else sums + self.bias[at], row, at)


def _one_row(call: _Linear, pair: Any, tiles: int) -> None:
    """Two tiles at a time: four chains, which hide the latency of a multiply-add."""
    sums = local(2 * TILE)

    def run(count: int) -> None:
        for t in range(count):
            store(sums, zeros(TILE), ramp(i64(t * TILE), TILE))
        with loop(i64(call.k)) as k:
            for t in range(count):
                at = ramp(i64(t * TILE), TILE)
                activation = broadcast(call.x[i64(0), k], TILE)
                store(sums, T.fma(activation, call.weight(pair * 2 + t, k), sums[at]), at)
        for t in range(count):
            call.finish(i64(0), pair * 2 + t, sums[ramp(i64(t * TILE), TILE)])

    if tiles % 2 == 0:
        run(2)
        return
    with T.If(pair < i64(tiles // 2)):
        with T.Then():
            run(2)
        with T.Else():
            run(1)


def _many_rows(call: _Linear, tile: Any) -> None:
    """Groups of rows; the tile passes through L1 in pieces, and all rows of a group over each."""
    sums = T.alloc_buffer((i64(_GROUP), i64(TILE)), "float32")
    with loop((call.rows + i64(_GROUP - 1)) // i64(_GROUP)) as group:
        first = group * i64(_GROUP)
        rows = T.min(call.rows - first, i64(_GROUP))
        with loop(rows) as r:
            store(sums, zeros(TILE), r, ramp(i64(0), TILE))
        blocks = (rows + i64(_ROWS - 1)) // i64(_ROWS)
        with loop(i64(-(-call.k // _DEPTH))) as piece, loop(blocks) as block:
            begin = rows * block // blocks
            count = rows * (block + i64(1)) // blocks - begin
            for size in range(1, _ROWS + 1):
                with when(count == i64(size)):
                    _panel(call, tile, sums, (first, begin, size), piece * i64(_DEPTH))
        with loop(rows) as r:
            call.finish(first + r, tile, sums[r, ramp(i64(0), TILE)])


def _panel(call: _Linear, tile: Any, sums: Any, rows: tuple[Any, Any, int], begin: Any) -> None:
    """Up to six rows over one piece of a tile, their sums in registers."""
    first, offset, count = rows
    registers = local(_ROWS * TILE)
    for r in range(count):
        store(registers, sums[offset + i64(r), ramp(i64(0), TILE)], ramp(i64(r * TILE), TILE))
    with loop(T.min(i64(call.k), begin + i64(_DEPTH)), begin=begin) as k:
        call.fetch(tile, k)
        for r in range(count):
            at = ramp(i64(r * TILE), TILE)
            activation = broadcast(call.x[first + offset + i64(r), k], TILE)
            store(registers, T.fma(activation, call.weight(tile, k), registers[at]), at)
    for r in range(count):
        store(sums, registers[ramp(i64(r * TILE), TILE)], offset + i64(r), ramp(i64(0), TILE))


def embedding(n: int, k: int, weights: str, packed: bool) -> Any:
    """(tokens i64[T], w [tiles, k, 16] or [n, k]) -> [T, k], of f32 if packed. Fails for an id that is no row."""
    shape = (-(-n // TILE), k, TILE) if packed else (n, k)
    with kernel() as made:
        rows = T.int64()
        tokens = argument("tokens", (rows,), "int64")
        w = argument("w", tuple(map(i64, shape)), weights)
        y = argument("y", (rows, i64(k)), "float32" if packed else weights)
        with loop(rows) as t:
            require(T.And(tokens[t] >= i64(0), tokens[t] < i64(n)), "a token is not in the table")
        with loop(rows) as t, loop(i64(k)) as c:
            if packed:
                row = tokens[t]
                value = T.cast(w[row // i64(TILE), c, row % i64(TILE)], "float32")
                store(y, value, t, c)
            else:
                store(y, w[tokens[t], c], t, c)
    return made.get()


def cache_write(heads: int, rows: int, width: int, cache: str, values: str) -> Any:
    """(cache [heads, rows, width], x [T, heads, width], at i64[T]) -> none: rows `at` of the cache are x."""
    with kernel() as made:
        count = T.int64()
        c = argument("cache", (i64(heads), i64(rows), i64(width)), cache)
        x = argument("x", (count, i64(heads), i64(width)), values)
        at = argument("at", (count,), "int64")
        with loop(count) as t:
            require(T.And(at[t] >= i64(0), at[t] < i64(rows)), "a row is not in the cache")
        with loop(count) as t, loop(i64(heads)) as h, loop(i64(width)) as d:
            store(c, T.cast(x[t, h, d], cache), h, at[t], d)
    return made.get()


def topk(n: int, k: int) -> Any:
    """(x f32[T, n]) -> where the k largest of each row are, i64[T, k], in order; of equals the first."""
    with kernel() as made:
        rows = T.int64()
        x = argument("x", (rows, i64(n)))
        places = argument("places", (rows, i64(k)), "int64")
        with loop(rows) as t, loop(i64(k)) as i:
            taken, best = local(1, "int32"), local(1, "int64")
            store(best, i64(-1), i64(0))
            with loop(i64(n)) as c:
                store(taken, T.int32(0), i64(0))
                with loop(i) as before, when(places[t, before] == c):
                    store(taken, T.int32(1), i64(0))
                highest = x[t, T.max(best[i64(0)], i64(0))]
                better = T.Or(best[i64(0)] < i64(0), x[t, c] > highest)
                with when(T.And(taken[i64(0)] == T.int32(0), better)):
                    store(best, c, i64(0))
            store(places, best[i64(0)], t, i)
    return made.get()


def pick(n: int, k: int) -> Any:
    """(x f32[T, n], places i64[T, k]) -> x at these places of each row, f32[T, k]."""
    with kernel() as made:
        rows = T.int64()
        x = argument("x", (rows, i64(n)))
        places = argument("places", (rows, i64(k)), "int64")
        y = argument("y", (rows, i64(k)))
        with loop(rows) as t, loop(i64(k)) as i:
            store(y, x[t, places[t, i]], t, i)
    return made.get()
