"""Small hands for FX graphs: references, copies, calls, dead code."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from specc.ir.program import Function
from specc.ir.types import TensorType

WEIGHT, STATE = "weight.", "state."


def weight_name(node: fx.Node) -> str | None:
    """The weight that `node` refers to, if it does."""
    return _reference(node, WEIGHT)


def state_name(node: fx.Node) -> str | None:
    """The state buffer that `node` refers to, if it does."""
    return _reference(node, STATE)


def _reference(node: fx.Node, prefix: str) -> str | None:
    if node.op == "get_attr" and isinstance(node.target, str) and node.target.startswith(prefix):
        return node.target.removeprefix(prefix)
    return None


def type_of(node: fx.Node) -> TensorType:
    """The tensor type of `node`'s single value."""
    found = node.meta["type"]
    if not isinstance(found, TensorType):
        raise TypeError(f"{node} has no single tensor type: {found}")
    return found


def has_effect(node: fx.Node) -> bool:
    """Whether `node` writes state, directly or through a function it calls."""
    if node.op == "call_module":
        return bool(node.meta.get("writes"))
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def written(node: fx.Node) -> Iterator[object]:
    """The arguments that an operation writes to; nothing for calls of functions."""
    if node.op != "call_function" or not has_effect(node):
        return
    schema = node.target._schema  # type: ignore[union-attr]
    values = {a.name: v for a, v in zip(schema.arguments, node.args, strict=False)} | node.kwargs
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield values.get(argument.name)


def drop_dead(graph: fx.Graph) -> int:
    """Erase nodes that nothing uses and that have no effect; returns how many went. Inputs stay."""
    dead = 0
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output") or node.users or has_effect(node):
            continue
        graph.erase_node(node)
        dead += 1
    return dead


def backward_slice(result: fx.Node) -> fx.Graph:
    """What computes `result` and no more, as a graph that returns it."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    wanted = {result}
    for node in reversed(result.graph.nodes):
        if node in wanted:
            wanted.update(node.all_input_nodes)
    for node in result.graph.nodes:
        if node in wanted:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output((copies[result],))
    return graph


def copy_graph(graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy that may be changed, output node included, and the map of old nodes to new ones."""
    new = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        mapping[node] = new.node_copy(node, mapping.__getitem__)
        mapping[node].meta = dict(node.meta)
    return new, mapping


def output_of(graph: fx.Graph) -> fx.Node:
    """The output node."""
    found: fx.Node = next(n for n in reversed(graph.nodes) if n.op == "output")
    return found


def results_of(graph: fx.Graph) -> tuple[fx.Node, ...]:
    """What the graph returns."""
    results = output_of(graph).args[0]
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)  # type: ignore[arg-type,return-value]


def retype(call: fx.Node, called: Function) -> None:
    """Give `call`, and what is taken of it, the types of what `called` returns."""
    call.meta["type"] = tuple(map(type_of, results_of(called.graph)))
    for item in call.users:
        item.meta["type"] = call.meta["type"][item.args[1]]


def at_rows(type_: Any, rows: int | None) -> Any:
    """The type, tuple of types or None `type_` with `rows` in place of T; as it is for None."""
    if rows is None or type_ is None:
        return type_
    if isinstance(type_, tuple):
        return tuple(at_rows(t, rows) for t in type_)
    return TensorType(type_.dtype, tuple(rows if d == "T" else d for d in type_.shape))


class Builder:
    """Appends typed nodes to a graph. Values are FX nodes; each gets `meta["type"]`, None for an effect."""

    def __init__(self, graph: fx.Graph | None = None) -> None:
        self.graph = graph or fx.Graph()
        self._references: dict[str, fx.Node] = {}

    def input(self, name: str, type_: TensorType) -> fx.Node:
        """A placeholder."""
        node = self.graph.placeholder(name)
        node.meta["type"] = type_
        return node

    def weight(self, name: str, type_: TensorType) -> fx.Node:
        """A reference to a weight; one node per weight."""
        return self._refer(WEIGHT + name, type_)

    def state(self, name: str, type_: TensorType) -> fx.Node:
        """A reference to a state buffer; one node per buffer."""
        return self._refer(STATE + name, type_)

    def taken(self, node: fx.Node, values: Mapping[fx.Node, fx.Node]) -> fx.Node:
        """What `node` of another graph is here: the same weight or state, or what `values` has for it."""
        if (weight := weight_name(node)) is not None:
            return self.weight(weight, type_of(node))
        if (state := state_name(node)) is not None:
            return self.state(state, type_of(node))
        return values[node]

    def _refer(self, target: str, type_: TensorType) -> fx.Node:
        if target not in self._references:
            node = self.graph.create_node("get_attr", target)
            node.meta["type"] = type_
            self._references[target] = node
        return self._references[target]

    def op(self, target: Any, *args: Argument, type_: TensorType | None = None) -> fx.Node:
        """A call of an operation with one result or none. Without a type, see `infer_types`."""
        node = self.graph.call_function(target, args)
        node.meta["type"] = type_
        return node

    def ops(self, target: Any, *args: Argument, types: Sequence[TensorType]) -> list[fx.Node]:
        """A call of an operation that returns a tuple."""
        node = self.graph.call_function(target, args)
        node.meta["type"] = tuple(types)
        return self.items(node)

    def call(
        self, function: Function, args: Iterable[fx.Node], rows: int | None = None
    ) -> list[fx.Node]:
        """A call of another function; `rows` replaces T in the types of its results, returned."""
        node = self.graph.create_node("call_module", function.name, tuple(args))
        node.meta["type"] = at_rows(tuple(map(type_of, results_of(function.graph))), rows)
        node.meta["writes"] = any(map(has_effect, function.graph.nodes))
        return self.items(node)

    def items(self, node: fx.Node) -> list[fx.Node]:
        """The results of `node`, a call or an operation of several, as values of their own."""
        items = []
        for index, type_ in enumerate(node.meta["type"]):
            item = self.graph.call_function(operator.getitem, (node, index))
            item.meta["type"] = type_
            items.append(item)
        return items

    def output(self, *values: fx.Node) -> fx.Graph:
        """End the graph."""
        self.graph.output(tuple(values))
        return self.graph
