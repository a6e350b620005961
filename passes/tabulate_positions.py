"""Replace what is computed from positions alone by rows of tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import SpeculativeProgram, Weight
from specc.ir.evaluate import evaluate
from specc.ir.graphs import WEIGHT, backward_slice, copy_graph, drop_dead, type_of, weight_name
from specc.ir.infer import infer_types
from specc.ir.program import Function, Role
from specc.passes.base import Pass, PassResult, need, promise, same

aten = torch.ops.aten


@dataclass(frozen=True)
class TabulatePositions(Pass):
    """Cosines, sines and learned position embeddings become one row lookup each.

    Before: cos = cos(positions * inv_freq)
    After:  cos = index_select(@table.0, 0, positions)

    The table has `max_model_len` rows and is computed by the model's own operations, so it is
    exact. A value whose row depends on other positions than its own (dynamic NTK scaling) is
    refused.
    """

    name: ClassVar[str] = "tabulate-positions"

    max_model_len: int = 2048
    """S: positions that tables and caches hold."""

    def requires(self, program: SpeculativeProgram) -> None:
        need("target" in program.functions, "there is no target", "an importer")
        limit = program.model.max_position
        if limit and self.max_model_len > limit:
            raise PassError(
                "SPECC-E0353", f"{program.name} has no {self.max_model_len} positions",
                expected=f"at most {limit}, what the model was trained for",
                cure="choose a smaller --max-model-len",
            )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        target = program.functions["target"]
        positional = _positional(target.graph)
        edges = [
            n for n in target.graph.nodes
            if n in positional and n.op != "placeholder" and not _comes_from_lookup(n)
            and any(u not in positional for u in n.users)
        ]  # fmt: skip
        if not edges:
            for name, rows in tables(program).items():
                same(f"rows of @{name}", rows, self.max_model_len)
            return PassResult(program, modified=False)
        graph, copies = copy_graph(target.graph)
        weights: dict[str, Weight] = {}
        for number, edge in enumerate(edges):
            name = f"table.{number}"
            table, dim = self._table(program, edge)
            weights[name] = Weight.of(table)
            _look_up(graph, copies[edge], name, weights[name], dim)
        drop_dead(graph)
        infer_types(graph)
        function = Function("target", Role.TARGET, graph, target.outputs)
        used = {used_name for n in graph.nodes if (used_name := weight_name(n)) is not None}
        store = program.weights.added(weights).only(used)
        return PassResult(replace(program, weights=store).replacing(function), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        graph = program.functions["target"].graph
        positional = _positional(graph)
        promise(
            all(n.op == "placeholder" or _comes_from_lookup(n) for n in positional),
            "something else than a table is computed from positions",
        )

    def _table(self, program: SpeculativeProgram, edge: fx.Node) -> tuple[torch.Tensor, int]:
        """Rows [S, ...] of `edge` for positions 0..S-1, and the dimension that T had."""
        shape = type_of(edge).shape
        if shape.count("T") != 1:
            raise PassError(
                "SPECC-E0333", f"{edge.target} of positions has shape {type_of(edge)}",
                where=str(edge.meta.get("origin", "")), expected="one dimension T",
                cure="choose another architecture",
            )  # fmt: skip
        dim = shape.index("T")
        every = torch.arange(self.max_model_len)
        rows = self._rows(program, edge, every).movedim(dim, 0)
        # What depends on the longest position shows in a low part, what depends on order in a
        # reversed one.
        part = max(2, self.max_model_len // 3)
        parts = [every[:part], every.flip(0)[:part]]
        if any(
            not torch.equal(self._rows(program, edge, some).movedim(dim, 0), rows[some])
            for some in parts
        ):
            raise PassError(
                "SPECC-E0332",
                "a position's value depends on the other positions of the call",
                where=str(edge.meta.get("origin", "")),
                found="dynamic rope scaling",
                cure="use a static rope_type (llama3, yarn, longrope, linear) "
                "or a smaller --max-model-len",
            )
        return rows.contiguous(), dim

    @staticmethod
    def _rows(program: SpeculativeProgram, edge: fx.Node, at: torch.Tensor) -> torch.Tensor:
        """What the model computes at `edge` for the positions `at`."""
        rows = Function("rows", Role.LEAF, backward_slice(edge), ("rows",))
        return evaluate(replace(program, functions={"rows": rows}), "rows", [at], {})[0]


def tables(program: SpeculativeProgram) -> dict[str, int]:
    """Rows of each table that this pass made, here or in a drafter that was attached."""
    return {
        name: int(weight.type.shape[0])
        for name, weight in program.weights.items()
        if re.fullmatch(r"(draft\.)?table\.(\d+|cos|sin)", name)
    }


def _positional(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that depend on the input `positions` and on no other input."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            if node.name == "positions":
                found.add(node)
        elif node.op == "call_function":
            sources = [s for s in node.all_input_nodes if weight_name(s) is None]
            if sources and all(s in found for s in sources):
                found.add(node)
    return found


def _is_lookup(node: fx.Node) -> bool:
    """Whether `node` is table[positions]."""
    if node.target is not aten.index_select.default:
        return False
    table, dim, index = node.args
    direct = isinstance(index, fx.Node) and index.op == "placeholder"
    return (
        isinstance(table, fx.Node) and weight_name(table) is not None and bool(dim == 0) and direct
    )


_SHAPERS = {
    aten.reshape.default, aten.transpose.int, aten.movedim.int, aten.unsqueeze.default,
    aten.permute.default,
}  # fmt: skip


def _comes_from_lookup(node: fx.Node) -> bool:
    """Whether `node` only reshapes a looked-up row."""
    while node.target in _SHAPERS and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return _is_lookup(node)


def _look_up(graph: fx.Graph, edge: fx.Node, name: str, table: Weight, dim: int) -> None:
    positions = next(n for n in graph.nodes if n.op == "placeholder" and n.name == "positions")
    shape = type_of(edge).shape
    with graph.inserting_before(edge):
        reference = graph.create_node("get_attr", WEIGHT + name)
        reference.meta["type"] = table.type
        value = graph.call_function(aten.index_select.default, (reference, 0, positions))
        if dim:
            # The row's T goes back to where the model had it.
            order = [*range(1, dim + 1), 0, *range(dim + 1, len(shape))]
            value = graph.call_function(aten.permute.default, (value, order))
    edge.replace_all_uses_with(value)
