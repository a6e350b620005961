"""Specc's own Triton kernels, as operations that Inductor compiles along with a leaf.

Shapes: T rows, N x K a matrix, Hq/Hkv heads, D and Dv widths of heads, R rows of a cache, V vocabulary.
In each, a program instance computes whole rows, or whole tiles of columns, by loops whose order the number of rows does
not change: a row's sums are the same beside any others. Products are of plain f32 (no TF32), sums are f32.
Under TRITON_INTERPRET=1 the same code runs on CPU tensors, which is how tests execute it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

BLOCK_ROWS = 16
"""Rows that share one reading of the weights: 1 to 16 rows cost the same traffic."""

BLOCK_N, BLOCK_K, BLOCK_S, BLOCK_V = 32, 64, 64, 1024


@triton.jit
def _linear_kernel(
    x, w, bias, y, rows, columns, depth, HAS_BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    x_at = x + m[:, None].to(tl.int64) * depth
    w_at = w + n[None, :].to(tl.int64) * depth
    for start in range(0, depth, BK):
        here = start + k
        a = tl.load(
            x_at + here[None, :], mask=(m[:, None] < rows) & (here[None, :] < depth), other=0.0
        )
        b = tl.load(
            w_at + here[:, None], mask=(n[None, :] < columns) & (here[:, None] < depth), other=0.0
        )
        sums += tl.dot(a, b, input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=n < columns, other=0.0).to(tl.float32)[None, :]
    at = y + m[:, None].to(tl.int64) * columns + n[None, :]
    tl.store(at, sums, mask=(m[:, None] < rows) & (n[None, :] < columns))


@triton_op("specc_cuda::linear", mutates_args={})
def linear(x: Tensor, w: Tensor, bias: Tensor | None, wide: bool) -> Tensor:
    """X [T, K], w [N, K], bias [N], all f32, f16 or bf16 -> [T, N] of the same, or f32 if `wide`.

    Sums are f32 whatever is multiplied. Each weight is read once for 16 rows.
    """
    x, w = x.contiguous(), w.contiguous()
    rows, depth = x.shape
    columns = w.shape[0]
    y = x.new_empty(rows, columns, dtype=torch.float32 if wide else x.dtype)
    grid = (triton.cdiv(columns, BLOCK_N), triton.cdiv(rows, BLOCK_ROWS))
    wrap_triton(_linear_kernel)[grid](
        x, w, x if bias is None else bias, y, rows, columns, depth, bias is not None, BLOCK_ROWS, BLOCK_N, BLOCK_K
    )  # fmt: skip
    return y


@triton.jit
def _cache_write_kernel(
    cache, x, rows, cache_rows, x_row, x_head, x_column, WIDTH: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    t, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BD)
    row = tl.load(rows + t)
    value = tl.load(x + t * x_row + head * x_head + d * x_column, mask=d < WIDTH, other=0.0)
    at = cache + (head.to(tl.int64) * cache_rows + row) * WIDTH + d
    tl.store(at, value.to(cache.dtype.element_ty), mask=d < WIDTH)


@triton_op("specc_cuda::cache_write", mutates_args={"cache"})
def cache_write(cache: Tensor, x: Tensor, rows: Tensor) -> None:
    """Rows `rows` i64[T] of cache [Hkv, R, D] := x [T, Hkv, D], in place, rounded to the cache's dtype."""
    heads, cache_rows, width = cache.shape
    wrap_triton(_cache_write_kernel)[(x.shape[0], heads)](
        cache, x, rows, cache_rows, x.stride(0), x.stride(1), x.stride(2), width, triton.next_power_of_2(width)
    )  # fmt: skip


@triton.jit
def _copy_rows_kernel(
    source, first, target, last, width, HAS_FIRST: tl.constexpr, BC: tl.constexpr
):
    t, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BC + tl.arange(0, BC)
    row = t
    if HAS_FIRST:
        row = tl.minimum(tl.maximum(tl.load(first), 0), last)
    value = tl.load(source + row * width + c, mask=c < width)
    tl.store(target + t * width + c, value.to(target.dtype.element_ty), mask=c < width)


@triton_op("specc_cuda::row", mutates_args={})
def row(x: Tensor, index: Tensor) -> Tensor:
    """`specc.row`: x [T, ...], index i64[1], clamped to the rows -> [1, ...]."""
    x = x.contiguous()
    y = x.new_empty(1, *x.shape[1:])
    width = y.numel()
    wrap_triton(_copy_rows_kernel)[(1, triton.cdiv(width, BLOCK_V))](
        x, index, y, x.shape[0] - 1, width, True, BLOCK_V
    )
    return y


@triton_op("specc_cuda::cache_copy", mutates_args={"state"})
def cache_copy(x: Tensor, state: Tensor) -> None:
    """`specc.cache_copy`: rows 0..T-1 of state [R, H] := x [T, H], in place."""
    x = x.contiguous()
    rows, width = x.shape
    wrap_triton(_copy_rows_kernel)[(rows, triton.cdiv(width, BLOCK_V))](
        x, x, state, rows - 1, width, False, BLOCK_V
    )


@triton.jit
def _attention_kernel(
    q, k, v, positions, rows, parents, sinks, y, cache_rows, q_row, q_head, q_column, heads,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    WIDTH_V: tl.constexpr, WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr, IN_TREE: tl.constexpr, BS: tl.constexpr,
    BD: tl.constexpr, BDV: tl.constexpr
):  # fmt: skip
    t, head = tl.program_id(0), tl.program_id(1)
    d, dv, s = tl.arange(0, BD), tl.arange(0, BDV), tl.arange(0, BS)
    root = t.to(tl.int64)
    if IN_TREE:
        above = tl.load(parents + root)
        while above >= 0:
            root = above
            above = tl.load(parents + root)
    # The row of the cache where t would stand if its ancestors stood one behind the other, as in a text they do.
    begin = tl.load(rows + root) - tl.load(positions + root)
    first = begin
    last = begin + tl.load(positions + t)
    if WINDOW > 0:
        first = tl.maximum(first, last - WINDOW + 1)
    own = (head // GROUP).to(tl.int64) * cache_rows
    query = tl.load(q + t * q_row + head * q_head + d * q_column, mask=d < WIDTH, other=0.0).to(
        tl.float32
    )
    most = tl.full((1,), float("-inf"), dtype=tl.float32)
    if HAS_SINKS:
        most = tl.zeros((1,), dtype=tl.float32) + tl.load(sinks + head).to(tl.float32)
    total = tl.where(most == float("-inf"), 0.0, 1.0)
    result = tl.zeros((BDV,), dtype=tl.float32)
    # Blocks begin at the text's own first row, so that sums run alike wherever in the cache it lies.
    for start in range(first, last + 1, BS):
        row = start + s
        seen = row <= last
        if IN_TREE:
            node = t.to(tl.int64)
            above = tl.load(parents + node)
            place = row
            while above >= 0:
                place = tl.where(
                    row == begin + tl.load(positions + node), tl.load(rows + node), place
                )
                node = above
                above = tl.load(parents + node)
            row = place
        keys = tl.load(k + (own + row[:, None]) * WIDTH + d[None, :],
                       mask=seen[:, None] & (d[None, :] < WIDTH), other=0.0).to(tl.float32)  # fmt: skip
        scores = tl.sum(keys * query[None, :], 1) * SCALE
        if SOFTCAP > 0:
            # tanh by exp: 1 - 2 / (e^2x + 1) has no overflow that shows.
            scores = SOFTCAP * (1.0 - 2.0 / (tl.exp(2.0 * (scores / SOFTCAP)) + 1.0))
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 0))
        weights = tl.exp(scores - higher)
        shrink = tl.exp(most - higher)
        values = tl.load(v + (own + row[:, None]) * WIDTH_V + dv[None, :],
                         mask=seen[:, None] & (dv[None, :] < WIDTH_V), other=0.0).to(tl.float32)  # fmt: skip
        total = total * shrink + tl.sum(weights, 0)
        result = result * shrink + tl.sum(weights[:, None] * values, 0)
        most = higher
    at = y + (t.to(tl.int64) * heads + head) * WIDTH_V + dv
    tl.store(at, result / total, mask=dv < WIDTH_V)


@triton_op("specc_cuda::attention", mutates_args={})
def attention(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, parents: Tensor | None, scale: float,
    window: int, softcap: float, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """`specc.cached_attention`; a node of a tree sums in the order of its path.

    q [T, Hq, D], caches [Hkv, R, D] and [Hkv, R, Dv], each f32, f16 or bf16 -> [T, Hq, Dv] as q. Scores and sums
    are f32. Reads the rows that a text has, and no others.
    """
    count, heads, width = q.shape
    cache_heads, cache_rows, width_v = v.shape
    y = q.new_empty(count, heads, width_v)
    wrap_triton(_attention_kernel)[(count, heads)](
        q, k, v, positions, rows, rows if parents is None else parents, q if sinks is None else sinks, y, cache_rows,
        q.stride(0), q.stride(1), q.stride(2), heads, scale, softcap, heads // cache_heads, width, width_v, window,
        sinks is not None, parents is not None, BLOCK_S, triton.next_power_of_2(width), triton.next_power_of_2(width_v),
    )  # fmt: skip
    return y


@triton.jit
def mixed(x):
    """One step of SplitMix64, as `specc.ir.dialect.splitmix64`."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def choose_kernel(
    logits, temperature, seed, length, parents, chosen, size, V: tl.constexpr, SAMPLES: tl.constexpr,
    IN_TREE: tl.constexpr, BV: tl.constexpr
):  # fmt: skip
    """A row's choice as `specc.accept` says it, a node's at the position of its depth; a NaN is -1 if it SAMPLES."""
    t = tl.program_id(0)
    depth = t.to(tl.int64)
    if IN_TREE:
        node = depth
        depth = depth - depth
        while node > 0:
            node = tl.load(parents + node)
            depth += 1
    at = tl.arange(0, BV)
    where = tl.zeros((BV,), dtype=tl.int32)
    bad = tl.zeros((BV,), dtype=tl.int32)
    most = tl.full((BV,), float("-inf"), dtype=tl.float64)
    heat = 0.0
    base = tl.zeros((1,), dtype=tl.uint64)
    if SAMPLES:
        heat = tl.load(temperature)
        root = tl.load(seed + tl.arange(0, 1)).to(tl.uint64)
        position = (tl.load(length + tl.arange(0, 1)) + 1 + depth).to(tl.uint64)
        base = mixed(mixed(root) ^ position)
    for start in range(0, V, BV):
        here = start + at
        value = tl.load(logits + t.to(tl.int64) * size + here, mask=here < V, other=float("-inf"))
        bad |= (value != value).to(tl.int32)
        score = value.to(tl.float64)
        if heat > 0:
            bits = mixed(base ^ here.to(tl.uint64)) >> 12
            noise = -tl.log(-tl.log((bits.to(tl.float64) + 0.5) * 2.220446049250313e-16))
            score = tl.where(here < V, score / heat + noise, float("-inf"))
        higher = score > most
        most = tl.where(higher, score, most)
        where = tl.where(higher, here, where)
    highest = tl.max(most, 0)
    best = tl.min(tl.where(most == highest, where, V), 0).to(tl.int64)
    if SAMPLES:
        best = tl.where(tl.max(bad, 0) > 0, -1, best)
    tl.store(chosen + t, best)


@triton_op("specc_cuda::argmax", mutates_args={})
def argmax(logits: Tensor, vocab_size: int) -> Tensor:
    """`specc.argmax` of logits f32[T, V] -> i64[T]; NaNs are passed over."""
    logits = logits.contiguous()
    rows, size = logits.shape
    result = logits.new_empty(rows, dtype=torch.int64)
    wrap_triton(choose_kernel)[(rows,)](
        logits, logits, logits, logits, logits, result, size, vocab_size, False, False, BLOCK_V
    )  # fmt: skip
    return result


@triton.jit
def _accept_kernel(tokens, chosen, result, accepted, ROWS: tl.constexpr, BR: tl.constexpr):
    row = tl.arange(0, BR)
    mine = tl.load(chosen + row, mask=row < ROWS, other=0)
    draft = tl.load(tokens + row + 1, mask=row + 1 < ROWS, other=-2)
    # A row with a NaN, -1, equals no draft: it is the last that counts.
    last = tl.min(tl.where(mine == draft, BR, row), 0)
    broken = tl.sum(tl.where((row == last) & (mine < 0), 1, 0), 0) > 0
    count = tl.where(broken, -1, last).to(tl.int64)
    tl.store(result + row, tl.where(row <= count, mine, 0), mask=row < ROWS)
    tl.store(accepted, count)


@triton_op("specc_cuda::accept", mutates_args={})
def accept(
    tokens: Tensor, logits: Tensor, length: Tensor, temperature: Tensor, seed: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`specc.accept`: tokens i64[K+1], logits f32[K+1, V], ... -> tokens i64[K+1], accepted i64[1].

    Noise is computed in f64 as the CPU's; logarithms may differ in the last bit.
    """
    logits = logits.contiguous()
    rows, size = logits.shape
    chosen, result = torch.empty_like(tokens), torch.empty_like(tokens)
    accepted = tokens.new_empty(1)
    wrap_triton(choose_kernel)[(rows,)](
        logits, temperature, seed, length, length, chosen, size, vocab_size, True, False, BLOCK_V
    )
    wrap_triton(_accept_kernel)[(1,)](
        tokens, chosen, result, accepted, rows, triton.next_power_of_2(int(rows))
    )
    return result, accepted
