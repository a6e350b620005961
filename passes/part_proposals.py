"""What proposes and chooses in turn calls functions that only compute, for devices that are given whole graphs."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

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
from specc.ir.printer import function_lines
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise

aten = torch.ops.aten


@dataclass(frozen=True)
class PartProposals(Pass):
    """A function that calls leaves, and chooses tokens between them, calls steps without a choice.

    Before: propose_2(root, length, ...):
            x = call embed(cat(root, @masks)); x = call layer.0(x, ...); logits, hidden = call head(x)
            a = call choose(row(logits, @constant.0), root); first = accept(root, a, ...)
            b = call choose(row(logits, @constant.1), first); second = accept(first, b, ...)
    After:  propose_2(root, length, ...):
            a, r = call propose_2.step_0(root, ...); first = accept(root, a, ...)
            b = call propose_2.step_1(r, first); second = accept(first, b, ...)

    A step has all that may be computed before the next choice; merge-leaves makes a graph of it. Steps with equal text
    are one function. Where a function calls others that write state, steps keep their order with those.
    """

    name: ClassVar[str] = "part-proposals"

    def requires(self, program: SpeculativeProgram) -> None:
        need(program.rounds, "there are no rounds", "fuse-round")

    def call(self, program: SpeculativeProgram) -> PassResult:
        mixed = [f for f in program.functions.values() if _chooses(program, f)]
        steps: dict[str, Function] = {}
        callers = [_Parts(program, function, steps).caller() for function in mixed]
        program = program.replacing(*callers).with_functions(*steps.values())
        return PassResult(program, modified=bool(mixed))

    def ensures(self, program: SpeculativeProgram) -> None:
        for function in program.functions.values():
            promise(not _chooses(program, function), f"{function.name} computes and chooses")


def _chooses(program: SpeculativeProgram, function: Function) -> bool:
    """Whether it calls leaves beside choosing tokens."""
    nodes = function.graph.nodes
    return any(n.target is ops.accept.default for n in nodes) and any(
        _calls_leaf(program, n) for n in nodes
    )


def _calls_leaf(program: SpeculativeProgram, node: fx.Node) -> bool:
    return node.op == "call_module" and program.functions[str(node.target)].role is Role.LEAF


class _Parts:
    """One function: which of its nodes are computed in which step.

    A node's level is how many steps come before it, whether it is in the next step or stands between them.
    """

    def __init__(
        self, program: SpeculativeProgram, function: Function, steps: dict[str, Function]
    ) -> None:
        self.program, self.function, self.steps = program, function, steps
        self.inside: set[fx.Node] = set()
        self.level: dict[fx.Node, int] = {}
        floor = 0  # of what touches state: effects keep their order
        for node in function.graph.nodes:
            if self._is_computed(node):
                self.inside.add(node)
            above = [self.level[n] + self._steps_over(n, node) for n in node.all_input_nodes]
            self.level[node] = max(above, default=0)
            if node.op == "call_module" or has_effect(node):
                self.level[node] = floor = max(floor, self.level[node])
                if node not in self.inside and any(
                    self.level[n] >= floor for n in self.inside if n.op == "call_module"
                ):
                    self.level[node] = floor = floor + 1

    def _is_computed(self, node: fx.Node) -> bool:
        """Calls of leaves, and what joins or picks their results or weights."""
        if node.target in (operator.getitem, ops.row.default):
            return node.all_input_nodes[0] in self.inside
        if node.target is aten.cat.default:
            return any(n in self.inside or weight_name(n) for n in node.all_input_nodes)
        return _calls_leaf(self.program, node)

    def _steps_over(self, source: fx.Node, user: fx.Node) -> int:
        return int(source in self.inside and user not in self.inside)

    def caller(self) -> Function:
        """The function, calling steps, which it adds to `steps`."""
        old = self.function.graph
        builder, values = Builder(), dict[fx.Node, fx.Node]()
        for node in self.function.inputs:
            values[node] = builder.input(node.name, type_of(node))
        between = [
            n
            for n in old.nodes
            if n.op in ("call_function", "call_module") and n not in self.inside
        ]
        for level in range(max(self.level.values()) + 1):
            for node in (n for n in between if self.level[n] == level):
                values[node] = builder.graph.node_copy(node, lambda n: builder.taken(n, values))
                values[node].meta = dict(node.meta)
            step = [n for n in old.nodes if n in self.inside and self.level[n] == level]
            if step:
                self._call(step, builder, values)
        graph = builder.output(*(builder.taken(n, values) for n in results_of(old)))
        return replace(self.function, graph=graph)

    def _call(self, step: list[fx.Node], builder: Builder, values: dict[fx.Node, fx.Node]) -> None:
        own = set(step)
        taken = _once(
            n for node in step for n in node.all_input_nodes if n not in own and not _is_constant(n)
        )
        given = [
            n for n in step if "type" in n.meta and n.op == "call_function" and set(n.users) - own
        ]
        function = self._shared(self._step(step, taken, given))
        results = builder.call(function, [values[n] for n in taken])
        values.update(zip(given, results, strict=True))

    def _step(self, step: list[fx.Node], taken: list[fx.Node], given: list[fx.Node]) -> Function:
        inner = Builder()
        copies = {
            node: inner.input(name, type_of(node))
            for node, name in zip(taken, self._names(step, taken), strict=True)
        }
        for node in step:
            copies[node] = inner.graph.node_copy(node, lambda n: inner.taken(n, copies))
            copies[node].meta = dict(node.meta)
        graph = inner.output(*(copies[n] for n in given))
        names = tuple(f"result_{i}" for i in range(len(given)))
        return Function("step", Role.DRAFT, graph, names)

    def _names(self, step: list[fx.Node], taken: list[fx.Node]) -> list[str]:
        """What leaves call the values that a step takes: its rows are `rows`."""
        told: dict[fx.Node, str] = {}
        for call in (n for n in step if n.op == "call_module"):
            leaf = self.program.functions[str(call.target)]
            for value, place in zip(call.args, leaf.inputs, strict=True):
                assert isinstance(value, fx.Node)
                if place.name not in told.values():
                    told.setdefault(value, place.name)
        return [told.get(n, f"value_{i}") for i, n in enumerate(taken)]

    def _shared(self, step: Function) -> Function:
        """`step` under a name, or another of the same text."""
        text = "\n".join(function_lines(step))
        number = sum(f.name.startswith(f"{self.function.name}.") for f in self.steps.values())
        named = replace(step, name=f"{self.function.name}.step_{number}")
        return self.steps.setdefault(text, named)


def _is_constant(node: fx.Node) -> bool:
    return weight_name(node) is not None or state_name(node) is not None


def _once(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    return list(dict.fromkeys(nodes))
