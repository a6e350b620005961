"""What ATen operations become in ONNX, in operators of the table alone. Reductions and norms are written out.

Reshape stands for every change of shape that moves nothing: it has one form in all opsets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from onnx import TensorProto
from torch import fx

from specc.backends.onnx.emitter import Emitter, lowers
from specc.backends.onnx.store import dtype_number
from specc.ir.dialect import ops
from specc.ir.graphs import type_of

aten = torch.ops.aten


def _args(node: fx.Node) -> tuple[Any, ...]:
    """The arguments; what they are, the operation's schema says."""
    return node.args


def _filled(given: Sequence[Any], *defaults: Any) -> list[Any]:
    """Arguments, and the defaults of those that were left out."""
    return [*given, *defaults[len(given) :]]


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in type_of(x).shape)


def _dtype(node: fx.Node) -> str:
    return type_of(node).dtype


def _reshaped(e: Emitter, value: str, shape: Sequence[int]) -> str:
    return e.add("Reshape", value, e.ints(*shape))


def _sliced(e: Emitter, value: str, dim: int, begin: int, end: int, step: int = 1) -> str:
    return e.add("Slice", value, e.ints(begin), e.ints(end), e.ints(dim), e.ints(step))


@lowers(
    aten.alias.default, aten.detach.default, aten.clone.default, aten.contiguous.default,
    aten.dropout.default, aten.to.dtype, aten._to_copy.default, aten.type_as.default,
)  # fmt: skip
def _copied(e: Emitter, node: fx.Node) -> str:
    return e.value(_args(node)[0], _dtype(node))


@lowers(
    aten.reshape.default, aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.flatten.using_ints,
)  # fmt: skip
def _reshape(e: Emitter, node: fx.Node) -> str:
    (x, *_), shape = _args(node), _shape(node)
    return e.values[x] if _shape(x) == shape else _reshaped(e, e.values[x], shape)


@lowers(aten.permute.default, aten.transpose.int, aten.t.default, aten.movedim.int)
def _transpose(e: Emitter, node: fx.Node) -> str:
    x, *args = _args(node)
    rank = len(_shape(x))
    order: list[int] = list(range(rank))
    if node.target is aten.permute.default:
        order = [d % rank for d in args[0]]
    elif node.target is aten.movedim.int:
        source, target = (int(a) % rank for a in args)
        order.insert(target, order.pop(source))
    else:
        a, b = (int(d) % rank for d in (args or (0, 1)))
        order[a], order[b] = order[b], order[a]
    moved = [d for d in order if _shape(x)[d] != 1]
    if moved == sorted(moved):  # rows of one stay where they are
        return _reshaped(e, e.values[x], _shape(node)) if order != sorted(order) else e.values[x]
    return e.add("Transpose", e.values[x], perm=order)


@lowers(aten.slice.Tensor)
def _slice(e: Emitter, node: fx.Node) -> str:
    x, dim, begin, end, step = _filled(_args(node), None, 0, None, None, 1)
    dim = int(dim) % len(_shape(x))
    size = _shape(x)[dim]
    first, last, _ = slice(begin, end).indices(size)
    if (first, last, step) == (0, size, 1):
        return e.values[x]
    return _sliced(e, e.values[x], dim, first, last, step)


@lowers(aten.select.int)
def _select(e: Emitter, node: fx.Node) -> str:
    x, dim, index = _args(node)
    dim = int(dim) % len(_shape(x))
    value = e.values[x]
    if (size := _shape(x)[dim]) > 1:
        at = int(index) % size
        value = _sliced(e, value, dim, at, at + 1)
    return _reshaped(e, value, _shape(node))


@lowers(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)
def _split(e: Emitter, node: fx.Node) -> list[str]:
    x, dim = _args(node)[0], int(_args(node)[2]) if len(_args(node)) > 2 else 0
    dim %= len(_shape(x))
    parts, begin = [], 0
    for type_ in node.meta["type"]:
        end = begin + int(type_.shape[dim])
        parts.append(_sliced(e, e.values[x], dim, begin, end))
        begin = end
    return parts


@lowers(aten.cat.default, aten.stack.default)
def _cat(e: Emitter, node: fx.Node) -> str:
    parts, dim = _args(node)[0], int(_args(node)[1]) if len(_args(node)) > 1 else 0
    dim, shape = dim % len(_shape(node)), _shape(node)
    values = [e.value(p, _dtype(node)) for p in parts]
    if node.target is aten.stack.default:
        one = [1 if d == dim else size for d, size in enumerate(shape)]
        values = [_reshaped(e, v, one) for v in values]
    return e.add("Concat", *values, axis=dim)


@lowers(aten.expand.default)
def _expand(e: Emitter, node: fx.Node) -> str:
    x, shape = _args(node)[0], _shape(node)
    if _shape(x) == shape:
        return e.values[x]
    return e.add("Expand", e.values[x], e.ints(*shape))


@lowers(aten.embedding.default)
def _embedding(e: Emitter, node: fx.Node) -> str:
    return e.add("Gather", e.values[_args(node)[0]], e.values[_args(node)[1]], axis=0)


@lowers(aten.index_select.default)
def _index_select(e: Emitter, node: fx.Node) -> str:
    x, dim, index = _args(node)
    return e.add("Gather", e.values[x], e.values[index], axis=int(dim) % len(_shape(x)))


@lowers(aten.index_copy.default)
def _index_copy(e: Emitter, node: fx.Node) -> str:
    x, dim, index, rows = _args(node)
    if dim != 0:
        raise e.refuse("rows can be put in place in the first dimension alone")
    at = _reshaped(e, e.add("Cast", e.values[index], to=TensorProto.INT64), (*_shape(index), 1))
    return e.add("ScatterND", e.values[x], at, e.values[rows])


@lowers(aten.index.Tensor)
def _index(e: Emitter, node: fx.Node) -> str:
    x, places = _args(node)
    given = [(d, i) for d, i in enumerate(places) if i is not None]
    if len(given) != 1 or _dtype(given[0][1]) == "bool":
        raise e.refuse("only one dimension can be indexed by integers")
    ((dim, index),) = given
    return e.add("Gather", e.values[x], e.values[index], axis=dim)


@lowers(ops.row.default)
def _row(e: Emitter, node: fx.Node) -> str:
    x, index = _args(node)
    bound = e.constant_of(index)
    rows = _shape(x)[0]
    at = min(max(0, bound), rows - 1)
    return e.values[x] if rows == 1 else _sliced(e, e.values[x], 0, at, at + 1)


@lowers(aten.linear.default)
def _linear(e: Emitter, node: fx.Node) -> str:
    """Gemm takes the matrix as it is stored, so that an embedding and a head that share it are one."""
    x, matrix, *bias = _args(node)
    columns, shape = _shape(x)[-1], _shape(node)
    rows = math.prod(_shape(x)[:-1])
    flat = e.values[x] if len(_shape(x)) == 2 else _reshaped(e, e.values[x], (rows, columns))
    more = [e.values[b] for b in bias if isinstance(b, fx.Node)]
    y = e.add("Gemm", flat, e.values[matrix], *more, transB=1)
    return y if len(shape) == 2 else _reshaped(e, y, shape)


@lowers(aten.bmm.default, aten.mm.default, aten.matmul.default)
def _matmul(e: Emitter, node: fx.Node) -> str:
    return e.add("MatMul", *(e.value(x, _dtype(node)) for x in _args(node)))


_BINARY: dict[Any, str] = {
    aten.add.Tensor: "Add", aten.sub.Tensor: "Sub", aten.mul.Tensor: "Mul", aten.div.Tensor: "Div",
    aten.add.Scalar: "Add", aten.sub.Scalar: "Sub", aten.mul.Scalar: "Mul", aten.div.Scalar: "Div",
}  # fmt: skip


@lowers(*_BINARY)
def _binary(e: Emitter, node: fx.Node) -> str:
    if node.kwargs.get("alpha", 1) != 1 or "rounding_mode" in node.kwargs:
        raise e.refuse(f"{node.target} with {dict(node.kwargs)}")
    a, b = (e.value(x, _dtype(node)) for x in _args(node)[:2])
    return e.add(_BINARY[node.target], a, b)


_UNARY: dict[Any, str] = {
    aten.neg.default: "Neg", aten.exp.default: "Exp", aten.relu.default: "Relu",
    aten.tanh.default: "Tanh", aten.sigmoid.default: "Sigmoid", aten.sqrt.default: "Sqrt",
    aten.reciprocal.default: "Reciprocal", aten.abs.default: "Abs", aten.log.default: "Log",
    aten.sin.default: "Sin", aten.cos.default: "Cos", aten.erf.default: "Erf", aten.softplus.default: "Softplus",
}  # fmt: skip


@lowers(*_UNARY)
def _unary(e: Emitter, node: fx.Node) -> str:
    if len(_args(node)) > 1:
        raise e.refuse(f"{node.target} with parameters")
    return e.add(_UNARY[node.target], e.value(_args(node)[0], _dtype(node)))


@lowers(aten.rsqrt.default)
def _rsqrt(e: Emitter, node: fx.Node) -> str:
    return e.add("Reciprocal", e.add("Sqrt", e.values[_args(node)[0]]))


@lowers(aten.square.default)
def _square(e: Emitter, node: fx.Node) -> str:
    x = e.values[_args(node)[0]]
    return e.add("Mul", x, x)


@lowers(aten.pow.Tensor_Scalar)
def _pow(e: Emitter, node: fx.Node) -> str:
    x, power = e.values[_args(node)[0]], _args(node)[1]
    if power in (2, 3):
        square = e.add("Mul", x, x)
        return square if power == 2 else e.add("Mul", square, x)
    if power == 0.5:
        return e.add("Sqrt", x)
    return e.add("Pow", x, e.scalar(float(power), _dtype(node)))


@lowers(aten.silu.default)
def _silu(e: Emitter, node: fx.Node) -> str:
    x = e.values[_args(node)[0]]
    return e.add("Mul", x, e.add("Sigmoid", x))


@lowers(aten.gelu.default)
def _gelu(e: Emitter, node: fx.Node) -> str:
    x, dtype = e.values[_args(node)[0]], _dtype(node)
    if node.kwargs.get("approximate", "none") == "tanh" or "tanh" in _args(node)[1:]:
        cube = e.add("Mul", e.add("Mul", x, x), x)
        inner = e.add("Add", x, e.add("Mul", cube, e.scalar(0.044715, dtype)))
        bent = e.add("Tanh", e.add("Mul", inner, e.scalar(math.sqrt(2 / math.pi), dtype)))
    else:
        bent = e.add("Erf", e.add("Mul", x, e.scalar(math.sqrt(0.5), dtype)))
    return e.add(
        "Mul", e.add("Mul", x, e.scalar(0.5, dtype)), e.add("Add", bent, e.scalar(1, dtype))
    )


@lowers(aten.clamp.default)
def _clamp(e: Emitter, node: fx.Node) -> str:
    x, *bounds = _args(node)
    low, high = (*bounds, None, None)[:2]
    low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
    names = ["" if b is None else e.scalar(float(b), _dtype(node)) for b in (low, high)]
    return e.add("Clip", e.values[x], *(names if names[1] else names[:1]))


@lowers(aten._softmax.default, aten.softmax.int)
def _softmax(e: Emitter, node: fx.Node) -> str:
    x, dim = _args(node)[:2]
    if int(dim) % len(_shape(x)) != len(_shape(x)) - 1:
        raise e.refuse("softmax over another than the last dimension")
    wide = e.add("Softmax", e.value(x, "f32"), axis=len(_shape(x)) - 1)
    return e.cast(wide, "f32", _dtype(node))


@lowers(aten.mean.dim, aten.sum.dim_IntList, aten.amax.default)
def _reduce(e: Emitter, node: fx.Node) -> str:
    x, dims = _args(node)[:2]
    keep = bool(_args(node)[2]) if len(_args(node)) > 2 else False
    axes = sorted(d % len(_shape(x)) for d in ([dims] if isinstance(dims, int) else dims))
    named: dict[Any, str] = {aten.mean.dim: "ReduceMean", aten.sum.dim_IntList: "ReduceSum"}
    op = named.get(node.target, "ReduceMax")
    return reduced(e, op, e.value(x, _dtype(node)), axes, keep)


def reduced(e: Emitter, op: str, value: str, axes: Sequence[int], keep: bool) -> str:
    """A reduction; where its axes go depends on the opset."""
    if e.opset >= (13 if op == "ReduceSum" else 18):
        return e.add(op, value, e.ints(*axes), keepdims=int(keep))
    return e.add(op, value, axes=list(axes), keepdims=int(keep))


@lowers(aten.layer_norm.default)
def _layer_norm(e: Emitter, node: fx.Node) -> str:
    x, size, *rest = _args(node)
    weight, bias, eps, *_ = _filled(rest, None, None, 1e-5)
    rank, dtype = len(_shape(x)), _dtype(node)
    axes = list(range(rank - len(size), rank))
    value = e.value(x, "f32")
    centred = e.add("Sub", value, reduced(e, "ReduceMean", value, axes, True))
    variance = reduced(e, "ReduceMean", e.add("Mul", centred, centred), axes, True)
    scale = e.add("Reciprocal", e.add("Sqrt", e.add("Add", variance, e.scalar(float(eps), "f32"))))
    y = e.cast(e.add("Mul", centred, scale), "f32", dtype)
    if isinstance(weight, fx.Node):
        y = e.add("Mul", y, e.value(weight, dtype))
    return e.add("Add", y, e.value(bias, dtype)) if isinstance(bias, fx.Node) else y


@lowers(aten.topk.default)
def _topk(e: Emitter, node: fx.Node) -> list[str]:
    x, k, *rest = _args(node)
    dim, largest, ordered = _filled(rest, -1, True, True)
    values, indices = e.add_many(
        "TopK", (e.values[x], e.ints(int(k))), 2, axis=int(dim) % len(_shape(x)), largest=int(largest),
        sorted=int(ordered),
    )  # fmt: skip
    return [values, e.add("Cast", indices, to=dtype_number("i64"))]


@lowers(aten.full_like.default)
def _full_like(e: Emitter, node: fx.Node) -> str:
    return e.constant(
        torch.full(_shape(node), float(_args(node)[1]), dtype=torch.float64), _dtype(node)
    )


_COMPARE: dict[Any, str] = {
    aten.eq.Tensor: "Equal", aten.eq.Scalar: "Equal", aten.lt.Scalar: "Less", aten.lt.Tensor: "Less",
    aten.gt.Scalar: "Greater", aten.gt.Tensor: "Greater", aten.le.Scalar: "LessOrEqual",
    aten.ge.Scalar: "GreaterOrEqual",
}  # fmt: skip


@lowers(*_COMPARE)
def _compare(e: Emitter, node: fx.Node) -> str:
    dtype = _dtype(_args(node)[0])
    return e.add(_COMPARE[node.target], *(e.value(x, dtype) for x in _args(node)[:2]))


@lowers(aten.where.self)
def _where(e: Emitter, node: fx.Node) -> str:
    condition, a, b = _args(node)
    return e.add("Where", e.values[condition], e.value(a, _dtype(node)), e.value(b, _dtype(node)))
