"""Products of one input with several matrices become one: fewer calls, longer streams of weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from specc.ir import Role, SpeculativeProgram, Weight
from specc.ir.dialect import ops
from specc.ir.graphs import WEIGHT, copy_graph, drop_dead, type_of, weight_name
from specc.ir.infer import infer_types
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise

aten = torch.ops.aten


@dataclass(frozen=True)
class FuseLinears(Pass):
    """Linears that share their input become one over the matrices below each other, and slices of it.

    Before: q = linear(x, @q); k = linear(x, @k); v = linear(x, @v)
    After:  y = linear(x, @(q+k+v)); q = y[..., :Q]; k = y[..., Q:Q+K]; v = y[..., Q+K:]

    An output is the same sum of the same terms as before, so its bits stay where a kernel gives each
    output a chain of its own (runtime/cpp/model). Only linears between the same two attentions are
    joined (layers stay apart), of one element type, all with a bias or none, and only matrices that
    nothing else reads. What chooses experts stays alone. A target cut into leaves is left as it is.
    """

    name: ClassVar[str] = "fuse-linears"

    as_stored: bool = False
    """Join only matrices of one quantised type of the model's file, so that they can be kept so."""

    def requires(self, program: SpeculativeProgram) -> None:
        need("target" in program.functions, "there is no target", "an importer")

    def call(self, program: SpeculativeProgram) -> PassResult:
        target = program.functions["target"]
        if not self._groups(program, target.graph):
            return PassResult(program, modified=False)
        graph, _ = copy_graph(target.graph)
        weights: dict[str, Weight] = {}
        for group in self._groups(program, graph):
            _fuse(program, graph, group, weights)
        drop_dead(graph)
        infer_types(graph)
        used = {name for node in graph.nodes if (name := weight_name(node)) is not None}
        store = program.weights.added(weights).only(used)
        function = Function("target", Role.TARGET, graph, target.outputs)
        return PassResult(replace(program, weights=store).replacing(function), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        graph = program.functions["target"].graph
        promise(not self._groups(program, graph), "linears share an input")

    def _groups(self, program: SpeculativeProgram, graph: fx.Graph) -> list[list[fx.Node]]:
        """Linears that can be one, in the order of the graph."""
        readers: dict[str, int] = {}
        for node in graph.nodes:
            if (name := weight_name(node)) is not None:
                readers[name] = readers.get(name, 0) + len(node.users)
        found: dict[object, list[fx.Node]] = {}
        attentions = 0
        for node in graph.nodes:
            attentions += node.target in _ATTENTIONS
            if node.target is not aten.linear.default or chooses_experts(node):
                continue
            x, *operands = node.args
            names = [weight_name(o) for o in operands if isinstance(o, fx.Node)]
            if all(name is not None and readers[name] == 1 for name in names):
                dtypes = tuple(type_of(o).dtype for o in operands if isinstance(o, fx.Node))
                stored = program.weights[str(names[0])].stored if self.as_stored else None
                kind = stored.kind if stored is not None else None
                found.setdefault((x, attentions, dtypes, kind), []).append(node)
        return [group for group in found.values() if len(group) > 1]


def chooses_experts(linear: fx.Node) -> bool:
    """Whether the outputs of `linear` rank something: a router's matrix, which is small and must be exact."""
    seen: set[fx.Node] = set()
    waiting = list(linear.users)
    while waiting:
        node = waiting.pop()
        if node.target is aten.topk.default:
            return True
        if node not in seen and node.target not in _PRODUCTS:
            seen.add(node)
            waiting += node.users
    return False


_ATTENTIONS = (ops.attention.default, ops.cached_attention.default)
_PRODUCTS = (aten.linear.default, *_ATTENTIONS)


def _fuse(
    program: SpeculativeProgram, graph: fx.Graph, group: list[fx.Node], weights: dict[str, Weight]
) -> None:
    """Put one linear and its slices in place of `group`."""
    operands = []
    with graph.inserting_before(group[0]):
        for sources in zip(*(node.args[1:] for node in group), strict=True):
            names = [weight_name(s) for s in sources]
            name = joined_name([n for n in names if n is not None])
            weights[name] = Weight.stacked([program.weights[n] for n in names if n is not None])
            reference = graph.create_node("get_attr", WEIGHT + name)
            reference.meta["type"] = weights[name].type
            operands.append(reference)
        x = group[0].args[0]
        fused = graph.call_function(aten.linear.default, (x, *operands))
        fused.meta["origin"] = group[0].meta.get("origin", "")
        axis, begin = len(type_of(group[0]).shape) - 1, 0
        for node in group:
            end = begin + int(type_of(node).shape[-1])
            part = graph.call_function(aten.slice.Tensor, (fused, axis, begin, end))
            part.meta["origin"] = node.meta.get("origin", "")
            node.replace_all_uses_with(part)
            begin = end
    for node in group:
        graph.erase_node(node)


def joined_name(names: list[str]) -> str:
    """`a.q.weight` and `a.k.weight` as `a.(q+k).weight`."""
    split = [name.split(".") for name in names]
    shortest = min(map(len, split)) - 1
    head = next((i for i in range(shortest) if len({s[i] for s in split}) > 1), shortest)
    rest = shortest - head
    tail = next((i for i in range(rest) if len({s[-1 - i] for s in split}) > 1), rest)
    middle = "+".join(".".join(s[head : len(s) - tail]) for s in split)
    return ".".join([*split[0][:head], f"({middle})", *split[0][len(split[0]) - tail :]])
