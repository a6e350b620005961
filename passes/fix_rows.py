"""Every graph gets one number of rows, for devices that compile shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import fx

from specc.ir import Role, SpeculativeProgram
from specc.ir.dialect import ops
from specc.ir.graphs import at_rows, copy_graph, results_of, type_of
from specc.ir.infer import infer_types
from specc.ir.program import Function
from specc.ir.types import TensorType
from specc.passes.base import Pass, PassResult, promise
from specc.passes.merge_leaves import graph_call, need_graphs


@dataclass(frozen=True)
class FixRows(Pass):
    """A graph of T rows becomes one of a number of rows; its caller repeats the last row up to it.

    Before: prefill(tokens[T], positions[T], rows[T]):
            call prefill.graph(tokens, positions, rows, ...)
    After:  prefill(tokens[T], positions[T], rows[T]):
            call prefill.graph(pad_rows(tokens, 64), pad_rows(positions, 64), pad_rows(rows, 64), ...)

    Prefill and what extends a drafter over it have the rows of a prefill chunk. What a round calls
    has one more than its drafts at most: so many tokens a round commits. A repeated row writes once
    more what the row itself writes.
    """

    name: ClassVar[str] = "fix-rows"

    def requires(self, program: SpeculativeProgram) -> None:
        need_graphs(program)

    def call(self, program: SpeculativeProgram) -> PassResult:
        modified = False
        for function in list(program.functions.values()):
            call = graph_call(function)
            if call is None or not any(_is_open(n) for n in function.inputs):
                continue
            leaf = program.functions[str(call.target)]
            if not any(_is_open(n) for n in leaf.inputs):
                continue
            whole = function.role is Role.PREFILL or function.name == program.contract.extend
            most = program.contract.num_speculative_tokens[-1] + 1
            rows = program.prefill_chunk if whole else most
            program = program.replacing(_fixed(leaf, rows), _padded(function, rows))
            modified = True
        return PassResult(program, modified)

    def ensures(self, program: SpeculativeProgram) -> None:
        for function in program.functions.values():
            if function.role is Role.LEAF:
                dims = [d for n in function.graph.nodes for d in _dims(n)]
                promise("T" not in dims, f"{function.name} has T rows")
            elif graph_call(function) is not None:
                results = results_of(function.graph)
                promise(not any(map(_is_open, results)), f"{function.name} returns T rows")


def _dims(node: fx.Node) -> tuple[int | str, ...]:
    found = node.meta.get("type")
    return found.shape if isinstance(found, TensorType) else ()


def _is_open(node: fx.Node) -> bool:
    return "T" in _dims(node)


def _fixed(leaf: Function, rows: int) -> Function:
    graph, copies = copy_graph(leaf.graph)
    for node in leaf.inputs:
        copies[node].meta["type"] = at_rows(node.meta["type"], rows)
    infer_types(graph, leaf.name)
    return Function(leaf.name, leaf.role, graph, leaf.outputs)


def _padded(function: Function, rows: int) -> Function:
    graph, copies = copy_graph(function.graph)
    old = graph_call(function)
    assert old is not None
    call = copies[old]
    padded: list[fx.Node] = []
    with graph.inserting_before(call):
        for value in old.args:
            assert isinstance(value, fx.Node)
            new = copies[value]
            if _is_open(value):
                new = graph.call_function(ops.pad_rows.default, (new, rows))
                new.meta["type"] = at_rows(type_of(value), rows)
            padded.append(new)
    call.args = tuple(padded)
    for node in (call, *call.users):
        node.meta["type"] = at_rows(node.meta["type"], rows)
    return Function(function.name, function.role, graph, function.outputs)
