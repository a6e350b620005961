"""What a program goes through before Inductor sees it. One phase so far: pack the weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from specc.ir import Function, Role, SpeculativeProgram, TensorType, Weight
from specc.ir.encodings import BF16, F32, Encoding
from specc.ir.graphs import copy_graph, type_of, weight_name
from specc.ir.types import DTYPES

aten = torch.ops.aten
specc = torch.ops.specc

_ENCODINGS = {"f32": F32, "bf16": BF16}
"""How matrices of a dtype are packed. Its name, after a #, ends that of the packed weight."""


def pack_weights(program: SpeculativeProgram) -> SpeculativeProgram:
    """Every matrix that leaves only multiply with, or look rows up in, is packed, and they call the packed operations.

    Before: leaf: linear(%x, %w: f32[N, K])         call leaf(%x, @w)
    After:  leaf: specc.linear(%x, %w: f32[N/16, K, 16], None, N, "f32")     call leaf(%x, @w#f32)

    A tied embedding and head stay one tensor: both are packed the same way. What is packed already, such as quantised
    matrices, is left alone. Kernels take and give f32, so leaves of bf16 convert around them.
    """
    packable = {
        name: {i for i, node in enumerate(f.inputs) if _is_packable(node)}
        for name, f in program.functions.items()
        if f.role is Role.LEAF
    }
    weights: dict[str, Weight] = {}
    functions = [
        _packed_leaf(f, packable[f.name])
        if f.name in packable
        else _packed_caller(program, f, packable, weights)
        for f in program.functions.values()
    ]
    nodes = [n for f in functions for n in f.graph.nodes]
    used = {name for n in nodes if (name := weight_name(n)) is not None}
    store = program.weights.added(weights).only(used)
    return replace(program, weights=store).replacing(*functions)


def unpacked(program: SpeculativeProgram) -> list[str]:
    """Matrices that leaves multiply with and that `pack_weights` leaves alone, such as those of f16."""
    names: dict[str, None] = {}
    for function in program.functions.values():
        for node in function.graph.nodes:
            callee = program.functions.get(str(node.target)) if node.op == "call_module" else None
            if callee is None or callee.role is not Role.LEAF:
                continue
            for source, taken in zip(node.args, callee.inputs, strict=True):
                name = weight_name(source)
                if name is not None and _is_multiplied(taken) and not _is_packable(taken):
                    names[name] = None
    return list(names)


def _is_multiplied(node: fx.Node) -> bool:
    """Whether `node` is the matrix of some linear."""
    return any(u.target is aten.linear.default and u.args[1] is node for u in node.users)


def _is_packable(node: fx.Node) -> bool:
    type_ = type_of(node)
    if (
        type_.dtype not in _ENCODINGS
        or len(type_.shape) != 2
        or "T" in type_.shape
        or not node.users
    ):
        return False
    return all(
        (user.target is aten.linear.default and user.args[1] is node)
        or (user.target is aten.embedding.default and user.args[0] is node)
        for user in node.users
    )


def _encoding(matrix: TensorType) -> Encoding:
    return _ENCODINGS[matrix.dtype]


def packed_type(matrix: TensorType) -> TensorType:
    """The type of `matrix` when packed."""
    return _encoding(matrix).type(*matrix.at())


def _packed_leaf(function: Function, packed: set[int]) -> Function:
    graph, copies = copy_graph(function.graph)
    for index in packed:
        node = copies[function.inputs[index]]
        matrix = type_of(node)
        (rows, columns), name = matrix.at(), _encoding(matrix).name
        for user in list(node.users):
            with graph.inserting_before(user):
                if user.target is aten.linear.default:
                    bias = user.args[2] if len(user.args) > 2 else None
                    x, bias = (_cast(graph, a, matrix.dtype, "f32") for a in (user.args[0], bias))
                    found = graph.call_function(specc.linear.default, (x, node, bias, rows, name))
                else:
                    flat = graph.call_function(aten.reshape.default, (user.args[1], [-1]))
                    found = graph.call_function(
                        specc.embedding.default, (flat, node, rows, columns, name)
                    )
                    shape = [-1 if d == "T" else d for d in user.meta["type"].shape]
                    found = graph.call_function(aten.reshape.default, (found, shape))
                new = _cast(graph, found, "f32", matrix.dtype)
            new.meta = dict(user.meta)
            user.replace_all_uses_with(new)
            graph.erase_node(user)
        node.meta["type"] = packed_type(type_of(node))
    return Function(function.name, function.role, graph, function.outputs)


def _cast(graph: fx.Graph, value: Any, dtype: str, to: str) -> Any:
    """A value of `dtype` as `to`."""
    if value is None or dtype == to:
        return value
    return graph.call_function(aten._to_copy.default, (value,), {"dtype": DTYPES[to]})


def _packed_caller(
    program: SpeculativeProgram, function: Function, packable: dict[str, set[int]],
    weights: dict[str, Weight],
) -> Function:  # fmt: skip
    graph, _ = copy_graph(function.graph)
    references: dict[str, fx.Node] = {}
    for node in [n for n in graph.nodes if n.op == "call_module"]:
        args = list(node.args)
        for index in packable.get(str(node.target), ()):
            source = args[index]
            name = weight_name(source)
            assert name is not None, "leaves get their matrices from weights"
            if name not in references:
                encoding = _encoding(program.weights[name].type)
                packed = program.weights[name].encoded(encoding)
                weights[f"{name}#{encoding}"] = packed
                with graph.inserting_before(source):
                    references[name] = graph.create_node("get_attr", f"{source.target}#{encoding}")
                references[name].meta["type"] = packed.type
            args[index] = references[name]
        node.args = tuple(args)
    for node in [n for n in graph.nodes if weight_name(n) is not None and not n.users]:
        graph.erase_node(node)
    return Function(function.name, function.role, graph, function.outputs)
