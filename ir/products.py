"""The operations of the dialect that read packed matrices.

What they compute is exact up to the order that a kernel may choose in f32 and bf16: there an output is one chain of
fused multiply-adds over k. With quantised weights the order is part of the meaning (`_integer_linear`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specc.ir.dialect import operation
from specc.ir.encodings import BLOCK, TILE, Encoding

_SMALLEST = 1e-30
"""Blocks of activations below this count as zero, so that 127 / max is finite."""


@operation(
    "linear(Tensor x, Tensor w, Tensor? bias, int n, str encoding) -> Tensor",
    lambda x, w, bias, n, encoding: x.new_empty(*x.shape[:-1], n),
)
def _linear(x: Tensor, w: Tensor, bias: Tensor | None, n: int, encoding: str) -> Tensor:
    """X f32[..., K], w a packed [n, K], bias f32[n] -> f32[..., n]."""
    chosen = Encoding.parse(encoding)
    if not chosen.quantised:
        return functional.linear(x, chosen.decode(w, n, x.shape[-1]), bias)
    y = _integer_linear(x.reshape(-1, x.shape[-1]), w, n, chosen).view(*x.shape[:-1], n)
    return y if bias is None else y + bias


def _integer_linear(x: Tensor, packed: Tensor, n: int, encoding: Encoding) -> Tensor:
    """X f32[T, K], quantised to integers as it comes -> f32[T, n].

    For each block of 32 columns in order: y = fma(dot * scale, d, y), then y = fma(sum * scale, m, y) if there are
    minima, where dot is the exact product of integers, sum that of a row's own, and dot * scale is rounded to f32.
    """
    k = x.shape[1]
    q, d, m = encoding.blocks(packed, n, k)
    rows, scales = quantise_rows(x)
    per_scale = (encoding.group or k) // BLOCK
    y = x.new_zeros(len(x), n, dtype=torch.float64)
    for block in range(k // BLOCK):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        scale, group = scales[:, block, None], block // per_scale
        y = _fma((rows[:, part] @ q[:, part].T) * scale, d[:, group], y)
        if m is not None:
            y = _fma(rows[:, part].sum(1, keepdim=True) * scale, m[:, group], y)
    return y.float()


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """X f32[T, K] -> integers in -127..127 (as f32) [T, K] and scales [T, K / 32]: x is nearly integer * scale.

    The scale is max / 127 of the block's magnitudes, and an integer is x * (127 / max) rounded once, to even. A block
    below 1e-30 is zero; one that is not finite gets a scale of NaN, so the whole row's results are NaN.
    """
    blocks = x.view(len(x), -1, BLOCK)
    most = blocks.abs().amax(-1)  # NaN if there is one
    usable = most.isfinite() & (most >= _SMALLEST)
    inverse = torch.where(usable, 127 / most, 0)[..., None]
    integers = torch.where(usable[..., None], torch.round(blocks.double() * inverse).float(), 0)
    scales = torch.where(usable, most / 127, torch.where(most.isfinite(), 0, torch.nan))
    return integers.view_as(x), scales


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The fused a * b + c: a product of floats is exact in double, and the sum is rounded to float."""
    return (a.double() * b.double() + c).float().double()


@operation(
    "embedding(Tensor tokens, Tensor w, int n, int k, str encoding) -> Tensor",
    lambda tokens, w, n, k, encoding: w.new_empty(tokens.shape[0], k, dtype=torch.float32),
)
def _embedding(tokens: Tensor, w: Tensor, n: int, k: int, encoding: str) -> Tensor:
    """Tokens i64[T], w a packed [n, k] -> f32[T, k]."""
    tiles = w[tokens // TILE]
    rows = Encoding.parse(encoding).decode(tiles, len(tokens) * TILE, k)
    return rows.view(-1, TILE, k)[torch.arange(len(tokens)), tokens % TILE]
