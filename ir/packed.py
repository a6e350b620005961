"""Packed matrices: how they are stored, and the operations of the dialect that read them.

A matrix [N, K] is stored as [ceil(N/16), K, 16]: tiles of 16 rows, transposed inside, zero rows at the end. A kernel
then reads one sequential stream, broadcasts activations and needs no horizontal sums; each output is one chain of FMAs
over k, so its bits depend on nothing else in the call.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from specc.ir.dialect import operation

TILE = 16
"""Rows of a tile."""


def pack(matrix: Tensor) -> Tensor:
    """f32[N, K] -> f32[ceil(N/16), K, 16]."""
    rows, columns = matrix.shape
    padded = functional.pad(matrix, (0, 0, 0, -rows % TILE))
    return padded.view(-1, TILE, columns).transpose(1, 2).contiguous()


def unpack(packed: Tensor, rows: int) -> Tensor:
    """The inverse of `pack`."""
    return packed.transpose(1, 2).reshape(-1, packed.shape[1])[:rows]


@operation(
    "linear(Tensor x, Tensor w, Tensor? bias, int n) -> Tensor",
    lambda x, w, bias, n: x.new_empty(*x.shape[:-1], n),
)
def _linear(x: Tensor, w: Tensor, bias: Tensor | None, n: int) -> Tensor:
    """X [..., K], w packed, bias [N] -> [..., N]."""
    return functional.linear(x, unpack(w, n), bias)


@operation(
    "embedding(Tensor tokens, Tensor w, int n) -> Tensor",
    lambda tokens, w, n: w.new_empty(tokens.shape[0], w.shape[1]),
)
def _embedding(tokens: Tensor, w: Tensor, n: int) -> Tensor:
    """Tokens i64[T], w packed [n, H] -> [T, H]."""
    return functional.embedding(tokens, unpack(w, n))
