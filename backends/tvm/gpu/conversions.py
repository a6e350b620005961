"""What operations become on a GPU, where that is not what they become on a CPU."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import fx
from tvm import relax

from specc.backends.cuda import kernels as _operations
from specc.backends.tvm.attention import Attention
from specc.backends.tvm.conversions import rounded
from specc.backends.tvm.converter import (
    CONVERSIONS,
    Conversion,
    Converter,
    arguments,
    converts,
    dtype_of,
)
from specc.backends.tvm.gpu import templates
from specc.errors import BackendError
from specc.ir import TensorType
from specc.ir.graphs import type_of

assert _operations  # defines specc_cuda

aten = torch.ops.aten
cuda = torch.ops.specc_cuda
op = relax.op

_ON_GPU: dict[Any, Conversion] = {}


class GpuConverter(Converter):
    """A leaf in the making for a GPU: kernels of ours that are loops of a CPU have no place in it."""

    conversions: ClassVar[Mapping[Any, Conversion]] = ChainMap(_ON_GPU, CONVERSIONS)

    def call(self, kernel: Any, name: str, args: Sequence[Any], *types: TensorType) -> list[Any]:
        """As on a CPU, but refused unless a conversion of this file asks."""
        if self._node is not None and self._node.target not in _ON_GPU:
            raise self.refuse(f"there is no TVM form of {self._node.target} on a GPU")
        return super().call(kernel, name, args, *types)

    def refuse(self, what: str) -> BackendError:
        """The error for the operation at hand, with what can be done instead."""
        return BackendError(
            "SPECC-E0441", what, where=self.where(), expected="operations in backends/tvm/gpu/conversions.py",
            cure="leave out --backend tvm: Inductor and Triton make GPUs' code too",
        )  # fmt: skip


_converts = partial(converts, into=_ON_GPU)


@_converts(cuda.linear.default)
def _linear(c: Converter, node: fx.Node) -> Any:
    x, w, bias, _ = arguments(node)
    (n, k), dtype = type_of(w).at(), dtype_of(type_of(x).dtype)
    kernel = templates.linear(n, k, dtype, bias is not None, dtype_of(type_of(node).dtype))
    operands = [c.values[x], c.values[w], *([] if bias is None else [c.values[bias]])]
    return c.call(kernel, "linear", operands, type_of(node))[0]


@_converts(cuda.cache_write.default)
def _cache_write(c: Converter, node: fx.Node) -> Any:
    cache, x, rows = arguments(node)
    (heads, capacity, width), into = type_of(cache).at(), dtype_of(type_of(cache).dtype)
    kernel = templates.cache_write(heads, capacity, width, into, dtype_of(type_of(x).dtype))
    c.write(kernel, "cache_write", cache, [c.values[x], c.values[rows]])


@_converts(cuda.cache_copy.default)
def _cache_copy(c: Converter, node: fx.Node) -> Any:
    x, state = arguments(node)
    (capacity, width), into = type_of(state).at(), dtype_of(type_of(state).dtype)
    kernel = templates.cache_copy(capacity, width, into, dtype_of(type_of(x).dtype))
    c.write(kernel, "cache_copy", state, [c.values[x]])


@_converts(cuda.attention.default)
def _attention(c: Converter, node: fx.Node) -> Any:
    q, k, v, positions, rows, parents, scale, window, softcap, sinks = arguments(node)
    if parents is not None:
        raise c.refuse("there are no token trees by TVM on a GPU")
    _, heads, width = type_of(q).shape
    kv_heads, capacity, value_width = type_of(v).at()
    shape = Attention(
        heads, kv_heads, capacity, width, value_width, dtype_of(type_of(k).dtype), scale, window, softcap,  # type: ignore[arg-type]
        sinks is not None, False,
    )  # fmt: skip
    operands = [c.values[n] for n in (q, k, v, positions, rows)]
    operands += [c.value(sinks, "f32")] if sinks is not None else []
    kernel = templates.attention(shape, dtype_of(type_of(q).dtype))
    return c.call(kernel, "attention", operands, type_of(node))[0]


@_converts(cuda.argmax.default)
def _argmax(c: Converter, node: fx.Node) -> Any:
    logits, vocab_size = arguments(node)
    rows, size = type_of(logits).shape
    kernel = templates.choose(rows, int(size), vocab_size, samples=False)
    return c.call(kernel, "argmax", [c.values[logits]], type_of(node))[0]


@_converts(cuda.accept.default)
def _accept(c: Converter, node: fx.Node) -> list[Any]:
    tokens, logits, length, temperature, seed, vocab_size = arguments(node)
    rows, size = type_of(logits).at()
    kernel = templates.choose(rows, size, vocab_size, samples=True)
    given = [c.values[n] for n in (logits, length, temperature, seed)]
    (chosen,) = c.call(kernel, "choose", given, type_of(tokens))
    types = (type_of(tokens), TensorType("i64", (1,)))
    return c.call(templates.verdict(rows), "verdict", [c.values[tokens], chosen], *types)


@_converts(cuda.row.default)
def _row(c: Converter, node: fx.Node) -> Any:
    x, index = arguments(node)
    return c.emit(op.take(c.values[x], c.values[index], axis=0, mode="clip"))


@_converts(aten.embedding.default)
def _embedding(c: Converter, node: fx.Node) -> Any:
    """Rows of a table: the engine has looked at the ids, and nothing here can fail."""
    table, indices = arguments(node)[:2]
    return c.emit(op.take(c.values[table], c.values[indices], axis=0, mode="clip"))


@_converts(aten.silu.default, aten.sigmoid.default)
def _sigmoid(c: Converter, node: fx.Node) -> Any:
    x = c.value(node.args[0], "f32")
    value = c.emit(op.sigmoid(x))
    if node.target is aten.silu.default:
        value = c.emit(op.multiply(x, value))
    return rounded(c, value, node)
