"""Operations on packed weights: what leaves call instead of ATen's matrix products.

A matrix [N, K] is stored as [ceil(N/16), K, 16]: tiles of 16 rows, transposed inside, zero rows at the end. A kernel
then reads one sequential stream, broadcasts activations and needs no horizontal sums; each output is one chain of FMAs
over k, so its bits depend on nothing else in the call (research/inductor.md, section 3).
"""

from __future__ import annotations

import re

import torch
from torch import Tensor
from torch.nn import functional

from specc.ir.dialect import operation

TILE = 16


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


_SHIMS = {
    "linear": "H x, H w, H* bias, int64_t n, H* result",
    "embedding": "H tokens, H w, int64_t n, H* result",
    # Inductor passes a place for a result even to an operation that has none.
    "cache_write": "H cache, H rows, H positions, H* none",
    "cached_attention": "H q, H k_cache, H v_cache, H positions, double scale, int64_t window, double softcap, "
    "H* sinks, H* result",
}
"""C arguments of each shim; H stands for AtenTensorHandle, optional tensors are pointers."""


def c_shims() -> dict[object, list[str]]:
    """The C function that Inductor's wrapper calls for each operation, as its option wants it."""
    declarations = {}
    for name, arguments in _SHIMS.items():
        typed = re.sub(r"\bH\b", "AtenTensorHandle", arguments)
        operation = getattr(torch.ops.specc, name).default
        declarations[operation] = [f"AOTITorchError aoti_torch_cpu_{name}({typed})"]
    return declarations
