"""Kernels of ours for GPUs, as TIR: products, cache writes, attention over what is seen, and the verdict.

Shapes: T rows, N x K a matrix, Hq/Hkv heads, D and Dv widths of heads, R rows of a cache, V vocabulary.
In each a block of threads computes whole rows, or whole columns of some, by loops whose order the number of rows does
not change: a row's bits are the same beside any others. Sums are f32. What is computed is what
`backends/cuda/kernels.py` computes in Triton's language.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm.script.ir_builder import tirx as T  # noqa: N812 (TVM's own name for it)

from specc.backends.tvm.attention import Attention
from specc.backends.tvm.templates import argument, bound, i64, kernel, loop, store, when

WARP = 32
"""Threads that run together. A block's threads are a multiple of it."""

_WARPS = 4
"""Columns of a product that a block computes, one a warp."""

_ROWS = 8
"""Rows that share one reading of the weights, their sums in registers."""

_TILE = 128
"""Threads of a block of attention: so many keys are scored at once."""

_SCAN = 256
"""Threads that look for the best of a row."""


@contextmanager
def threads(grid: Sequence[Any], count: int) -> Iterator[tuple[Any, ...]]:
    """Within it, code of one thread of `count` in one block of `grid`: the numbers of its block, then its own."""
    frames = [
        T.launch_thread(f"blockIdx.{axis}", size) for axis, size in zip("xyz", grid, strict=False)
    ]
    frames.append(T.launch_thread("threadIdx.x", i64(count)))
    found = [frame.__enter__() for frame in frames]
    yield tuple(found)
    for frame in reversed(frames):
        frame.__exit__(None, None, None)


def registers(count: int, dtype: str = "float32") -> Any:
    """Memory of one thread."""
    return T.alloc_buffer((i64(count),), dtype, scope="local")


def shared(count: int, dtype: str = "float32") -> Any:
    """Memory of one block."""
    return T.alloc_buffer((i64(count),), dtype, scope="shared")


def meet() -> None:
    """Threads of a block wait for each other: what one wrote to shared memory the others see."""
    T.evaluate(T.tvm_storage_sync("shared"))


def f32(value: Any) -> Any:
    """A value or a number as f32."""
    return T.float32(value) if isinstance(value, int | float) else T.cast(value, "float32")


def linear(n: int, k: int, dtype: str, bias: bool, out: str) -> Any:
    """(x [T, K], w [N, K], bias [N]), all of one type -> [T, N] of another.

    A warp multiplies its column with up to 8 rows: thread i sums columns i, i + 32, ... in order, and what the 32 have
    is added in halves.
    """
    with kernel() as made:
        rows = T.int64()
        x = argument("x", (rows, i64(k)), dtype)
        w = argument("w", (i64(n), i64(k)), dtype)
        b = argument("bias", (i64(n),), dtype) if bias else None
        y = argument("y", (rows, i64(n)), out)
        grid = (i64(-(-n // _WARPS)), (rows + i64(_ROWS - 1)) // i64(_ROWS))
        with threads(grid, _WARPS * WARP) as (block, group, thread):
            lane = bound(thread % i64(WARP))
            column = bound(block * i64(_WARPS) + thread // i64(WARP))
            here = bound(T.min(column, i64(n - 1)))  # (all threads of a warp go all the way)
            first = bound(group * i64(_ROWS))
            sums = registers(_ROWS)
            for r in range(_ROWS):
                store(sums, f32(0), i64(r))
            with loop(i64(-(-k // WARP))) as step:
                at = bound(step * i64(WARP) + lane)
                with when(at < i64(k)):
                    weight = bound(f32(w[here, at]))
                    for r in range(_ROWS):
                        row = T.min(first + i64(r), rows - i64(1))
                        store(sums, sums[i64(r)] + f32(x[row, at]) * weight, i64(r))
            for r in range(_ROWS):
                for apart in (16, 8, 4, 2, 1):
                    other = T.tvm_warp_shuffle_down(
                        T.uint32(0xFFFFFFFF),
                        sums[i64(r)],
                        T.int32(apart),
                        T.int32(WARP),
                        T.int32(WARP),
                    )
                    store(sums, sums[i64(r)] + other, i64(r))
                row = first + i64(r)
                with when(T.And(lane == i64(0), T.And(column < i64(n), row < rows))):
                    total = sums[i64(r)] if b is None else sums[i64(r)] + f32(b[here])
                    store(y, T.cast(total, out), row, here)
    return made.get()


def cache_write(heads: int, rows: int, width: int, cache: str, values: str) -> Any:
    """(cache [Hkv, R, D], x [T, Hkv, D], at i64[T]) -> none: rows `at` of the cache are x, a thread each element."""
    with kernel() as made:
        count = T.int64()
        c = argument("cache", (i64(heads), i64(rows), i64(width)), cache)
        x = argument("x", (count, i64(heads), i64(width)), values)
        at = argument("at", (count,), "int64")
        each = -(-width // WARP) * WARP
        with threads((count, i64(heads)), each) as (t, head, d), when(d < i64(width)):
            store(c, T.cast(x[t, head, d], cache), head, at[t], d)
    return made.get()


def cache_copy(rows: int, width: int, state: str, values: str) -> Any:
    """(state [R, H], x [T, H]) -> none: the first rows of the state are x."""
    with kernel() as made:
        count = T.int64()
        kept = argument("state", (i64(rows), i64(width)), state)
        x = argument("x", (count, i64(width)), values)
        with threads((count, i64(-(-width // _SCAN))), _SCAN) as (t, piece, thread):
            at = bound(piece * i64(_SCAN) + thread)
            with when(at < i64(width)):
                store(kept, T.cast(x[t, at], state), t, at)
    return made.get()


def attention(shape: Attention, query: str) -> Any:
    """(q [T, Hq, D], k, v, positions, rows i64[T][, sinks f32[Hq]]) -> [T, Hq, Dv] as q; only what is seen is read.

    A block computes one head of one row, 128 keys at a time from the text's first row on, so that sums run alike
    wherever in the cache it lies: place p of a text is row p + rows[t] - positions[t] of the cache.
    """
    wide = -(-shape.value_width // _TILE)
    with kernel() as made:
        count = T.int64()
        q = argument("q", (count, i64(shape.heads), i64(shape.width)), query)
        k = argument("k", (i64(shape.kv_heads), i64(shape.rows), i64(shape.width)), shape.cache)
        v = argument(
            "v", (i64(shape.kv_heads), i64(shape.rows), i64(shape.value_width)), shape.cache
        )
        positions, rows = (
            argument("positions", (count,), "int64"),
            argument("rows", (count,), "int64"),
        )
        sinks = argument("sinks", (i64(shape.heads),)) if shape.sinks else None
        y = argument("y", (count, i64(shape.heads), i64(shape.value_width)), query)
        with threads((i64(shape.heads), count), _TILE) as (head, t, thread):
            own = bound(head // i64(shape.group))
            begin = bound(rows[t] - positions[t])
            last = bound(positions[t])
            start = bound(T.max(last - i64(shape.window - 1), i64(0)) if shape.window else i64(0))
            turned, scores = shared(shape.width), shared(_TILE)
            sums, most, total = registers(wide), registers(1), registers(1)
            mine, higher, part = registers(1), registers(1), registers(1)
            for piece in range(-(-shape.width // _TILE)):
                d = i64(piece * _TILE) + thread
                with when(d < i64(shape.width)):
                    store(turned, f32(q[t, head, d]), d)
            for c in range(wide):
                store(sums, f32(0), i64(c))
            store(most, f32(float("-inf")) if sinks is None else sinks[head], i64(0))
            store(total, f32(0 if sinks is None else 1), i64(0))
            with loop((last - start + i64(_TILE)) // i64(_TILE)) as tile:
                first = bound(start + tile * i64(_TILE))
                place = bound(first + thread)
                meet()
                store(mine, f32(float("-inf")), i64(0))
                with when(place <= last):
                    store(part, f32(0), i64(0))
                    with loop(i64(shape.width)) as d:
                        store(
                            part, part[i64(0)] + turned[d] * f32(k[own, begin + place, d]), i64(0)
                        )
                    score = part[i64(0)] * f32(shape.scale)
                    if shape.softcap:
                        score = T.tanh(score / f32(shape.softcap)) * f32(shape.softcap)
                    store(mine, score, i64(0))
                store(scores, mine[i64(0)], thread)
                meet()
                store(higher, most[i64(0)], i64(0))
                with loop(i64(_TILE)) as j:
                    store(higher, T.max(higher[i64(0)], scores[j]), i64(0))
                meet()
                store(scores, T.exp(mine[i64(0)] - higher[i64(0)]), thread)
                meet()
                shrink = bound(T.exp(most[i64(0)] - higher[i64(0)]))
                store(part, f32(0), i64(0))
                with loop(i64(_TILE)) as j:
                    store(part, part[i64(0)] + scores[j], i64(0))
                store(total, total[i64(0)] * shrink + part[i64(0)], i64(0))
                store(most, higher[i64(0)], i64(0))
                for c in range(wide):
                    store(sums, sums[i64(c)] * shrink, i64(c))
                with loop(T.min(i64(_TILE), last - first + i64(1))) as j:
                    for c in range(wide):
                        d = i64(c * _TILE) + thread
                        with when(d < i64(shape.value_width)):
                            value = f32(v[own, begin + first + j, d])
                            store(sums, sums[i64(c)] + scores[j] * value, i64(c))
            for c in range(wide):
                d = i64(c * _TILE) + thread
                with when(d < i64(shape.value_width)):
                    store(y, T.cast(sums[i64(c)] / total[i64(0)], query), t, head, d)
    return made.get()


def _u64(value: int) -> Any:
    """A number of 64 bits; TIR's constants have room for 63."""
    return T.reinterpret("uint64", i64(value - (1 << 64))) if value >> 63 else T.uint64(value)


def _mixed(x: Any) -> Any:
    """One step of SplitMix64, as `specc.ir.dialect.splitmix64`."""
    x = bound(x + _u64(0x9E3779B97F4A7C15))
    x = bound(T.bitwise_xor(x, T.shift_right(x, _u64(30))) * _u64(0xBF58476D1CE4E5B9))
    x = bound(T.bitwise_xor(x, T.shift_right(x, _u64(27))) * _u64(0x94D049BB133111EB))
    return bound(T.bitwise_xor(x, T.shift_right(x, _u64(31))))


def choose(rows: Any, size: int, vocab_size: int, samples: bool) -> Any:
    """(logits f32[T, size][, length i64[1], temperature f64[1], seed i64[1]]) -> each row's choice i64[T].

    As `specc.accept` says it if it `samples`, where a NaN makes it -1; else as `specc.argmax`, which passes over NaNs.
    `rows`: T, or a number. Of equals the lowest is taken.
    """
    with kernel() as made:
        count = T.int64() if rows == "T" else i64(rows)
        logits = argument("logits", (count, i64(size)))
        given = [argument(n, (i64(1),), d) for n, d in _NOISE] if samples else []
        chosen = argument("chosen", (count,), "int64")
        with threads((count,), _SCAN) as (t, thread):
            highest, lowest, broken = (shared(_SCAN, d) for d in ("float64", "int64", "int64"))
            best, where, bad = registers(1, "float64"), registers(1, "int64"), registers(1, "int64")
            store(best, T.float64(float("-inf")), i64(0))
            store(where, i64(0), i64(0))
            store(bad, i64(0), i64(0))
            base = heat = None
            if samples:
                length, temperature, seed = given
                heat = bound(temperature[i64(0)])
                position = T.cast(length[i64(0)] + i64(1) + t, "uint64")
                base = _mixed(T.bitwise_xor(_mixed(T.cast(seed[i64(0)], "uint64")), position))
            with loop(i64(-(-vocab_size // _SCAN))) as step:
                at = bound(step * i64(_SCAN) + thread)
                with when(at < i64(vocab_size)):
                    value = bound(T.cast(logits[t, at], "float64"))
                    score = registers(1, "float64")
                    store(score, value, i64(0))
                    if samples:
                        with when(heat > T.float64(0)):
                            bits = T.shift_right(
                                _mixed(T.bitwise_xor(base, T.cast(at, "uint64"))), _u64(12)
                            )
                            # (TVM writes doubles with 15 decimals, so nothing small may be one.)
                            share = (T.cast(bits, "float64") + T.float64(0.5)) / T.float64(2.0**52)
                            noise = T.float64(0) - T.log(T.float64(0) - T.log(share))
                            store(score, value / heat + noise, i64(0))
                        # (`value != value` TVM takes for false.)
                        with when(T.isnan(value)):
                            store(bad, i64(1), i64(0))
                    with when(score[i64(0)] > best[i64(0)]):
                        store(best, score[i64(0)], i64(0))
                        store(where, at, i64(0))
            # Each thread asks one further round the ring for what it knows, half as far each time: then all know all.
            apart = _SCAN
            while apart := apart // 2:
                for memory, mine in ((highest, best), (lowest, where), (broken, bad)):
                    store(memory, mine[i64(0)], thread)
                meet()
                other = bound((thread + i64(apart)) % i64(_SCAN))
                theirs, there, fault = (
                    bound(highest[other]),
                    bound(lowest[other]),
                    bound(broken[other]),
                )
                own, here = bound(best[i64(0)]), bound(where[i64(0)])
                better = bound(T.Or(theirs > own, T.And(theirs == own, there < here)))
                store(best, T.Select(better, theirs, own), i64(0))
                store(where, T.Select(better, there, here), i64(0))
                store(bad, T.max(bad[i64(0)], fault), i64(0))
                meet()
            with when(thread == i64(0)):
                found = where[i64(0)]
                store(
                    chosen, T.Select(bad[i64(0)] > i64(0), i64(-1), found) if samples else found, t
                )
    return made.get()


_NOISE = (("length", "int64"), ("temperature", "float64"), ("seed", "int64"))


def verdict(rows: int) -> Any:
    """(tokens i64[K+1], chosen i64[K+1]) -> tokens i64[K+1], accepted i64[1], as `specc.accept`, by one thread."""
    with kernel() as made:
        tokens = argument("tokens", (i64(rows),), "int64")
        chosen = argument("chosen", (i64(rows),), "int64")
        result = argument("result", (i64(rows),), "int64")
        accepted = argument("accepted", (i64(1),), "int64")
        with threads((i64(1),), WARP) as (_, thread), when(thread == i64(0)):
            last = registers(1, "int64")
            # A row with a NaN, -1, equals no draft: it is the last that counts.
            store(last, i64(rows - 1), i64(0))
            with loop(i64(rows - 1)) as i:
                row = bound(i64(rows - 2) - i)
                with when(chosen[row] != tokens[row + i64(1)]):
                    store(last, row, i64(0))
            broken = bound(chosen[last[i64(0)]] < i64(0))
            store(last, T.Select(broken, i64(-1), last[i64(0)]), i64(0))
            store(accepted, last[i64(0)], i64(0))
            with loop(i64(rows)) as row:
                store(result, T.Select(row <= last[i64(0)], chosen[row], i64(0)), row)
    return made.get()
