"""What operations become in Relax. Sums, softmax and norms are computed in f32 whatever the type is, as torch does."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx
from tvm import relax, te, tirx

from specc.backends.tvm import templates
from specc.backends.tvm.attention import Attention, attention, seen
from specc.backends.tvm.converter import Converter, arguments, converts, dtype_of
from specc.ir import TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import type_of

aten = torch.ops.aten
op = relax.op


def _shape(x: Any) -> tuple[int | str, ...]:
    return type_of(x).shape


def _size(x: Any, dim: int) -> int:
    size = _shape(x)[dim]
    assert isinstance(size, int)
    return size


def _dim(x: Any, dim: int) -> int:
    return int(dim) % len(_shape(x))


def _dtype(node: fx.Node) -> str:
    return type_of(node).dtype


def _sliced(c: Converter, value: Any, dim: int, begin: int, end: int, step: int = 1) -> Any:
    return c.emit(op.strided_slice(value, [dim], [begin], [end], [step]))


@converts(
    aten.alias.default, aten.detach.default, aten.clone.default, aten.contiguous.default,
    aten.dropout.default, aten.to.dtype, aten._to_copy.default, aten.type_as.default,
)  # fmt: skip
def _copied(c: Converter, node: fx.Node) -> Any:
    return c.value(node.args[0], _dtype(node))


@converts(
    aten.reshape.default, aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.flatten.using_ints,
)  # fmt: skip
def _reshape(c: Converter, node: fx.Node) -> Any:
    x = node.args[0]
    return c.values[x] if _shape(x) == _shape(node) else c.reshaped(c.values[x], _shape(node))  # type: ignore[index]


@converts(aten.permute.default, aten.transpose.int, aten.t.default, aten.movedim.int)
def _transpose(c: Converter, node: fx.Node) -> Any:
    x, *args = arguments(node)
    rank = len(_shape(x))
    order = list(range(rank))
    if node.target is aten.permute.default:
        order = [d % rank for d in args[0]]
    elif node.target is aten.movedim.int:
        source, target = (_dim(x, a) for a in args)
        order.insert(target, order.pop(source))
    else:
        a, b = (_dim(x, d) for d in (args or (0, 1)))
        order[a], order[b] = order[b], order[a]
    moved = [d for d in order if _shape(x)[d] != 1]
    value = c.values[x]
    if moved == sorted(moved):  # rows of one stay where they are
        return value if order == sorted(order) else c.reshaped(value, _shape(node))
    return c.emit(op.permute_dims(value, order))


@converts(aten.slice.Tensor)
def _slice(c: Converter, node: fx.Node) -> Any:
    x, dim, begin, end, step = arguments(node)
    dim = _dim(x, dim)
    if _shape(x)[dim] == "T":
        if (begin or 0) == 0 and (end is None or end >= 1 << 31) and step == 1:
            return c.values[x]
        raise c.refuse("rows of a call are sliced")
    size = _size(x, dim)
    first, last, _ = slice(begin, end).indices(size)
    whole = (first, last, step) == (0, size, 1)
    return c.values[x] if whole else _sliced(c, c.values[x], dim, first, last, step)


@converts(aten.select.int)
def _select(c: Converter, node: fx.Node) -> Any:
    x, dim, index = arguments(node)
    dim, value = _dim(x, dim), c.values[x]
    if _shape(x)[dim] == "T":
        raise c.refuse("a row of a call is selected")
    if (size := _size(x, dim)) > 1:
        at = int(index) % size
        value = _sliced(c, value, dim, at, at + 1)
    return c.reshaped(value, _shape(node))


@converts(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)
def _split(c: Converter, node: fx.Node) -> list[Any]:
    x, _, dim = arguments(node)
    dim = _dim(x, dim)
    parts, begin = [], 0
    for type_ in node.meta["type"]:
        end = begin + type_.shape[dim]
        parts.append(_sliced(c, c.values[x], dim, begin, end))
        begin = end
    return parts


@converts(aten.cat.default, aten.stack.default)
def _cat(c: Converter, node: fx.Node) -> Any:
    parts, dim = arguments(node)
    dim = int(dim) % len(_shape(node))
    values = [c.value(p, _dtype(node)) for p in parts]
    if node.target is aten.stack.default:
        one = [1 if d == dim else size for d, size in enumerate(_shape(node))]
        values = [c.reshaped(v, one) for v in values]
    return c.emit(op.concat(values, axis=dim))


@converts(aten.expand.default)
def _expand(c: Converter, node: fx.Node) -> Any:
    x = arguments(node)[0]
    if _shape(x) == _shape(node):
        return c.values[x]
    return c.emit(op.broadcast_to(c.values[x], relax.ShapeExpr(c.dims(_shape(node)))))


@converts(aten.embedding.default, aten.index_select.default)
def _rows(c: Converter, node: fx.Node) -> Any:
    """Rows of a table, which fail for one that it does not have."""
    args = arguments(node)
    table, indices = args[0], args[1] if node.target is aten.embedding.default else args[2]
    if node.target is aten.index_select.default and (axis := _dim(table, args[1])) != 0:
        # (Columns are looked up by tables of the program's own, not by what a caller gives.)
        return c.emit(op.take(c.values[table], c.values[indices], axis=axis, mode="clip"))
    if "T" in _shape(table):
        raise c.refuse("rows of a call are looked up")
    n, *rest = type_of(table).at()
    k = math.prod(rest)
    rows = c.values[table] if len(rest) == 1 else c.reshaped(c.values[table], (n, k))
    flat = type_of(indices)
    index = c.value(indices, "i64")
    if len(flat.shape) != 1:
        count = "T" if "T" in flat.shape else math.prod(flat.at())
        if math.prod(d for d in flat.shape if isinstance(d, int)) != (1 if count == "T" else count):
            raise c.refuse("indices of several for each row")
        index = c.reshaped(index, (count,))
        flat = TensorType("i64", (count,))
    kernel = templates.embedding(n, k, dtype_of(_dtype(node)), packed=False)
    (found,) = c.call(kernel, "rows", [index, rows], TensorType(_dtype(node), (*flat.shape, k)))
    return c.reshaped(found, _shape(node)) if len(_shape(node)) != 2 else found


@converts(ops.embedding.default)
def _packed_embedding(c: Converter, node: fx.Node) -> Any:
    tokens, w, n, k, encoding = arguments(node)
    kernel = templates.embedding(n, k, _weights(c, w, encoding), packed=True)
    return c.call(kernel, "embedding", [c.values[tokens], c.values[w]], type_of(node))[0]


def _weights(c: Converter, w: fx.Node, encoding: str) -> str:
    if encoding not in ("f32", "bf16"):
        raise c.refuse(f"weights in {encoding}: the TVM backend multiplies f32 and bf16 alone")
    return dtype_of(type_of(w).dtype)


@converts(aten.index.Tensor)
def _index(c: Converter, node: fx.Node) -> Any:
    x, places = arguments(node)
    given = [(d, i) for d, i in enumerate(places) if i is not None]
    if len(given) != 1 or type_of(given[0][1]).dtype == "bool":
        raise c.refuse("only one dimension can be indexed, by integers")
    ((dim, index),) = given
    return c.emit(op.take(c.values[x], c.values[index], axis=dim, mode="clip"))


@converts(ops.linear.default)
def _packed_linear(c: Converter, node: fx.Node) -> Any:
    x, w, bias, n, encoding = arguments(node)
    k, shape = _size(x, -1), _shape(node)
    rows = [d for d in _shape(x)[:-1] if d != 1]
    if len(rows) > 1:
        raise c.refuse("a product of more than rows and columns")
    count = rows[0] if rows else 1
    flat = c.values[x] if len(_shape(x)) == 2 else c.reshaped(c.values[x], (count, k))
    kernel = templates.linear(n, k, _weights(c, w, encoding), bias is not None)
    operands = [flat, c.values[w], *([c.values[bias]] if bias is not None else [])]
    (y,) = c.call(kernel, "linear", operands, TensorType("f32", (count, n)))
    return y if len(shape) == 2 else c.reshaped(y, shape)


@converts(aten.linear.default)
def _linear(c: Converter, node: fx.Node) -> Any:
    """A matrix that is not packed, by the default schedule: correct, and slow."""
    x, matrix, bias = arguments(node)
    turned = c.emit(op.permute_dims(c.value(matrix, "f32"), [1, 0]))
    y = c.emit(op.matmul(c.value(x, "f32"), turned))
    if bias is not None:
        y = c.emit(op.add(y, c.value(bias, "f32")))
    return rounded(c, y, node)


@converts(aten.bmm.default, aten.mm.default, aten.matmul.default)
def _matmul(c: Converter, node: fx.Node) -> Any:
    a, b = arguments(node)[:2]
    return rounded(c, c.emit(op.matmul(c.value(a, "f32"), c.value(b, "f32"))), node)


def rounded(c: Converter, value: Any, node: fx.Node) -> Any:
    """What was computed in f32, in the node's type."""
    dtype = _dtype(node)
    return value if dtype == "f32" else c.emit(op.astype(value, dtype_of(dtype)))


@converts(ops.cache_write.default)
def _cache_write(c: Converter, node: fx.Node) -> Any:
    cache, x, rows = arguments(node)
    heads, capacity, width = type_of(cache).at()
    kernel = templates.cache_write(
        heads, capacity, width, dtype_of(type_of(cache).dtype), dtype_of(type_of(x).dtype)
    )
    c.write(kernel, "cache_write", cache, [c.values[x], c.values[rows]])


@converts(ops.cached_attention.default)
def _cached_attention(c: Converter, node: fx.Node) -> Any:
    q, k, v, positions, rows, parents, scale, window, softcap, sinks = arguments(node)
    heads, width = _size(q, 1), _size(q, 2)
    kv_heads, capacity, value_width = type_of(v).at()
    count = _shape(q)[0]
    column, square = TensorType("i64", (count,)), TensorType("i64", (count, count))
    where = [c.values[positions], c.values[rows]]
    where += [c.values[parents]] if parents is not None else []
    types = (column, column, column, square) if parents is not None else (column, column)
    places = c.call(seen(capacity, parents is not None), "seen", where, *types)
    kernel = attention(Attention(
        heads, kv_heads, capacity, width, value_width, dtype_of(type_of(k).dtype), scale, window, softcap,
        sinks is not None, parents is not None,
    ))  # fmt: skip
    operands = [c.value(q, "f32"), c.values[k], c.values[v], *places]
    operands += [c.value(sinks, "f32")] if sinks is not None else []
    (found,) = c.call(kernel, "attention", operands, TensorType("f32", (count, heads, value_width)))
    return rounded(c, found, node)


_BINARY: dict[Any, Any] = {
    aten.add.Tensor: op.add, aten.sub.Tensor: op.subtract, aten.mul.Tensor: op.multiply, aten.div.Tensor: op.divide,
    aten.add.Scalar: op.add, aten.sub.Scalar: op.subtract, aten.mul.Scalar: op.multiply, aten.div.Scalar: op.divide,
    aten.maximum.default: op.maximum, aten.minimum.default: op.minimum,
}  # fmt: skip


@converts(*_BINARY)
def _binary(c: Converter, node: fx.Node) -> Any:
    if node.kwargs.get("alpha", 1) != 1 or len(node.args) > 2 or "rounding_mode" in node.kwargs:
        raise c.refuse(f"{node.target} with {dict(node.kwargs)}")
    a, b = (c.value(x, _dtype(node)) for x in node.args[:2])
    return c.emit(_BINARY[node.target](a, b))


_UNARY: dict[Any, Any] = {
    aten.neg.default: op.negative, aten.exp.default: op.exp, aten.relu.default: op.nn.relu,
    aten.tanh.default: op.tanh, aten.sqrt.default: op.sqrt,
    aten.abs.default: op.abs, aten.log.default: op.log, aten.sin.default: op.sin, aten.cos.default: op.cos,
    aten.erf.default: op.erf, aten.rsqrt.default: op.rsqrt, aten.square.default: lambda x: op.multiply(x, x),
    aten.reciprocal.default: lambda x: op.divide(relax.const(1.0, x.ty.dtype), x),
    aten.logical_not.default: op.logical_not,
}  # fmt: skip


@converts(*_UNARY)
def _unary(c: Converter, node: fx.Node) -> Any:
    if len(node.args) > 1:
        raise c.refuse(f"{node.target} with parameters")
    return c.emit(_UNARY[node.target](c.value(node.args[0], _dtype(node))))


@converts(aten.silu.default, aten.sigmoid.default)
def _sigmoid(c: Converter, node: fx.Node) -> Any:
    def each(x: Any) -> Any:
        return te.compute(x.shape, lambda *at: templates.sigmoid(x[at]), name="sigmoid")

    x = c.value(node.args[0], "f32")
    value = c.builder.emit_te(each, x)
    if node.target is aten.silu.default:
        value = c.emit(op.multiply(x, value))
    return rounded(c, value, node)


@converts(aten.pow.Tensor_Scalar)
def _pow(c: Converter, node: fx.Node) -> Any:
    x, power = c.value(node.args[0], _dtype(node)), node.args[1]
    if power in (2, 3):
        square = c.emit(op.multiply(x, x))
        return square if power == 2 else c.emit(op.multiply(square, x))
    if power == 0.5:
        return c.emit(op.sqrt(x))
    return c.emit(op.power(x, c.value(float(power), _dtype(node))))  # type: ignore[arg-type]


@converts(aten.gelu.default)
def _gelu(c: Converter, node: fx.Node) -> Any:
    x = c.value(node.args[0], "f32")

    def number(value: float) -> Any:
        return relax.const(value, "float32")

    if arguments(node)[1] == "tanh":
        cube = c.emit(op.multiply(c.emit(op.multiply(x, x)), x))
        inner = c.emit(op.add(x, c.emit(op.multiply(cube, number(0.044715)))))
        bent = c.emit(op.tanh(c.emit(op.multiply(inner, number(math.sqrt(2 / math.pi))))))
    else:
        bent = c.emit(op.erf(c.emit(op.multiply(x, number(math.sqrt(0.5))))))
    half = c.emit(op.multiply(x, number(0.5)))
    return rounded(c, c.emit(op.multiply(half, c.emit(op.add(bent, number(1.0))))), node)


@converts(aten.clamp.default)
def _clamp(c: Converter, node: fx.Node) -> Any:
    x, low, high = arguments(node)
    value = c.value(x, _dtype(node))
    if low is not None:
        value = c.emit(op.maximum(value, c.value(low, _dtype(node))))
    return value if high is None else c.emit(op.minimum(value, c.value(high, _dtype(node))))


@converts(aten._softmax.default, aten.softmax.int)
def _softmax(c: Converter, node: fx.Node) -> Any:
    x, dim = arguments(node)[:2]
    return rounded(c, c.emit(op.nn.softmax(c.value(x, "f32"), axis=_dim(x, dim))), node)


_REDUCED: dict[Any, Any] = {
    aten.mean.dim: op.mean, aten.sum.dim_IntList: op.sum, aten.amax.default: op.max, aten.amin.default: op.min,
}  # fmt: skip


@converts(*_REDUCED)
def _reduce(c: Converter, node: fx.Node) -> Any:
    x, dims, keep = arguments(node)[:3]
    axes = sorted(_dim(x, d) for d in ([dims] if isinstance(dims, int) else dims))
    wide = "f32" if _dtype(node) in ("f16", "bf16") else _dtype(node)
    value = c.emit(_REDUCED[node.target](c.value(x, wide), axes, bool(keep)))
    return value if wide == _dtype(node) else c.emit(op.astype(value, dtype_of(_dtype(node))))


@converts(aten.layer_norm.default)
def _layer_norm(c: Converter, node: fx.Node) -> Any:
    x, size, weight, bias, eps = arguments(node)[:5]
    rank = len(_shape(x))
    axes = list(range(rank - len(size), rank))
    value = c.value(x, "f32")
    centred = c.emit(op.subtract(value, c.emit(op.mean(value, axes, True))))
    variance = c.emit(op.mean(c.emit(op.multiply(centred, centred)), axes, True))
    scale = c.emit(op.rsqrt(c.emit(op.add(variance, relax.const(float(eps), "float32")))))
    y = c.emit(op.multiply(centred, scale))
    if weight is not None:
        y = c.emit(op.multiply(y, c.value(weight, "f32")))
    if bias is not None:
        y = c.emit(op.add(y, c.value(bias, "f32")))
    return rounded(c, y, node)


@converts(aten.topk.default)
def _topk(c: Converter, node: fx.Node) -> list[Any]:
    x, k, dim, largest, ordered = arguments(node)
    del ordered  # (they come in order either way)
    if len(_shape(x)) != 2 or _dim(x, dim) != 1 or not largest or type_of(x).dtype != "f32":
        raise c.refuse("topk of another than the largest f32 of each row")
    n, (of_values, of_places) = _size(x, 1), node.meta["type"]
    (places,) = c.call(templates.topk(n, int(k)), "topk", [c.values[x]], of_places)
    (values,) = c.call(templates.pick(n, int(k)), "pick", [c.values[x], places], of_values)
    return [values, places]


@converts(aten.full_like.default)
def _full_like(c: Converter, node: fx.Node) -> Any:
    number = tirx.const(arguments(node)[1], dtype_of(_dtype(node)))

    def filled(x: Any) -> Any:  # (Relax's own `full` cannot be lowered for infinity.)
        return te.compute(x.shape, lambda *at: number, name="filled")

    return c.builder.emit_te(filled, c.values[arguments(node)[0]])


_COMPARE: dict[Any, Any] = {
    aten.eq.Tensor: op.equal, aten.eq.Scalar: op.equal, aten.ne.Scalar: op.not_equal, aten.lt.Scalar: op.less,
    aten.lt.Tensor: op.less, aten.gt.Scalar: op.greater, aten.gt.Tensor: op.greater, aten.le.Scalar: op.less_equal,
    aten.ge.Scalar: op.greater_equal,
}  # fmt: skip


@converts(*_COMPARE)
def _compare(c: Converter, node: fx.Node) -> Any:
    a, b = node.args[:2]
    dtype = type_of(a).dtype  # type: ignore[arg-type]
    return c.emit(_COMPARE[node.target](c.value(a, dtype), c.value(b, dtype)))


@converts(aten.where.self)
def _where(c: Converter, node: fx.Node) -> Any:
    condition, a, b = arguments(node)
    return c.emit(op.where(c.values[condition], c.value(a, _dtype(node)), c.value(b, _dtype(node))))
