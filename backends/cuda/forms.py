"""A program as CUDA runs it: leaves call specc's Triton kernels, and what stands between leaves becomes leaves too."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from specc.backends.cuda import kernels as _kernels
from specc.backends.cuda import packed as _packed
from specc.backends.cuda import trees as _trees
from specc.backends.cuda.refusal import refusal
from specc.ir import Encoding, Function, Role, SpeculativeProgram, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import Builder, copy_graph, type_of
from specc.ir.infer import infer_types
from specc.ir.types import HALVES

_DEFINE = (_kernels, _packed, _trees)
"""The operations of specc_cuda."""

aten = torch.ops.aten
cuda = torch.ops.specc_cuda

Form = Callable[[Builder, list[fx.Node], list[Any]], list[fx.Node]]
"""Writes an operation's form into a leaf: its inputs, and its other arguments -> its results."""


def cuda_form(program: SpeculativeProgram) -> SpeculativeProgram:
    """`program` with leaves for everything that works on the model's values, verdicts among it.

    Before: leaf: linear(%x, @w), specc.cached_attention(...)     accept: specc.accept(%tokens, %logits, ...)
    After:  leaf: specc_cuda.linear(%x, @w, None), specc_cuda.attention(...)     accept: call accept.0(%tokens, ...)

    Weights stay as they are. Raises BackendError (SPECC-E0452) for an operation without a form, by name.
    """
    outliner = _Outliner()
    functions = [
        _leaf(f) if f.role is Role.LEAF else outliner.outlined(f)
        for f in program.functions.values()
    ]
    return program.replacing(*functions).with_functions(*outliner.leaves.values())


def _leaf(function: Function) -> Function:
    graph, _ = copy_graph(function.graph)
    for node in [n for n in graph.nodes if n.op == "call_function"]:
        _FORMS.get(node.target, _as_it_is)(graph, node, function.name)
    infer_types(graph, function.name)
    return Function(function.name, function.role, graph, function.outputs)


def _as_it_is(graph: fx.Graph, node: fx.Node, where: str) -> None:
    """What Inductor compiles itself; specc's other operations are kernels of CPUs."""
    if str(node.target).startswith("specc."):
        raise refusal(str(node.target), where)


def _arguments(node: fx.Node) -> list[Any]:
    """Nodes and numbers, as the operation's schema says."""
    return list(node.args)


def _linear(graph: fx.Graph, node: fx.Node, where: str) -> None:
    x, w, *rest = _arguments(node)
    bias = rest[0] if rest else None
    if type_of(x).dtype != type_of(w).dtype or type_of(x).dtype not in ("f32", *HALVES):
        raise refusal(f"a product of {type_of(x)} and {type_of(w)}", where)
    shape = [-1 if d == "T" else d for d in type_of(node).shape]
    with graph.inserting_before(node):
        flat = graph.call_function(aten.reshape.default, (x, [-1, type_of(w).shape[1]]))
        wide = type_of(x).dtype != "f32" and _is_widened(node)
        product = graph.call_function(cuda.linear.default, (flat, w, bias, wide))
        result = graph.call_function(aten.reshape.default, (product, shape))
    _replace(graph, node, result)


def _packed_linear(graph: fx.Graph, node: fx.Node, where: str) -> None:
    x, w, bias, n, name = _arguments(node)
    depth = type_of(x).shape[-1]
    shape = [-1 if d == "T" else d for d in type_of(node).shape]
    with graph.inserting_before(node):
        flat = graph.call_function(aten.reshape.default, (x, [-1, depth]))
        operands = (flat, w, bias, n, *_encoding(name, depth, where))
        product = graph.call_function(cuda.packed_linear.default, operands)
        result = graph.call_function(aten.reshape.default, (product, shape))
    _replace(graph, node, result)


def _packed_embedding(graph: fx.Graph, node: fx.Node, where: str) -> None:
    tokens, w, _, depth, name = _arguments(node)
    with graph.inserting_before(node):
        operands = (tokens, w, depth, *_encoding(name, depth, where))
        result = graph.call_function(cuda.packed_embedding.default, operands)
    _replace(graph, node, result)


def _encoding(name: str, depth: Any, where: str) -> tuple[int, int, bool]:
    """Bits, columns that share a scale, and whether there are minima."""
    encoding = Encoding.parse(name)
    if not encoding.quantised:
        raise refusal(
            f"matrices of {name} in tiles",
            where,
            f"compile with --dtype {name} in place of --quant {name}",
        )
    return encoding.bits, encoding.group or int(depth), encoding.minimum


_VIEWS = {
    aten.select.int, aten.reshape.default, aten.view.default, aten.unsqueeze.default, aten.transpose.int,
    aten.slice.Tensor,
}  # fmt: skip


def _is_widened(node: fx.Node) -> bool:
    """Whether all that is done with a value is to make it f32, as with logits: its sums need not be rounded first."""
    return bool(node.users) and all(
        _is_widened(u) if u.target in _VIEWS
        else u.target is aten._to_copy.default and u.kwargs == {"dtype": torch.float32}
        for u in node.users
    )  # fmt: skip


def _cache_write(graph: fx.Graph, node: fx.Node, where: str) -> None:
    with graph.inserting_before(node):
        graph.call_function(cuda.cache_write.default, node.args)
    graph.erase_node(node)


def _attention(graph: fx.Graph, node: fx.Node, where: str) -> None:
    q, k, v, positions, rows, parents, *numbers, sinks = _arguments(node)
    if type_of(q).dtype not in ("f32", *HALVES):
        raise refusal(f"attention of {type_of(q)}", where)
    with graph.inserting_before(node):
        result = graph.call_function(
            cuda.attention.default, (q, k, v, positions, rows, parents, *numbers, sinks)
        )
    _replace(graph, node, result)


def _replace(graph: fx.Graph, node: fx.Node, result: fx.Node) -> None:
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _index_select(graph: fx.Graph, node: fx.Node, where: str) -> None:
    """Torch's own decomposition indexes in Python, which a CPU build cannot with tensors of a GPU."""
    x, dim, index = _arguments(node)
    with graph.inserting_before(node):
        result = graph.call_function(aten.index.Tensor, (x, [None] * dim + [index]))
    _replace(graph, node, result)


_FORMS: Mapping[Any, Callable[[fx.Graph, fx.Node, str], None]] = {
    aten.linear.default: _linear,
    aten.index_select.default: _index_select,
    ops.linear.default: _packed_linear,
    ops.embedding.default: _packed_embedding,
    ops.cache_write.default: _cache_write,
    ops.cached_attention.default: _attention,
}


def _argmax(builder: Builder, values: list[fx.Node], rest: list[Any]) -> list[fx.Node]:
    return [builder.op(cuda.argmax.default, values[0], *rest)]


def _row(builder: Builder, values: list[fx.Node], rest: list[Any]) -> list[fx.Node]:
    return [builder.op(cuda.row.default, *values)]


def _cache_copy(builder: Builder, values: list[fx.Node], rest: list[Any]) -> list[fx.Node]:
    builder.graph.call_function(cuda.cache_copy.default, tuple(values))
    return []


def _operation(name: str, results: int) -> Form:
    """The operation of specc_cuda that stands for specc's of the same name, with so many results."""
    operation = getattr(cuda, name).default

    def form(builder: Builder, values: list[fx.Node], rest: list[Any]) -> list[fx.Node]:
        types = [type_of(values[0])] * results  # (inferred when the leaf is complete)
        return builder.ops(operation, *values, *rest, types=types)

    return form


def _cache_move(builder: Builder, values: list[fx.Node], rest: list[Any]) -> list[fx.Node]:
    cache, source, target = values
    moved = builder.op(cuda.pick_rows.default, cache, source)
    builder.graph.call_function(cuda.cache_write.default, (cache, moved, target))
    return []


def _cross(builder: Builder, values: list[fx.Node], rest: list[Any]) -> list[fx.Node]:
    tokens, shares, nodes, scores = values
    (count,), (rows,) = type_of(tokens).at(), type_of(nodes).at()

    def each(x: fx.Node, dim: int) -> fx.Node:
        wide = builder.op(
            aten.expand.default, builder.op(aten.unsqueeze.default, x, dim), [rows, count]
        )
        return builder.op(
            aten.reshape.default, builder.op(aten.clone.default, wide), [rows * count]
        )

    totals = builder.op(aten.add.Tensor, each(scores, 1), each(shares, 0))
    return [each(tokens, 0), each(nodes, 1), totals]


def _take(builder: Builder, values: list[fx.Node], rest: list[Any]) -> list[fx.Node]:
    return [builder.op(aten.index.Tensor, values[0], [values[1]])]


def _positions(builder: Builder, values: list[fx.Node], rest: list[Any]) -> list[fx.Node]:
    count, offset = rest
    if count != 1:
        raise refusal(f"specc.positions, {count} of each of what the GPU computed", "")
    return [builder.op(aten.clamp.default, builder.op(aten.add.Tensor, values[0], offset), 0)]


def _rows(builder: Builder, values: list[fx.Node], rest: list[Any]) -> list[fx.Node]:
    if type_of(values[1]).shape != (1,):
        raise refusal("specc.rows of several texts", "")
    return [builder.op(aten.add.Tensor, *values)]


def _cat(builder: Builder, values: list[fx.Node], rest: list[Any]) -> list[fx.Node]:
    return [builder.op(aten.cat.default, values)]


_BETWEEN: Mapping[Any, Form] = {
    ops.accept.default: _operation("accept", 2),
    ops.accept_tree.default: _operation("accept_tree", 3),
    ops.argmax.default: _argmax,
    ops.best.default: _operation("best", 2),
    ops.cache_copy.default: _cache_copy,
    ops.cache_move.default: _cache_move,
    ops.candidates.default: _operation("candidates", 3),
    ops.cross.default: _cross,
    ops.prune_tree.default: _operation("prune_tree", 3),
    ops.row.default: _row,
    ops.take.default: _take,
}
"""What stands between leaves and works on values of the model."""

_OF_INTEGERS: Mapping[Any, Form] = {
    aten.cat.default: _cat,
    ops.positions.default: _positions,
    ops.rows.default: _rows,
}
"""What the host does as well, and does unless the GPU computed what it works on."""


class _Outliner:
    """Makes leaves of operations between leaves, one for each operation on the same types."""

    def __init__(self) -> None:
        self.leaves: dict[object, Function] = {}

    def outlined(self, function: Function) -> Function:
        graph, _ = copy_graph(function.graph)
        computed: set[fx.Node] = set()  # on the GPU
        for node in list(graph.nodes):
            if node.op == "call_module" or (
                node.target is operator.getitem and node.args[0] in computed
            ):
                computed.add(node)
            elif node.op == "call_function":
                form = _BETWEEN.get(node.target)
                if computed.intersection(node.all_input_nodes):
                    form = form or _OF_INTEGERS.get(node.target)
                if form is not None:
                    computed.update(self._outline(graph, node, form))
        return replace(function, graph=graph)

    def _outline(self, graph: fx.Graph, node: fx.Node, form: Form) -> list[fx.Node]:
        values = [n for a in node.args for n in (a if isinstance(a, (list, tuple)) else [a])
                  if isinstance(n, fx.Node)]  # fmt: skip
        rest = [a for a in node.args if not isinstance(a, (fx.Node, list, tuple))]
        key = (str(node.target), tuple(map(type_of, values)), tuple(rest))
        if key not in self.leaves:
            name = f"{str(node.target).split('.')[1]}.{len(self.leaves)}"
            self.leaves[key] = _between(name, form, [type_of(v) for v in values], rest)
        with graph.inserting_before(node):
            results = Builder(graph).call(self.leaves[key], values)
        if isinstance(node.meta.get("type"), tuple):
            for item in list(node.users):
                item.replace_all_uses_with(results[_arguments(item)[1]])
                graph.erase_node(item)
        elif results:
            node.replace_all_uses_with(results[0])
        graph.erase_node(node)
        return results


def _between(name: str, form: Form, types: list[TensorType], rest: list[Any]) -> Function:
    builder = Builder()
    values = [builder.input(f"x{i}", t) for i, t in enumerate(types)]
    results = form(builder, values, rest)
    graph = builder.output(*results)
    infer_types(graph, name)
    return Function(name, Role.LEAF, graph, tuple(f"y{i}" for i in range(len(results))))
