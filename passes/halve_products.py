"""Products in half precision, everything that half precision cannot hold in single."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import fx

from specc.ir import Role, SpeculativeProgram, Weight
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
from specc.ir.types import DTYPES, HALVES, TensorType
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.merge_leaves import graph_call

aten = torch.ops.aten
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
    """Matrices are stored, and multiplied, as f16 or bf16; norms, softmax and logits stay f32.

    Before: y = linear(x, w: f32[N, K]);  n = mul(x, rsqrt(mean(pow(x, 2))))
    After:  y = linear(_to_copy(x, f16), w: f16[N, K]) : f16
            n = mul(x, rsqrt(mean(pow(_to_copy(x, f32), 2)))) : f32

    What is neither follows its inputs, f32 where one is. A leaf takes and returns what it did before.
    """

    name: ClassVar[str] = "halve-products"

    dtype: str = "f16"
    """One of `HALVES`."""

    def requires(self, program: SpeculativeProgram) -> None:
        for function in program.functions.values():
            call = graph_call(function)
            masked = any(n.target is ops.masks.default for n in function.graph.nodes)
            need(
                call is None or not masked or self._is_halved(program, call.target),
                "attention is written out already", "halve-products before delta-caches",
            )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        leaves = {
            n: m for n, m in _matrices(program).items() if m or not self._is_halved(program, n)
        }
        if not leaves:
            return PassResult(program, modified=False)
        weights: dict[str, Weight] = {}
        functions = [
            self._leaf(f, leaves[f.name]) if f.name in leaves
            else self._caller(f, leaves, program, weights)
            for f in program.functions.values()
        ]  # fmt: skip
        used = {
            name for f in functions for n in f.graph.nodes if (name := weight_name(n)) is not None
        }
        store = program.weights.added(weights).only(used)
        return PassResult(replace(program, weights=store).replacing(*functions), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        for name in program.functions:
            promise(self._is_halved(program, name), f"{name} multiplies in another type")

    def _is_halved(self, program: SpeculativeProgram, name: object) -> bool:
        function = program.functions[str(name)]
        return function.role is not Role.LEAF or all(
            type_of(n).dtype == self.dtype for n in function.graph.nodes if n.target in _PRODUCTS
        )

    def _leaf(self, leaf: Function, matrices: Collection[int]) -> Function:
        graph, copies = copy_graph(leaf.graph)
        for index in matrices:
            node = copies[leaf.inputs[index]]
            node.meta["type"] = TensorType(self.dtype, type_of(node).shape)
        for node in list(graph.nodes):
            if node.target is ops.cached_attention.default:
                _cast_inputs(graph, node, self.dtype, only=1)
            elif node.target in _PRODUCTS:
                _cast_inputs(graph, node, self.dtype)
            elif node.target in _WIDE:
                _cast_inputs(graph, node, "f32")
        infer_types(graph, leaf.name)
        _drop_idle_casts(graph)
        results = []
        with graph.inserting_before(output_of(graph)):
            for before, now in zip(results_of(leaf.graph), results_of(graph), strict=True):
                same = type_of(before).dtype == type_of(now).dtype
                results.append(now if same else _cast(graph, now, type_of(before).dtype))
        output_of(graph).args = (tuple(results),)
        infer_types(graph, leaf.name)
        return Function(leaf.name, leaf.role, graph, leaf.outputs)

    def _caller(
        self, function: Function, leaves: Mapping[str, Collection[int]], program: SpeculativeProgram,
        weights: dict[str, Weight],
    ) -> Function:  # fmt: skip
        """`function` with halves for what `leaves` multiply with; `weights` gets them."""
        graph, _ = copy_graph(function.graph)
        references: dict[str, fx.Node] = {}
        for call in [n for n in graph.nodes if n.op == "call_module"]:
            args = list(call.args)
            for index in leaves.get(str(call.target), ()):
                name = str(weight_name(args[index]))
                if name not in references:
                    weight, half = program.weights[name], f"{name}:{self.dtype}"
                    type_ = TensorType(self.dtype, weight.type.shape)
                    weights[half] = weight.derive(
                        self.dtype, type_, partial(torch.Tensor.to, dtype=DTYPES[self.dtype])
                    )
                    with graph.inserting_before(call):
                        references[name] = graph.create_node("get_attr", WEIGHT + half)
                    references[name].meta["type"] = type_
                args[index] = references[name]
            call.args = tuple(args)
        drop_dead(graph)
        return Function(function.name, function.role, graph, function.outputs)


def _matrices(program: SpeculativeProgram) -> dict[str, set[int]]:
    """The inputs of each leaf that are nothing but weights to multiply with, add to a product or look rows up in."""
    found = {
        f.name: {i for i, taken in enumerate(f.inputs) if _is_matrix(taken)}
        for f in program.functions.values() if f.role is Role.LEAF
    }  # fmt: skip
    for call, given, taken in program.leaf_arguments():
        if weight_name(given) is None:
            leaf = program.functions[str(call.target)]
            found[leaf.name].discard(leaf.inputs.index(taken))
    return found


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
        if isinstance(value, fx.Node) and type_of(value).dtype in ("f32", *HALVES):
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
