"""Each function that computes becomes one graph, for devices that are given whole graphs."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Role, SpeculativeProgram
from specc.ir.dialect import ops
from specc.ir.graphs import (
    Builder,
    has_effect,
    results_of,
    state_name,
    type_of,
    weight_name,
)
from specc.ir.infer import infer_types
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise

GRAPH = ".graph"
"""Ends the name of a function's graph."""


@dataclass(frozen=True)
class MergeLeaves(Pass):
    """The leaves that a prefill, verify or draft calls become one leaf, which it calls alone.

    Before: verify_2(tokens[3], positions[3], rows[3]):
            x = call embed(tokens, @e); x = call layer.0(x, rows, ..., $k.0, @w0); l = call head(x, @h)
    After:  verify_2(tokens[3], positions[3], rows[3]):
            l = call verify_2.graph(tokens, positions, rows, @e, $k.0, @w0, @h)

    Operations keep the layer that they belong to, for messages. A function that does anything beside calling
    leaves is refused: that is the host's. (part-proposals has taken it out where tokens are chosen.)
    """

    name: ClassVar[str] = "merge-leaves"

    def requires(self, program: SpeculativeProgram) -> None:
        need(program.rounds, "there are no rounds", "fuse-round")
        for function in program.functions.values():
            if not _calls_leaves(program, function):
                continue
            for node in function.graph.nodes:
                if node.op == "call_function" and node.target not in _INSIDE:
                    raise PassError(
                        "SPECC-E0371",
                        f"{function.name} is no graph for a device: {node.target} is the host's",
                        where=function.name, expected="calls of leaves alone",
                        cure="use --device cpu, or --method suffix",
                    )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        merged = [f for f in program.functions.values() if _calls_leaves(program, f)]
        if all(_is_merged(f) for f in merged):
            return PassResult(program, modified=False)
        for function in merged:
            leaf, caller = _merge(program, function)
            program = program.with_functions(leaf).replacing(caller)
        called = {
            str(n.target) for f in program.functions.values() for n in f.graph.nodes
            if n.op == "call_module"
        }  # fmt: skip
        for name, function in list(program.functions.items()):
            if function.role is Role.LEAF and name not in called:
                program = program.without_function(name)
        return PassResult(program, modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        leaves = {n for n, f in program.functions.items() if f.role is Role.LEAF}
        promise(all(n.endswith(GRAPH) for n in leaves), "a leaf is left")


_INSIDE = {operator.getitem, ops.row.default, torch.ops.aten.cat.default}
"""What may stand beside calls in a function that becomes a graph."""


def _calls_leaves(program: SpeculativeProgram, function: Function) -> bool:
    calls = (n for n in function.graph.nodes if n.op == "call_module")
    return any(program.functions[str(n.target)].role is Role.LEAF for n in calls)


def _is_merged(function: Function) -> bool:
    calls = [str(n.target) for n in function.graph.nodes if n.op == "call_module"]
    return calls == [function.name + GRAPH]


def graph_call(function: Function) -> fx.Node | None:
    """The call of a graph in `function`, if it has one."""
    return next(
        (n for n in function.graph.nodes if n.op == "call_module" and n.target == function.name + GRAPH), None
    )  # fmt: skip


def need_graphs(program: SpeculativeProgram) -> None:
    """Raise PassError if no function calls a graph."""
    need(any(map(graph_call, program.functions.values())), "there are no graphs", "merge-leaves")


def _merge(program: SpeculativeProgram, function: Function) -> tuple[Function, Function]:
    """The graph of `function`, and `function` calling it."""
    inner, outer = Builder(), Builder()
    values: dict[fx.Node, fx.Node] = {}
    given: list[fx.Node] = []
    for node in function.inputs:
        values[node] = inner.input(node.name, type_of(node))
        given.append(outer.input(node.name, type_of(node)))
    for node in function.graph.nodes:
        weight, state = weight_name(node), state_name(node)
        if weight is None and state is None:
            continue
        values[node] = inner.input(f"constant_{len(given)}", type_of(node))
        refer = outer.weight if weight is not None else outer.state
        given.append(refer(str(weight or state), type_of(node)))
    for node in function.graph.nodes:
        if node.op == "call_module":
            _inline(program, node, inner, values)
        elif node.op == "call_function" and node not in values:
            values[node] = inner.graph.node_copy(node, values.__getitem__)
            values[node].meta = dict(node.meta)
    graph = inner.output(*(values[n] for n in results_of(function.graph)))
    infer_types(graph, function.name)
    leaf = Function(function.name + GRAPH, Role.LEAF, graph, function.outputs)
    call = outer.graph.create_node("call_module", leaf.name, tuple(given))
    call.meta |= {
        "type": tuple(map(type_of, results_of(graph))),
        "writes": any(map(has_effect, graph.nodes)), "part": "graph", "layer": -1,
    }  # fmt: skip
    results = outer.items(call)
    return leaf, Function(function.name, function.role, outer.output(*results), function.outputs)


def _inline(
    program: SpeculativeProgram, call: fx.Node, builder: Builder, values: dict[fx.Node, fx.Node]
) -> None:
    leaf = program.functions[str(call.target)]
    inside: dict[fx.Node, fx.Node] = {
        taken: values[given]
        for taken, given in zip(leaf.inputs, call.args, strict=True)
        if isinstance(given, fx.Node)
    }
    for node in leaf.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        inside[node] = builder.graph.node_copy(node, inside.__getitem__)
        inside[node].meta = {**node.meta, "part": call.meta["part"], "layer": call.meta["layer"]}
    results = results_of(leaf.graph)
    for item in [u for u in call.users if u.target is operator.getitem]:
        index = item.args[1]
        assert isinstance(index, int)
        values[item] = inside[results[index]]
