"""Bring a freshly imported target into one form, whatever framework wrote it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import fx

from specc.ir import Role, SpeculativeProgram, Weight
from specc.ir.evaluate import evaluate
from specc.ir.graphs import (
    WEIGHT,
    backward_slice,
    copy_graph,
    drop_dead,
    has_effect,
    type_of,
    weight_name,
)
from specc.ir.infer import infer_types
from specc.ir.program import Function
from specc.ir.types import TensorType, itemsize
from specc.passes.base import Pass, PassResult, need

aten = torch.ops.aten

_IDENTITIES = {
    aten.alias.default, aten.detach.default, aten.clone.default, aten.contiguous.default,
    aten.lift_fresh_copy.default, aten.dropout.default, aten.native_dropout.default,
    aten._to_copy.default, aten.to.dtype, aten.expand.default, aten.reshape.default,
    aten.slice.Tensor,
}  # fmt: skip
"""What changes nothing when result and source have the same type (dropout: not training)."""


@dataclass(frozen=True)
class Canonicalise(Pass):
    """Remove what does nothing, write every product with a weight as `linear`, fold constants.

    Before: y = addmm(@b, clone(x), @w); z = mul(y, 1.0)     After: z = linear(x, @w.T, @b)

    A target with state or leaves is left as it is: order and effects would have to be kept.

    Cases:
        1. x = clone(y), view(y) of y's own shape, ...      -> y
        2. mul(x, 1.0), add(x, 0.0), div(x, 1.0)             -> x
        3. addmm(b, x, W), mm(x, W), matmul(x, W), t(W)      -> linear(x, W^T, b)
        4. an operation on weights alone                     -> a new weight
        5. the same operation on the same values twice       -> once
    """

    name: ClassVar[str] = "canonicalise"

    def requires(self, program: SpeculativeProgram) -> None:
        need("target" in program.functions, "there is no target", "an importer")

    def call(self, program: SpeculativeProgram) -> PassResult:
        target = program.functions["target"]
        if any(node.op == "call_module" or has_effect(node) for node in target.graph.nodes):
            return PassResult(program, modified=False)
        graph, _ = copy_graph(target.graph)
        weights: dict[str, Weight] = {}
        modified = False
        while _simplify(program, graph, weights):
            modified = True
        if not modified:
            return PassResult(program, modified=False)
        infer_types(graph)
        used = {name for node in graph.nodes if (name := weight_name(node)) is not None}
        store = program.weights.added(weights).only(used)
        function = Function("target", Role.TARGET, graph, target.outputs)
        return PassResult(replace(program, weights=store).replacing(function), modified=True)


def _simplify(program: SpeculativeProgram, graph: fx.Graph, weights: dict[str, Weight]) -> int:
    """Every case once; returns how many nodes changed. One case makes work for another."""
    changes = _drop_identities(graph)
    changes += _write_linear(program, graph, weights)
    changes += _fold_constants(program, graph, weights)
    changes += _share(graph)
    return changes + drop_dead(graph)


def _drop_identities(graph: fx.Graph) -> int:
    changes = 0
    for node in list(graph.nodes):
        source = node.args[0] if node.args else None
        if node.op != "call_function" or not isinstance(source, fx.Node):
            continue
        same_type = node.meta["type"] == source.meta["type"]
        case_1 = node.target in _IDENTITIES and same_type
        case_2 = same_type and _is_neutral(node)
        if case_1 or case_2:
            node.replace_all_uses_with(source)
            changes += 1
    return changes


def _is_neutral(node: fx.Node) -> bool:
    if len(node.args) < 2 or isinstance(node.args[1], (fx.Node, list)):
        return False
    if node.target in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar):
        return bool(node.args[1] == 1)
    return node.target in (aten.add.Tensor, aten.sub.Tensor) and bool(node.args[1] == 0)


def _write_linear(program: SpeculativeProgram, graph: fx.Graph, weights: dict[str, Weight]) -> int:
    """Case 3. x may have any rank; W is a weight [K, N] or the transpose of one."""
    changes = 0
    for node in list(graph.nodes):
        if node.target is aten.addmm.default and not node.kwargs:
            bias, x, matrix = node.args
        elif node.target in (aten.mm.default, aten.matmul.default):
            (x, matrix), bias = node.args, None
        else:
            continue
        transposed = _transposed(program, graph, matrix, weights)
        if transposed is None or (bias is not None and weight_name(bias) is None):
            continue
        with graph.inserting_before(node):
            new = graph.call_function(
                aten.linear.default, (x, transposed) if bias is None else (x, transposed, bias)
            )
        new.meta.update(node.meta)
        node.replace_all_uses_with(new)
        changes += 1
    return changes


def _transposed(
    program: SpeculativeProgram, graph: fx.Graph, matrix: Any, weights: dict[str, Weight]
) -> fx.Node | None:
    """A reference to the transpose of a matrix weight, or None if `matrix` is something else."""
    if _is_transpose(matrix):
        inner: fx.Node = matrix.args[0]
        return inner if weight_name(inner) is not None and len(type_of(inner).shape) == 2 else None
    name = weight_name(matrix)
    if name is None or len(type_of(matrix).shape) != 2:
        return None
    type_ = type_of(matrix)
    weights[f"{name}.T"] = (weights.get(name) or program.weights[name]).derive(
        "transpose", TensorType(type_.dtype, type_.shape[::-1]), lambda w: w.t().contiguous()
    )
    with graph.inserting_before(matrix):
        node = graph.create_node("get_attr", f"{WEIGHT}{name}.T")
    node.meta["type"] = weights[f"{name}.T"].type
    return node


def _is_transpose(node: fx.Node) -> bool:
    """For a matrix: whether its two dimensions are swapped."""
    args: Any = node.args
    if node.target is aten.permute.default:
        return [d % 2 for d in args[1]] == [1, 0]
    if node.target is aten.transpose.int:
        return bool((args[1] - args[2]) % 2)
    return node.target is aten.t.default


_SMALL = 1 << 20
"""Bytes that any constant may have."""


def _grows(node: fx.Node) -> bool:
    """Whether the constant `node` is large, and larger than the weights it is made of."""
    sources = [n for n in backward_slice(node).nodes if weight_name(n) is not None]
    return _bytes(node) > max(_SMALL, sum(map(_bytes, sources)))


def _bytes(node: fx.Node) -> int:
    type_ = type_of(node)
    return itemsize(type_.dtype) * math.prod(type_.at())


def _fold_constants(
    program: SpeculativeProgram, graph: fx.Graph, weights: dict[str, Weight]
) -> int:
    """Case 4, a weight for each maximal constant subgraph but large ones that outgrow theirs."""
    constant: set[fx.Node] = set()
    for node in graph.nodes:
        computed = node.op == "call_function" and constant.issuperset(node.all_input_nodes)
        if computed or weight_name(node) is not None:
            constant.add(node)
    changes = 0
    for node in list(graph.nodes):
        wanted = node in constant and node.op == "call_function"
        if not wanted or all(user in constant for user in node.users) or not node.users:
            continue
        if not isinstance(node.meta["type"], TensorType) or _grows(node):
            continue
        name = f"folded.{node.name}"
        while name in program.weights or name in weights:
            name += "+"
        weights[name] = Weight.of(_constant_value(program, weights, node))
        with graph.inserting_before(node):
            reference = graph.create_node("get_attr", WEIGHT + name)
        reference.meta["type"] = weights[name].type
        node.replace_all_uses_with(reference)
        changes += 1
    return changes


def _share(graph: fx.Graph) -> int:
    """Case 5. Layers recompute what they share, such as the unsqueezed cosines."""
    first: dict[str, fx.Node] = {}
    changes = 0
    for node in list(graph.nodes):
        if node.op != "call_function" or has_effect(node):
            continue
        known = first.setdefault(repr((node.target, node.args, node.kwargs)), node)
        if known is not node:
            node.replace_all_uses_with(known)
            graph.erase_node(node)
            changes += 1
    return changes


def _constant_value(
    program: SpeculativeProgram, weights: dict[str, Weight], node: fx.Node
) -> torch.Tensor:
    """Evaluate a subgraph that needs no input."""
    alone = replace(
        program,
        functions={"f": Function("f", Role.LEAF, backward_slice(node), ("value",))},
        weights=program.weights.added(weights),
    )
    return evaluate(alone, "f", [], {})[0].contiguous().clone()
