"""Packing the matrices of a program: leaves call `specc::linear` and `specc::embedding` on packed weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from specc.ir.encodings import Encoding
from specc.ir.graphs import WEIGHT, copy_graph, type_of, weight_name
from specc.ir.infer import infer_types
from specc.ir.program import Function, Role, SpeculativeProgram
from specc.ir.types import DTYPES
from specc.ir.weights import Weight

aten = torch.ops.aten
specc = torch.ops.specc

Choose = Callable[[fx.Node, fx.Node, str], Weight | None]
"""The call of a leaf, the leaf's input, the weight's name -> the packed weight to pass instead, or None to leave it."""


def pack(program: SpeculativeProgram, choose: Choose) -> SpeculativeProgram:
    """`program` with the matrices that `choose` packs, of those that leaves only multiply with, or look rows up in.

    Before: leaf: linear(%x, %w: f32[N, K])         call leaf(%x, @w)
    After:  leaf: specc.linear(%x, %w: f32[N/16, K, 16], None, N, "f32")     call leaf(%x, @w#f32)

    A leaf that is called with matrices in other encodings becomes several; the first keeps its name. Kernels take and
    give f32, so leaves of bf16 convert around them.
    """
    packer = _Packer(program, choose)
    callers = [packer.caller(f) for f in program.functions.values() if f.role is not Role.LEAF]
    functions = [*packer.leaves.values(), *callers]
    used = {name for f in functions for n in f.graph.nodes if (name := weight_name(n)) is not None}
    store = program.weights.added(packer.weights).only(used)
    return replace(program, weights=store).replacing(*functions)


def is_multiplied(node: fx.Node) -> bool:
    """Whether a leaf's input is the matrix of some linear."""
    return any(u.target is aten.linear.default and u.args[1] is node for u in node.users)


def is_packable(node: fx.Node) -> bool:
    """Whether a leaf's input is a matrix, of f32 or bf16, that is multiplied with or looked up in, and nothing else."""
    type_ = type_of(node)
    if type_.dtype not in ("f32", "bf16") or len(type_.shape) != 2 or "T" in type_.shape:
        return False
    return bool(node.users) and all(
        (user.target is aten.linear.default and user.args[1] is node)
        or (user.target is aten.embedding.default and user.args[0] is node)
        for user in node.users
    )


class _Packer:
    def __init__(self, program: SpeculativeProgram, choose: Choose) -> None:
        self.program, self.choose = program, choose
        self.weights: dict[str, Weight] = {}
        self.leaves: dict[tuple[object, ...], Function] = {}

    def caller(self, function: Function) -> Function:
        """`function` with packed weights for the leaves that it calls."""
        graph, _ = copy_graph(function.graph)
        references: dict[str, fx.Node] = {}
        for node in [n for n in graph.nodes if n.op == "call_module"]:
            leaf = self.program.functions[str(node.target)]
            if leaf.role is Role.LEAF:
                self._call(graph, node, leaf, references)
        for node in [n for n in graph.nodes if weight_name(n) is not None and not n.users]:
            graph.erase_node(node)
        return Function(function.name, function.role, graph, function.outputs)

    def _call(
        self, graph: fx.Graph, node: fx.Node, leaf: Function, references: dict[str, fx.Node]
    ) -> None:
        args, encodings = list(node.args), dict[int, Encoding]()
        for index, taken in enumerate(leaf.inputs):
            source = args[index]
            assert isinstance(source, fx.Node)
            name = weight_name(source)
            if name is None or not is_packable(taken):
                continue
            packed = self.choose(node, taken, name)
            if packed is None:
                continue
            assert packed.packing is not None
            encodings[index] = packed.packing.encoding
            new = f"{name}#{packed.packing.encoding}"
            packed = self.weights.setdefault(new, packed)
            if new not in references:
                with graph.inserting_before(source):
                    references[new] = graph.create_node("get_attr", WEIGHT + new)
                references[new].meta["type"] = packed.type
            args[index] = references[new]
        node.args, node.target = tuple(args), self._leaf(leaf, encodings)

    def _leaf(self, leaf: Function, encodings: Mapping[int, Encoding]) -> str:
        """The name of `leaf` with inputs in these encodings, made if it is not there yet."""
        key = (leaf.name, *encodings.items())
        if key not in self.leaves:
            others = sum(k[0] == leaf.name for k in self.leaves)
            name = f"{leaf.name}.{others}" if others else leaf.name
            self.leaves[key] = _packed_leaf(leaf, encodings, name)
        return self.leaves[key].name


def _packed_leaf(function: Function, encodings: Mapping[int, Encoding], name: str) -> Function:
    graph, copies = copy_graph(function.graph)
    for index, encoding in encodings.items():
        node = copies[function.inputs[index]]
        matrix = type_of(node)
        rows, columns = matrix.at()
        for user in list(node.users):
            with graph.inserting_before(user):
                if user.target is aten.linear.default:
                    bias = user.args[2] if len(user.args) > 2 else None
                    x, bias = (_cast(graph, a, matrix.dtype, "f32") for a in (user.args[0], bias))
                    operands = (x, node, bias, rows, encoding.name)
                    found = graph.call_function(specc.linear.default, operands)
                else:
                    flat = graph.call_function(aten.reshape.default, (user.args[1], [-1]))
                    operands = (flat, node, rows, columns, encoding.name)
                    found = graph.call_function(specc.embedding.default, operands)
                    shape = [-1 if d == "T" else d for d in user.meta["type"].shape]
                    found = graph.call_function(aten.reshape.default, (found, shape))
                new = _cast(graph, found, "f32", matrix.dtype)
            new.meta = dict(user.meta)
            user.replace_all_uses_with(new)
            graph.erase_node(user)
        node.meta["type"] = encoding.type(rows, columns)
    if encodings:
        infer_types(graph, name)
    return Function(name, function.role, graph, function.outputs)


def _cast(graph: fx.Graph, value: Any, dtype: str, to: str) -> Any:
    """A value of `dtype` as `to`."""
    if value is None or dtype == to:
        return value
    return graph.call_function(aten._to_copy.default, (value,), {"dtype": DTYPES[to]})
