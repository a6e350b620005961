"""Triton kernels for quantised matrices, in the layout that every backend's have (`ir.encodings`).

What they compute is what `ir.products` says, to the last bit: activations become integers as they come, blocks of 32
columns are multiplied as integers on tensor cores, and sums run over the blocks in order, whatever rows are beside.
Weights are unpacked in registers, and travel in the bits that they are stored in.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from specc.backends.cuda.kernels import BLOCK_N, BLOCK_ROWS

BLOCK_D = 128
"""Columns that one instance looks up."""


@triton.jit
def _stored(w, tile_bytes, n, k, BITS: tl.constexpr, GROUP: tl.constexpr, MINIMUM: tl.constexpr):
    """Of rows `n` and columns `k` of a matrix, which broadcast: the addresses of the integer and of its f16 scale.

    `GROUP` is K where a row has one scale. A minimum lies 32 bytes behind its scale.
    """
    SEGMENT: tl.constexpr = GROUP if MINIMUM else 2 * GROUP
    BYTES: tl.constexpr = 64 + SEGMENT * 16 * BITS // 8
    lane = n % 16
    line = w + (n // 16).to(tl.int64) * tile_bytes + k // SEGMENT * BYTES
    column = k % SEGMENT
    integer = line + 64 + column // (32 // BITS) * 64 + lane * 4 + column % 4
    return integer, line + column // GROUP * 32 + lane * 2


@triton.jit
def _unpacked(byte, k, BITS: tl.constexpr, MINIMUM: tl.constexpr):
    value = byte.to(tl.int32)
    if BITS == 4:
        value = (value >> (k // 4 % 2 * 4)) & 15
        if not MINIMUM:
            value -= 8
    else:
        value -= 128
    return value


@triton.jit
def _half(at):
    return tl.load(at.to(tl.pointer_type(tl.float16), bitcast=True)).to(tl.float32)


@triton.jit
def _packed_linear_kernel(
    x, w, bias, y, rows, columns, tile_bytes, DEPTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    MINIMUM: tl.constexpr, HAS_BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    k = tl.arange(0, 32)
    inside = tl.minimum(
        n, (columns + 15) // 16 * 16 - 1
    )  # rows of a tile that nobody needs are there
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    x_at = x + m[:, None].to(tl.int64) * DEPTH + k[None, :]
    for start in range(0, DEPTH, 32):
        block = tl.load(x_at + start, mask=m[:, None] < rows, other=0.0)
        most = tl.max(tl.abs(block), 1)
        finite = tl.sum((block - block == 0.0).to(tl.int32), 1) == 32
        usable = finite & (most >= 1e-30)
        inverse = tl.where(usable, tl.math.div_rn(127.0, tl.where(usable, most, 1.0)), 0.0)
        # Rounded once, to even: the sum's unit is 1. (What is not usable is multiplied with 0 or NaN below.)
        known = tl.where(usable[:, None], block, 0.0)
        integers = (
            tl.fma(
                known,
                tl.broadcast_to(inverse[:, None], known.shape),
                tl.full(known.shape, 12582912.0, tl.float32),
            )
            - 12582912.0
        )
        scale = tl.where(usable, tl.math.div_rn(most, 127.0), tl.where(finite, 0.0, float("nan")))
        at, _ = _stored(w, tile_bytes, inside[None, :], start + k[:, None], BITS, GROUP, MINIMUM)
        weights = _unpacked(tl.load(at), start + k[:, None], BITS, MINIMUM).to(tl.int8)
        _, first = _stored(w, tile_bytes, inside, start, BITS, GROUP, MINIMUM)
        dots = (
            tl.dot(integers.to(tl.int8), weights, out_dtype=tl.int32).to(tl.float32)
            * scale[:, None]
        )
        sums = tl.fma(dots, tl.broadcast_to(_half(first)[None, :], sums.shape), sums)
        if MINIMUM:
            own = tl.broadcast_to((tl.sum(integers, 1) * scale)[:, None], sums.shape)
            sums = tl.fma(own, tl.broadcast_to(_half(first + 32)[None, :], sums.shape), sums)
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=n < columns, other=0.0)[None, :]
    at = y + m[:, None].to(tl.int64) * columns + n[None, :]
    tl.store(at, sums, mask=(m[:, None] < rows) & (n[None, :] < columns))


@triton_op("specc_cuda::packed_linear", mutates_args={})
def packed_linear(
    x: Tensor, w: Tensor, bias: Tensor | None, n: int, bits: int, group: int, minimum: bool
) -> Tensor:
    """`specc.linear`: x f32[T, K], w u8[tiles, bytes] of n rows, bias f32[n] -> f32[T, n].

    `group` columns share a scale; K for one of a whole row.
    """
    x = x.contiguous()
    rows, depth = x.shape
    y = x.new_empty(rows, n)
    grid = (triton.cdiv(n, BLOCK_N), triton.cdiv(rows, BLOCK_ROWS))
    wrap_triton(_packed_linear_kernel)[grid](
        x, w, x if bias is None else bias, y, rows, n, w.shape[1], depth, bits, group, minimum, bias is not None,
        BLOCK_ROWS, BLOCK_N,
    )  # fmt: skip
    return y


@triton.jit
def _packed_embedding_kernel(
    tokens, w, y, tile_bytes, DEPTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, MINIMUM: tl.constexpr,
    BD: tl.constexpr
):  # fmt: skip
    t = tl.program_id(0)
    k = tl.program_id(1) * BD + tl.arange(0, BD)
    row = tl.load(tokens + t)
    inside = tl.minimum(k, DEPTH - 1)
    at, scale_at = _stored(w, tile_bytes, row, inside, BITS, GROUP, MINIMUM)
    value = _unpacked(tl.load(at), inside, BITS, MINIMUM).to(tl.float32) * _half(scale_at)  # exact
    if MINIMUM:
        value += _half(scale_at + 32)
    tl.store(y + t.to(tl.int64) * DEPTH + k, value, mask=k < DEPTH)


@triton_op("specc_cuda::packed_embedding", mutates_args={})
def packed_embedding(
    tokens: Tensor, w: Tensor, k: int, bits: int, group: int, minimum: bool
) -> Tensor:
    """`specc.embedding`: tokens i64[T], w u8[tiles, bytes] of rows of k -> f32[T, k]."""
    y = w.new_empty(tokens.shape[0], k, dtype=torch.float32)
    wrap_triton(_packed_embedding_kernel)[(tokens.shape[0], triton.cdiv(k, BLOCK_D))](
        tokens, w, y, w.shape[1], k, bits, group, minimum, BLOCK_D
    )
    return y
