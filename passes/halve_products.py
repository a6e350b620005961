"""Products in half precision, everything that half precision cannot hold in single."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import fx

from specc.ir import SpeculativeProgram, Weight
from specc.ir.dialect import ops
from specc.ir.graphs import (
    WEIGHT,
    copy_graph,
    drop_dead,
    output_of,
    results_of,
    type_of,
    weight_name,
)
from specc.ir.infer import infer_types
from specc.ir.program import Function
from specc.ir.types import DTYPES, TensorType
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.merge_leaves import graph_call, need_graphs

aten = torch.ops.aten
HALF = "f16"
_PRODUCTS = {
    aten.linear.default, aten.bmm.default, aten.mm.default, aten.matmul.default, ops.cached_attention.default,
}  # fmt: skip
_WIDE = {
    aten.pow.Tensor_Scalar, aten.square.default, aten.mean.dim, aten.sum.dim_IntList, aten.rsqrt.default,
    aten.exp.default, aten.softmax.int, aten._softmax.default, aten.layer_norm.default, aten.tanh.default,
    aten.rms_norm.default,
}  # fmt: skip
"""Squares and sums overflow 65504, and norms and softmax need more than 11 bits."""


@dataclass(frozen=True)
class HalveProducts(Pass):
    """Matrices are stored, and multiplied, as f16; norms, softmax and logits stay f32.

    Before: y = linear(x, w: f32[N, K]);  n = mul(x, rsqrt(mean(pow(x, 2))))
    After:  y = linear(_to_copy(x, f16), w: f16[N, K]) : f16
            n = mul(x, rsqrt(mean(pow(_to_copy(x, f32), 2)))) : f32

    What is neither follows its inputs, f32 where one is. A graph takes and returns what it did before.
    """

    name: ClassVar[str] = "halve-products"

    def requires(self, program: SpeculativeProgram) -> None:
        need_graphs(program)
        for function in program.functions.values():
            call = graph_call(function)
            need(
                call is None or call.meta["writes"] or not function.outputs or _halved(program, call),
                "attention is written out already", "halve-products before delta-caches",
            )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        modified = False
        weights: dict[str, Weight] = {}
        for function in list(program.functions.values()):
            call = graph_call(function)
            if call is None or _halved(program, call):
                continue
            leaf = program.functions[str(call.target)]
            program = program.replacing(*_rewritten(program, function, call, leaf, weights))
            modified = True
        if not modified:
            return PassResult(program, modified=False)
        used = {
            name for f in program.functions.values() for n in f.graph.nodes
            if (name := weight_name(n)) is not None
        }  # fmt: skip
        return PassResult(
            replace(program, weights=program.weights.added(weights).only(used)), modified=True
        )

    def ensures(self, program: SpeculativeProgram) -> None:
        for function in program.functions.values():
            if (call := graph_call(function)) is not None:
                promise(_halved(program, call), f"{function.name} multiplies in another type")


def _halved(program: SpeculativeProgram, call: fx.Node) -> bool:
    nodes = program.functions[str(call.target)].graph.nodes
    return all(type_of(n).dtype == HALF for n in nodes if n.target in _PRODUCTS)


def _rewritten(
    program: SpeculativeProgram, function: Function, call: fx.Node, leaf: Function,
    weights: dict[str, Weight],
) -> tuple[Function, Function]:  # fmt: skip
    """The graph and its caller; `weights` gets those that are stored in half precision from now on."""
    inner, copies = copy_graph(leaf.graph)
    outer, outer_copies = copy_graph(function.graph)
    new_call = outer_copies[call]
    args = list(new_call.args)
    for index, taken in enumerate(leaf.inputs):
        given = call.args[index]
        assert isinstance(given, fx.Node)
        name = weight_name(given)
        if name is None or not _is_matrix(taken):
            continue
        half = f"{name}:{HALF}"
        type_ = TensorType(HALF, type_of(taken).shape)
        weights[half] = program.weights[name].derive(HALF, type_, torch.Tensor.half)
        with outer.inserting_before(new_call):
            reference = outer.create_node("get_attr", WEIGHT + half)
        reference.meta["type"] = copies[taken].meta["type"] = type_
        args[index] = reference
    new_call.args = tuple(args)
    drop_dead(outer)
    for node in list(inner.nodes):
        if node.target is ops.cached_attention.default:
            _cast_inputs(inner, node, HALF, only=1)
        elif node.target in _PRODUCTS:
            _cast_inputs(inner, node, HALF)
        elif node.target in _WIDE:
            _cast_inputs(inner, node, "f32")
    infer_types(inner, leaf.name)
    _drop_idle_casts(inner)
    results = []
    with inner.inserting_before(output_of(inner)):
        for before, now in zip(results_of(leaf.graph), results_of(inner), strict=True):
            same = type_of(before).dtype == type_of(now).dtype
            results.append(now if same else _cast(inner, now, type_of(before).dtype))
    output_of(inner).args = (tuple(results),)
    infer_types(inner, leaf.name)
    return (
        Function(leaf.name, leaf.role, inner, leaf.outputs),
        Function(function.name, function.role, outer, function.outputs),
    )


def _is_matrix(node: fx.Node) -> bool:
    """Whether an input of f32 is only multiplied with, added to a product, or looked up in as an embedding."""
    return type_of(node).dtype == "f32" and bool(node.users) and all(
        (u.target is aten.linear.default and node in u.args[1:])
        or (u.target is aten.embedding.default and u.args[0] is node)
        for u in node.users
    )  # fmt: skip


def _cast_inputs(graph: fx.Graph, node: fx.Node, dtype: str, only: int | None = None) -> None:
    """Casts before `node`, of its first `only` arguments or all."""
    args: list[Any] = list(node.args)
    for index, value in enumerate(args[:only]):
        if isinstance(value, fx.Node) and type_of(value).dtype in ("f32", "f16"):
            with graph.inserting_before(node):
                args[index] = _cast(graph, value, dtype)
    node.args = tuple(args)


def _drop_idle_casts(graph: fx.Graph) -> None:
    """Types are known only when all casts are there, so some turn out to change nothing."""
    for node in list(graph.nodes):
        source = node.args[0] if node.args else None
        if node.target is not aten._to_copy.default or not isinstance(source, fx.Node):
            continue
        if type_of(source) == type_of(node):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _cast(graph: fx.Graph, value: fx.Node, dtype: str) -> fx.Node:
    node = graph.call_function(aten._to_copy.default, (value,), {"dtype": DTYPES[dtype]})
    node.meta |= {"type": TensorType(dtype, type_of(value).shape)}
    node.meta |= {k: v for k, v in value.meta.items() if k in ("layer", "part", "origin")}
    return node
