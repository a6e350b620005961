"""Cut the target into leaves: the embedding, one for each kind of layer, and the head."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import fx

from specc.ir import Role, SpeculativeProgram
from specc.ir.dialect import ops
from specc.ir.graphs import Builder, has_effect, type_of
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise, same
from specc.passes.replay import mark
from specc.passes.segments import Segment, cut, outline


@dataclass(frozen=True)
class OutlineLayers(Pass):
    """Identical layers become calls of one leaf: compiled once, to be left out, tapped or reused.

    Before: x0 = embedding(...); x1 = <layer 0>(x0); x2 = <layer 1>(x1); logits = <norm, head>(x2)
    After:  x0, cos, sin = call embed(tokens, positions, @embed, ...)
            x1 = call layer.0(x0, cos, sin, rows, positions, $k.0, $v.0, @w0...)
            x2 = call layer.0(x1, cos, sin, rows, positions, $k.1, $v.1, @w1...)
            logits = call head(x2, @norm, @head)

    What flows between layers is [T, H]. Layers are told apart by their operations and constants (a
    sliding window, say); their weights and state are arguments. A target whose layers exchange more
    than one tensor is refused.
    """

    name: ClassVar[str] = "outline-layers"

    prefix: str = ""
    """Put before leaf names; tells a drafter's leaves from the target's."""

    def requires(self, program: SpeculativeProgram) -> None:
        need("target" in program.functions, "there is no target", "an importer")
        graph = program.functions["target"].graph
        need(
            not any(n.target is ops.attention.default for n in graph.nodes),
            "the target has no state yet", "make-stateful",
        )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        target = program.functions["target"]
        calls = [str(n.target) for n in target.graph.nodes if n.op == "call_module"]
        if calls:
            same("prefix", calls[0].removesuffix("embed"), self.prefix)
            return PassResult(program, modified=False)
        segments = cut(target.graph)
        builder = Builder()
        values: dict[fx.Node, fx.Node] = {
            n: builder.input(n.name, type_of(n)) for n in target.inputs
        }
        leaves: dict[str, Function] = {}
        for segment in segments:
            leaf = self._leaf(segment, leaves)
            args = [builder.taken(source, values) for source in segment.inputs]
            results = builder.call(leaf, args)
            mark(results[0], segment.part, segment.layer)
            values.update(zip(segment.outputs, results, strict=True))
        logits = values[segments[-1].outputs[0]]
        function = Function("target", Role.TARGET, builder.output(logits), target.outputs)
        rewritten = program.with_functions(*leaves.values()).replacing(function)
        layers = sum(s.part == "layer" for s in segments)
        return PassResult(
            replace(rewritten, model=replace(program.model, num_layers=layers)), modified=True
        )

    def ensures(self, program: SpeculativeProgram) -> None:
        nodes = program.functions["target"].graph.nodes
        promise(
            all(
                n.op != "call_function" or n.target is operator.getitem or has_effect(n)
                for n in nodes
            ),
            "the target computes something outside its leaves",
        )

    def _leaf(self, segment: Segment, leaves: dict[str, Function]) -> Function:
        """The leaf for this segment, made if there is no equal one yet."""
        graph = outline(segment)
        if segment.part != "layer":
            name = f"{self.prefix}{segment.part}"
            return leaves.setdefault(name, Function(name, Role.LEAF, graph, segment.output_names))
        kind = f"{self.prefix}layer.{segment.kind}"
        return leaves.setdefault(kind, Function(kind, Role.LEAF, graph, segment.output_names))
