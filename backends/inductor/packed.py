"""Operations on packed weights: what leaves call instead of ATen's matrix products.

A matrix [N, K] is stored as [ceil(N/16), K, 16]: tiles of 16 rows, transposed inside, zero rows at the end. A kernel then
reads one sequential stream, broadcasts activations and needs no horizontal sums; each output is one chain of FMAs over
k, so its bits depend on nothing else in the call (research/inductor.md, section 3).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

TILE = 16

_library = torch.library.Library("specc", "FRAGMENT")
_library.define("linear(Tensor x, Tensor w, Tensor? bias, int n) -> Tensor")
_library.define("embedding(Tensor tokens, Tensor w, int n) -> Tensor")


def pack(matrix: Tensor) -> Tensor:
    """f32[N, K] -> f32[ceil(N/16), K, 16]."""
    rows, columns = matrix.shape
    padded = functional.pad(matrix, (0, 0, 0, -rows % TILE))
    return padded.view(-1, TILE, columns).transpose(1, 2).contiguous()


def unpack(packed: Tensor, rows: int) -> Tensor:
    """The inverse of `pack`."""
    return packed.transpose(1, 2).reshape(-1, packed.shape[1])[:rows]


@torch.library.register_fake("specc::linear", lib=_library)
def _(x: Tensor, w: Tensor, bias: Tensor | None, n: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], n)


@torch.library.register_fake("specc::embedding", lib=_library)
def _(tokens: Tensor, w: Tensor, n: int) -> Tensor:
    return w.new_empty(tokens.shape[0], w.shape[1])


def _linear(x: Tensor, w: Tensor, bias: Tensor | None, n: int) -> Tensor:
    """x [..., K], w packed, bias [N] -> [..., N]."""
    return functional.linear(x, unpack(w, n), bias)


def _embedding(tokens: Tensor, w: Tensor, n: int) -> Tensor:
    """tokens i64[T], w packed [n, H] -> [T, H]."""
    return functional.embedding(tokens, unpack(w, n))


_library.impl("linear", _linear, "CompositeExplicitAutograd")
_library.impl("embedding", _embedding, "CompositeExplicitAutograd")

_HANDLE = "AtenTensorHandle"


def c_shims() -> dict[object, list[str]]:
    """The C function that Inductor's wrapper calls for each operation, as its option wants it."""
    ops = torch.ops.specc
    return {
        ops.linear.default: [
            f"AOTITorchError aoti_torch_cpu_linear({_HANDLE} x, {_HANDLE} w, {_HANDLE}* bias, int64_t n, {_HANDLE}* ret)"
        ],
        ops.embedding.default: [
            f"AOTITorchError aoti_torch_cpu_embedding({_HANDLE} tokens, {_HANDLE} w, int64_t n, {_HANDLE}* ret)"
        ],
        ops.cache_write.default: [
            f"AOTITorchError aoti_torch_cpu_cache_write({_HANDLE} cache, {_HANDLE} rows, {_HANDLE} positions, {_HANDLE}* none)"
        ],
        ops.cached_attention.default: [
            f"AOTITorchError aoti_torch_cpu_cached_attention({_HANDLE} q, {_HANDLE} k_cache, {_HANDLE} v_cache, "
            f"{_HANDLE} positions, double scale, int64_t window, double softcap, {_HANDLE}* sinks, {_HANDLE}* ret)"
        ],
    }
