"""The function whose graph was cut: it calls parts and attention of shards in turn, and writes each shard."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import fx

from specc.ir import Function, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import Builder, drop_dead, results_of, state_name
from specc.ir.sharding import Way
from specc.passes.cut_graph import Attention, Cut


class Caller:
    """The function, calling parts and attention in turn."""

    def __init__(self, cut: Cut) -> None:
        self.cut, self.parts = cut, cut.parts()
        self.leaves = [p.leaf(cut.results_of(p, self.parts)) for p in self.parts]
        """One for each part."""
        name = cut.function.name
        self.attends = [a.leaf(f"{name}.attend_{i}") for i, a in enumerate(cut.attentions)]
        self.builder = Builder()
        self.values: dict[fx.Node, fx.Node] = {}
        self.made: dict[fx.Node, fx.Node] = {}
        self.masks: dict[tuple[fx.Node, int], list[fx.Node]] = {}

    def function(self) -> Function:
        cut, graph = self.cut, self.builder.graph
        masks = [n for n in cut.function.graph.nodes if n.target is ops.masks.default]
        written = {
            n for n in cut.function.graph.nodes
            if n.target is ops.cache_write.default and state_name(n.args[0]) in cut.shards
        }  # fmt: skip
        left = {cut.call, *masks, *cut.call.users, *(u for m in masks for u in m.users)}
        for node in cut.function.graph.nodes:
            if node is cut.call:
                self._calls()
            elif node in written:
                self._write(node)
            elif node in left or node.op == "output" or state_name(node) in cut.shards:
                continue
            else:
                self.values[node] = graph.node_copy(node, self._value)
                self.values[node].meta = dict(node.meta)
        self.builder.output(*(self._value(n) for n in results_of(cut.function.graph)))
        drop_dead(graph)
        return Function(cut.function.name, cut.function.role, graph, cut.function.outputs)

    def _value(self, node: fx.Node) -> fx.Node:
        if node.target is operator.getitem and node.args[0] is self.cut.call:
            (result,) = self.cut.results[node.args[1]]  # type: ignore[index]
            return self.made[result]
        return self.values[node]

    def _calls(self) -> None:
        merged: dict[Attention, list[fx.Node]] = {}
        for part, leaf in zip(self.parts, self.leaves, strict=True):
            args = [self._passed(n) for n in part.needs]
            args += [x for a in part.merged for x in merged[a]]
            self.made |= dict(zip(part.results, self._call(leaf, args), strict=True))
            for attention, attend in zip(self.cut.attentions, self.attends, strict=True):
                if self.cut.level[attention.node] == part.number + 1:
                    merged[attention] = [
                        self._call(attend, self._attended(attention, rank))[0]
                        for rank in range(self.cut.count)
                    ]

    def _passed(self, node: fx.Node) -> fx.Node:
        if node.op != "placeholder":
            return self.made[node]
        given = self.cut.given[node]
        if given.target is operator.getitem and given.args[0].target is ops.masks.default:
            return self._mask(given, None)  # of a cache that stays whole
        return self.values[given]

    def _call(self, leaf: Function, args: Sequence[fx.Node]) -> list[fx.Node]:
        results = self.builder.call(leaf, args)
        call = results[0].args[0]
        assert isinstance(call, fx.Node)
        call.meta |= {"part": "graph", "layer": -1}
        return results

    def _attended(self, attention: Attention, rank: int) -> list[fx.Node]:
        """Queries, keys, values, the shard, and masks for it."""
        buffer = self.cut.shards[state_name(self.cut.given[attention.buffer]) or ""][rank]
        masks = [self._mask(self.cut.given[m], rank) for m in (attention.old, attention.new)]
        shard = self.builder.state(buffer.name, buffer.type)
        return [*(self.made[n] for n in attention.inputs[rank]), shard, *masks]

    def _mask(self, item: fx.Node, rank: int | None) -> fx.Node:
        """A result of `masks`; for a shard's rows, where caches are cut by rows."""
        mask, index = item.args
        assert isinstance(mask, fx.Node)
        assert isinstance(index, int)
        shard = rank if rank is not None and self.cut.way is Way.ROWS else -1
        if (mask, shard) not in self.masks:
            args: list[Any] = [self.values[a] if isinstance(a, fx.Node) else a for a in mask.args]
            old, new = mask.meta["type"]
            if shard >= 0:
                rows = args[5] // self.cut.count
                args[5:] = [rows, shard * rows]
                old = TensorType("f32", (old.shape[0], rows))
            self.masks[mask, shard] = self.builder.ops(ops.masks.default, *args, types=(old, new))
        return self.masks[mask, shard][index]

    def _write(self, node: fx.Node) -> None:
        state, x, rows = node.args
        assert isinstance(x, fx.Node)
        assert isinstance(rows, fx.Node)
        buffers = self.cut.shards[state_name(state) or ""]  # type: ignore[arg-type]
        made = [self.made[n] for n in self.cut.results[x.args[1]]]  # type: ignore[index]
        for rank, buffer in enumerate(buffers):
            shard, at = self.builder.state(buffer.name, buffer.type), self.values[rows]
            if self.cut.way is Way.HEADS:
                self.builder.op(ops.cache_write.default, shard, made[rank], at)
            else:
                first = rank * buffer.type.at()[1]
                self.builder.op(ops.cache_write_shard.default, shard, made[0], at, first)
