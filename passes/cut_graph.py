"""Cuts a graph where devices exchange what they attended to: parts that all run, and attention of one shard each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import SpeculativeProgram, StateBuffer, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import (
    Builder,
    copy_graph,
    drop_dead,
    output_of,
    results_of,
    state_name,
    type_of,
    weight_name,
)
from specc.ir.infer import infer_types
from specc.ir.program import Function, Role
from specc.ir.sharding import Sharding, Way
from specc.passes.attend import Attended, Masks, attend_part, merge
from specc.passes.merge_leaves import graph_call

aten = torch.ops.aten

Shards = Mapping[str, Sequence[StateBuffer]]
"""What takes the place of each buffer that is cut."""


class Cut:
    """One function, its graph, and what becomes of them."""

    def __init__(
        self, program: SpeculativeProgram, function: Function, sharding: Sharding, shards: Shards
    ) -> None:
        call = graph_call(function)
        assert call is not None
        self.function, self.call, self.count, self.way, self.shards = (
            function, call, sharding.count, sharding.way, shards,
        )  # fmt: skip
        self.leaf = program.functions[str(call.target)]
        self.graph, copies = copy_graph(self.leaf.graph)
        passed = zip(self.leaf.inputs, call.args, strict=True)
        self.given: dict[fx.Node, Any] = {copies[taken]: value for taken, value in passed}
        self.attentions: list[Attention] = []
        self.by_node: dict[fx.Node, Attention] = {}
        self.results: list[list[fx.Node]] = []
        """What the graph returns; rows for caches that are cut by heads, once for each device."""
        self.level: dict[fx.Node, int] = {}
        self.constants: set[fx.Node] = set()
        """What follows from weights alone: it is computed where it is used."""

    def parts(self) -> list[Part]:
        """What every device runs, in order; between two of them, attention of each shard."""
        self._find_attentions()
        results = self._results()
        infer_types(self.graph, self.leaf.name)
        self._set_levels()
        self.results = [[self._stepwise(n) for n in shares] for shares in results]
        kept = [n for shares in self.results for n in shares]
        kept += [n for a in self.attentions for inputs in a.inputs for n in inputs]
        output_of(self.graph).args = (tuple(kept),)
        drop_dead(self.graph)
        infer_types(self.graph, self.leaf.name)
        return self._parts()

    def _find_attentions(self) -> None:
        """Note each attention over a cache that is cut, with what each device is given of it."""
        cached = {n for n, given in self.given.items() if state_name(given) in self.shards}
        for node in self.graph.nodes:
            if node.target is ops.masked_attention.default:
                self.by_node[node] = Attention(self, node)
        self.attentions = list(self.by_node.values())
        columns = {n for a in self.attentions for n in a.columns}
        for node in cached | columns:
            if any(user not in columns and user not in self.by_node for user in node.users):
                raise PassError(
                    "SPECC-E0374", f"{self.function.name} reads the target's caches in another way than attention",
                    where=self.leaf.name, expected="keys and values that attention alone reads",
                    cure="leave out --kv-shards",
                )  # fmt: skip

    def _results(self) -> list[list[fx.Node]]:
        found = [[n] for n in results_of(self.graph)]
        if self.way is Way.ROWS:
            return found
        for write in self.function.graph.nodes:
            if write.target is ops.cache_write.default and state_name(write.args[0]) in self.shards:
                index = write.args[1].args[1]
                (joined,) = found[index]
                found[index] = [self._columns_of(joined, rank) for rank in range(self.count)]
        return found

    def _columns_of(self, joined: fx.Node, rank: int) -> fx.Node:
        """One device's heads of each of the rows [T, 1, w] that lie side by side."""
        sides: Any = joined.args[0] if joined.target is aten.cat.default else [joined]
        with self.graph.inserting_before(output_of(self.graph)):
            mine = [self.share(side, 2, rank) for side in sides]
            return (
                mine[0] if len(mine) == 1 else self.graph.call_function(aten.cat.default, (mine, 2))
            )

    def share(self, x: fx.Node, dim: int, rank: int) -> fx.Node:
        """A device's part of `x` along `dim`."""
        size = type_of(x).at()[dim] // self.count
        return self.graph.call_function(aten.slice.Tensor, (x, dim, rank * size, (rank + 1) * size))

    def _set_levels(self) -> None:
        """The part that computes each value: as many exchanges as it waits for come before."""
        for node in self.graph.nodes:
            sources = node.all_input_nodes
            if node.op == "call_function" and sources and all(map(self._is_fixed, sources)):
                self.constants.add(node)
            above = max((self.level[n] for n in sources), default=0)
            attends = node.target is ops.masked_attention.default
            self.level[node] = above + 1 if attends else above

    def _is_fixed(self, node: fx.Node) -> bool:
        return node in self.constants or (
            node.op == "placeholder" and weight_name(self.given[node]) is not None
        )

    def _stepwise(self, joined: fx.Node) -> fx.Node:
        """A join of rows from several parts, part by part: else the last would be handed all of them."""
        if joined.target is not aten.cat.default:
            return joined
        args: Any = joined.args
        sides, dim = args
        whole: fx.Node | None = None
        with self.graph.inserting_before(output_of(self.graph)):
            for level in range(self.level[joined] + 1):
                # (In the order of columns, which is that of layers.)
                here = [s for s in sides if self.level[s] == level]
                both = here if whole is None else [whole, *here]
                if len(both) > 1:
                    whole = self.graph.call_function(aten.cat.default, (both, dim))
                    self.level[whole] = level
                elif both:
                    whole = both[0]
        assert whole is not None
        order = [self.level[s] for s in sides]
        return whole if order == sorted(order) else joined

    def _parts(self) -> list[Part]:
        elsewhere = self.constants.union(*(a.columns for a in self.attentions))
        bodies: list[list[fx.Node]] = [[] for _ in range(max(self.level.values()) + 1)]
        for node in self.graph.nodes:
            if node.op == "call_function" and node not in elsewhere:
                bodies[self.level[node]].append(node)
        return [Part(self, number, body) for number, body in enumerate(bodies)]

    def results_of(self, part: Part, parts: Sequence[Part]) -> list[fx.Node]:
        """What of `part` others, attention or the function want."""
        wanted = {n for p in parts for n in p.needs}
        wanted |= {n for a in self.attentions for inputs in a.inputs for n in inputs}
        wanted |= {n for shares in self.results for n in shares}
        return [n for n in part.body if n in wanted]

    def through(self, node: fx.Node) -> Iterator[fx.Node]:
        """`node`; or the weights that it follows from."""
        if node in self.constants:
            for source in node.all_input_nodes:
                yield from self.through(source)
        else:
            yield node


class Attention:
    """A `masked_attention` over a cache that is cut. `inputs`: queries, keys and values of each device."""

    def __init__(self, cut: Cut, node: fx.Node) -> None:
        self.cut, self.node = cut, node
        args: Any = node.args
        q, k, v, k_new, v_new, self.old, self.new = args[:7]
        self.scale, self.softcap, self.sinks = args[7:]
        (self.buffer, self.k), (_, self.v) = _columns(k), _columns(v)
        self.columns = {n for x in (k, v) for n in (x, x.args[0], x.args[0].args[0])}
        self.inputs = [(q, k_new, v_new)] * cut.count
        if cut.way is Way.HEADS:
            with cut.graph.inserting_before(node):
                self.inputs = [
                    (cut.share(q, 1, r), cut.share(k_new, 1, r), cut.share(v_new, 1, r))
                    for r in range(cut.count)
                ]

    def leaf(self, name: str) -> Function:
        """The graph of one device: its queries, new rows, shard and masks -> its part of the attention."""
        builder, cut = Builder(), self.cut
        q, k_new, v_new = (
            builder.input(given, type_of(n))
            for given, n in zip(("q", "k_new", "v_new"), self.inputs[0], strict=True)
        )
        buffer = cut.shards[state_name(cut.given[self.buffer]) or ""][0].type
        rows = buffer.at()[1]
        cache = builder.input("cache", buffer)
        old = builder.input("old", TensorType("f32", (type_of(self.old).shape[0], rows)))
        new = builder.input("new", type_of(self.new))
        ways = 1 if cut.way is Way.ROWS else cut.count
        keys = []
        for begin, heads, width in (self.k, self.v):
            at = begin // ways
            x = builder.op(aten.slice.Tensor, cache, 2, at, at + heads // ways * width)
            x = builder.op(aten.reshape.default, x, [rows, heads // ways, width])
            keys.append(builder.op(aten.permute.default, x, [1, 0, 2]))
        infer_types(builder.graph, name)
        k, v = keys
        given = Attended(q, k, v, k_new, v_new, self.scale, self.softcap, None)
        result = attend_part(builder.graph, given, Masks(old, new), self.node.meta)
        graph = builder.output(result)
        infer_types(graph, name)
        return Function(name, Role.LEAF, graph, ("part",))

    @property
    def part(self) -> TensorType:
        """What a device hands to all: f32[Hkv, G, T, Dv + 2]."""
        q, _, _ = (type_of(n).at() for n in self.inputs[0])
        ways = 1 if self.cut.way is Way.ROWS else self.cut.count
        _, heads, deep = self.v
        shared = heads // ways
        return TensorType("f32", (shared, q[1] // shared, q[0], deep + 2))

    def merged(self, builder: Builder, parts: Sequence[fx.Node], sinks: fx.Node | None) -> fx.Node:
        """The attention [T, Hq, Dv] out of each device's part."""
        if self.cut.way is Way.HEADS:
            whole = builder.graph.call_function(aten.cat.default, (list(parts), 0))
            heads, *rest = type_of(parts[0]).at()
            whole.meta["type"] = TensorType("f32", (heads * len(parts), *rest))
            parts = [whole]
        dtype = type_of(self.inputs[0][0]).dtype
        result = merge(builder.graph, parts, sinks, dtype, self.node.meta)
        result.meta["type"] = type_of(self.node)
        return result


def _columns(cache: fx.Node) -> tuple[fx.Node, tuple[int, int, int]]:
    """The packed buffer that pack-caches cut a cache out of; first column, heads and width."""
    apart: Any = cache.args[0]
    cut = apart.args[0]
    heads, _, width = type_of(cache).at()
    return cut.args[0], (int(cut.args[2]), heads, width)


class Part:
    """What every device computes between two exchanges."""

    def __init__(self, cut: Cut, number: int, body: list[fx.Node]) -> None:
        self.cut, self.number, self.body = cut, number, body
        self.results: list[fx.Node] = []
        self.merged = [cut.by_node[n] for n in body if n in cut.by_node]
        inside = set(body)
        needs: dict[fx.Node, None] = {}
        for node in body:
            wanted = node.all_input_nodes
            if node in cut.by_node:  # merged out of what devices hand over
                wanted = [n for n in (cut.by_node[node].sinks,) if n is not None]
            found = (n for source in wanted for n in cut.through(source))
            needs |= dict.fromkeys(n for n in found if n not in inside)
        self.needs = list(needs)

    def leaf(self, results: list[fx.Node]) -> Function:
        """The graph: of what it needs, and then of each device's part of each attention, to `results`."""
        builder, self.results = Builder(), results
        values = {
            n: builder.input(n.name if n.op == "placeholder" else f"x{i}", type_of(n))
            for i, n in enumerate(self.needs)
        }
        parts = [
            [builder.input(f"part_{i}_{rank}", a.part) for rank in range(self.cut.count)]
            for i, a in enumerate(self.merged)
        ]

        def value(node: fx.Node) -> fx.Node:
            if node not in values:  # it follows from weights
                values[node] = builder.graph.node_copy(node, value)
                values[node].meta = dict(node.meta)
            return values[node]

        for node in self.body:
            if node in self.cut.by_node:
                attention = self.cut.by_node[node]
                handed = parts[self.merged.index(attention)]
                sinks = attention.sinks and value(attention.sinks)
                values[node] = attention.merged(builder, handed, sinks)
            else:
                value(node)
        graph = builder.output(*map(value, results))
        name = f"{self.cut.function.name}.part_{self.number}"
        infer_types(graph, name)
        return Function(name, Role.LEAF, graph, tuple(f"y{i}" for i in range(len(results))))
