"""Attention over the call's own rows becomes attention over a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from specc.ir import Owner, Role, SpeculativeProgram, StateBuffer, StateKind
from specc.ir.dialect import ops
from specc.ir.graphs import STATE, copy_graph, state_name, type_of
from specc.ir.infer import infer_types
from specc.ir.program import Function
from specc.ir.types import TensorType
from specc.passes.base import Pass, PassResult, need, promise, same

aten = torch.ops.aten


@dataclass(frozen=True)
class MakeStateful(Pass):
    """Keys and values are written to state, at rows that the caller chooses, then attended to there.

    Before: target(tokens, positions)
            o = attention(q, k, v)                     q [1, Hq, T, D], k, v [1, Hkv, T, D]
    After:  target(tokens, positions, rows)
            cache_write($k.0, k', rows)                k', v' [T, Hkv, D]
            cache_write($v.0, v', rows)
            o = cached_attention(q', $k.0, $v.0, positions, rows)

    With `trees`, target(tokens, positions, rows, parents), and attention takes the parents: rows of a
    call may be a token tree.

    Attentions on the same keys and values (layers that share them) share one cache. Rows beyond the
    committed length may hold anything: position p's row is read only by queries at p or later.
    """

    name: ClassVar[str] = "make-stateful"

    owner: Owner = Owner.TARGET
    """Whose state it is; the names begin with it."""
    trees: bool = False
    """Whether rows of a call may be a token tree."""

    def requires(self, program: SpeculativeProgram) -> None:
        need("target" in program.functions, "there is no target", "an importer")

    def call(self, program: SpeculativeProgram) -> PassResult:
        target = program.functions["target"]
        if not _attentions(target.graph):
            names = {state_name(n) for n in target.graph.nodes}
            there = [b for b in program.state.values() if b.name in names]
            owners = {b.owner for b in there if b.kind is StateKind.KV_CACHE}
            same("owner", owners or {self.owner}, {self.owner})
            same("trees", "parents" in [n.name for n in target.inputs], self.trees)
            return PassResult(program, modified=False)
        graph, _ = copy_graph(target.graph)
        positions = next(n for n in graph.nodes if n.name == "positions")
        with graph.inserting_after(positions):
            rows = graph.placeholder("rows")
        rows.meta["type"] = positions.meta["type"]
        parents = None
        if self.trees:
            with graph.inserting_after(rows):
                parents = graph.placeholder("parents")
            parents.meta["type"] = positions.meta["type"]
        state: list[StateBuffer] = []
        caches: dict[tuple[fx.Node, fx.Node], list[fx.Node]] = {}
        for number, node in enumerate(_attentions(graph)):
            k, v = node.args[1:3]
            if (k, v) not in caches:
                buffers, caches[k, v] = self._cache(graph, node, rows, number)  # type: ignore[index]
                state += buffers
            _rewrite(graph, node, caches[k, v], (positions, rows, parents))  # type: ignore[index]
        infer_types(graph)
        function = Function("target", Role.TARGET, graph, target.outputs)
        return PassResult(program.replacing(function).with_state(*state), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        promise(
            not _attentions(program.functions["target"].graph), "attention without state is left"
        )

    def _cache(
        self, graph: fx.Graph, node: fx.Node, rows: fx.Node, number: int
    ) -> tuple[list[StateBuffer], list[fx.Node]]:
        """Write keys and values of the attention `node` to state: buffers, references to them."""
        buffers, caches = [], []
        for letter, x in zip(("k", "v"), node.args[1:3], strict=True):
            assert isinstance(x, fx.Node)
            _, heads, _, width = type_of(x).shape
            buffer = StateBuffer(
                f"{self.owner}.{letter}.{number}",
                TensorType(type_of(x).dtype, (heads, "S", width)),
                StateKind.KV_CACHE, self.owner,
            )  # fmt: skip
            with graph.inserting_before(node):
                cache = graph.create_node("get_attr", STATE + buffer.name)
                cache.meta["type"] = buffer.type
                by_row = _rows_first(graph, x)
                graph.call_function(ops.cache_write.default, (cache, by_row, rows))
            buffers.append(buffer)
            caches.append(cache)
        return buffers, caches


def _rewrite(
    graph: fx.Graph, node: fx.Node, caches: list[fx.Node], where: tuple[fx.Node | None, ...]
) -> None:
    """Put attention over `caches` in place of the attention `node`; `where`: positions, rows and parents."""
    q, _, _, sinks, scale, window, softcap, _layer = node.args
    assert isinstance(q, fx.Node)
    with graph.inserting_before(node):
        arguments = (_rows_first(graph, q), *caches, *where, scale, window, softcap, sinks)
        attended = graph.call_function(ops.cached_attention.default, arguments)
        attended.meta["origin"] = node.meta.get("origin", "")
        result = graph.call_function(aten.unsqueeze.default, (attended, 0))
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _attentions(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.target is ops.attention.default]


def _rows_first(graph: fx.Graph, x: fx.Node) -> fx.Node:
    """[1, H, T, D] -> [T, H, D]."""
    one = graph.call_function(aten.select.int, (x, 0, 0))
    return graph.call_function(aten.transpose.int, (one, 0, 1))
