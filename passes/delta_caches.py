"""Graphs read caches and return new rows; their callers write them. For devices whose graphs have no side effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Role, SpeculativeProgram
from specc.ir.dialect import ops
from specc.ir.graphs import (
    Builder,
    copy_graph,
    drop_dead,
    has_effect,
    output_of,
    results_of,
    type_of,
)
from specc.ir.infer import infer_types
from specc.ir.program import Function
from specc.ir.types import DTYPES, TensorType
from specc.passes.attend import Attended, Masks, attend
from specc.passes.base import Pass, PassResult, need, promise, same
from specc.passes.merge_leaves import graph_call, need_graphs

aten = torch.ops.aten


@dataclass(frozen=True)
class DeltaCaches(Pass):
    """Caches are inputs of a graph and nothing else; what it would write is among its results.

    Before: verify_2: call verify_2.graph(..., rows, positions, $k.0, $v.0)
            verify_2.graph: cache_write(k, x, rows); cache_write(v, y, rows)
                            o = cached_attention(q, k, v, positions, rows, None, ...)
    After:  verify_2: old, new = masks(positions, rows, None, None, window, 2048)
                      ..., x, y = call verify_2.graph(..., $k.0, $v.0, old, new)
                      cache_write($k.0, x, rows); cache_write($v.0, y, rows)
            verify_2.graph: o = softmax(cat(q k + old, q x + new)) (v, y)

    or, of `in_place`, in the graphs of the target:
            verify_2: all, _ = masks(positions, rows, roots(rows), roots(rows), window, 2048)
                      ..., x, y = call verify_2.graph(..., rows, $k.0, $v.0, all)
            verify_2.graph: o = softmax(q index_copy(k, rows, x) + all) index_copy(v, rows, y)

    Who sees what is data, made outside by `masks`, one pair for each window; it is told the rows that the call
    writes where these are others than it sees up to. All rows of a call are written, those of rejected drafts as
    well: nothing reads them before they are written again.
    """

    name: ClassVar[str] = "delta-caches"

    written_out: bool = True
    """Whether attention becomes plain operations; else it is `masked_attention`, for shard-caches to cut at."""

    in_place: bool = False
    """Whether the target attends to a copy of its caches in which the call's own rows have their places.

    A text's sums then have one order, however many of its last tokens came in one call: a token stands in the cache
    in plain decoding where it is one of the call's rows in verifying. That is a copy of the caches in each call.
    """

    def requires(self, program: SpeculativeProgram) -> None:
        need(program.max_model_len, "caches have no size yet", "plan-state")
        need_graphs(program)
        for function in program.functions.values():
            if graph_call(function) is not None:
                open_ = any(
                    "T" in type_of(n).shape
                    for n in program.functions[f"{function.name}.graph"].inputs
                )
                need(not open_, f"{function.name} has T rows", "fix-rows")

    def call(self, program: SpeculativeProgram) -> PassResult:
        modified = False
        for function in list(program.functions.values()):
            call = graph_call(function)
            leaf = program.functions[str(call.target)] if call is not None else None
            if call is None or leaf is None:
                continue
            placed = self.in_place and function.role in (Role.PREFILL, Role.VERIFY)
            if not any(map(has_effect, leaf.graph.nodes)):
                masked = {n.name.startswith("mask_new") for n in leaf.inputs if "mask" in n.name}
                if masked:
                    same(f"in_place, of {function.name}", True not in masked, placed)
                continue
            delta = _Delta(function, call, leaf, self.written_out, placed)
            program = program.replacing(*delta.functions())
            modified = True
        return PassResult(program, modified)

    def ensures(self, program: SpeculativeProgram) -> None:
        for function in program.functions.values():
            if function.role is Role.LEAF:
                promise(not any(map(has_effect, function.graph.nodes)), f"{function.name} writes")


class _Delta:
    """Rewrites one graph and its caller."""

    def __init__(
        self, function: Function, call: fx.Node, leaf: Function, written_out: bool, in_place: bool
    ) -> None:
        self.function, self.leaf = function, leaf
        self.written_out, self.in_place = written_out, in_place
        self.graph, self.copies = copy_graph(leaf.graph)
        self.old_call = call
        self.given: dict[fx.Node, Any] = dict(
            zip((self.copies[n] for n in leaf.inputs), call.args, strict=True)
        )
        self.written: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
        self.placed: dict[fx.Node, fx.Node] = {}
        self.masks: dict[tuple[Any, ...], Masks] = {}
        self.length = 0

    def functions(self) -> tuple[Function, Function]:
        writes = [n for n in self.graph.nodes if has_effect(n)]
        for node in writes:
            if node.target is not ops.cache_write.default:
                raise self._refusal(f"{node.target} writes state in a way that is no new row")
            cache, x, rows = node.args
            assert isinstance(cache, fx.Node)
            assert isinstance(x, fx.Node)
            assert isinstance(rows, fx.Node)
            if cache in self.written or rows.op != "placeholder":
                raise self._refusal("a cache is written twice, or at rows that the graph computes")
            self.written[cache] = (self._rounded(node, cache, x), rows)
            self.graph.erase_node(node)
        for node in [n for n in self.graph.nodes if n.target is ops.cached_attention.default]:
            self._attention(node)
        readers = {
            u
            for cache in self.written
            for u in cache.users
            if u.target is aten.index_select.default
        }
        if readers:
            raise self._refusal("a graph reads rows that it writes")
        output = output_of(self.graph)
        results = (*results_of(self.graph), *(x for x, _ in self.written.values()))
        output.args = (results,)
        drop_dead(self.graph)
        for node in [n for n in self.graph.nodes if n.op == "placeholder" and not n.users]:
            self.graph.erase_node(node)
        infer_types(self.graph, self.leaf.name)
        names = (*self.leaf.outputs, *(f"new_{i}" for i in range(len(self.written))))
        leaf = Function(self.leaf.name, Role.LEAF, self.graph, names)
        return leaf, self._caller(leaf)

    def _refusal(self, what: str) -> PassError:
        return PassError(
            "SPECC-E0372", f"{self.function.name}: {what}", where=self.leaf.name,
            expected="cache_write of rows that the caller names", cure="use --device cpu",
        )  # fmt: skip

    def _rounded(self, node: fx.Node, cache: fx.Node, x: fx.Node) -> fx.Node:
        """What the cache will hold: attention in this call reads the same."""
        wanted = type_of(cache).dtype
        if type_of(x).dtype == wanted:
            return x
        with self.graph.inserting_before(node):
            half = self.graph.call_function(aten._to_copy.default, (x,), {"dtype": DTYPES[wanted]})
        half.meta["type"] = TensorType(wanted, type_of(x).shape)
        return half

    def _attention(self, node: fx.Node) -> None:
        arguments: tuple[Any, ...] = node.args
        q, k, v, positions, rows, parents, scale, window, softcap, sinks = arguments
        if k not in self.written or v not in self.written:
            raise self._refusal("attention reads a cache that the call does not write")
        if any(
            isinstance(n, fx.Node) and n.op != "placeholder" for n in (positions, rows, parents)
        ):
            raise self._refusal("attention is told rows that the graph computes")
        self.length = int(type_of(k).shape[1])
        reach = window if 0 < window < self.length else 0
        written = self.written[k][1]
        masks = self._masks(positions, rows, parents, None if written is rows else written, reach)
        new = (self.written[k][0], self.written[v][0])
        with self.graph.inserting_before(node):
            if self.in_place:
                whole = (self._placed(k), self._placed(v))
                attended = Attended(q, *whole, None, None, scale, softcap, sinks)
                result = attend(self.graph, attended, masks, node.meta)
            elif self.written_out:
                attended = Attended(q, k, v, *new, scale, softcap, sinks)
                result = attend(self.graph, attended, masks, node.meta)
            else:
                args = (q, k, v, *new, masks.old, masks.new, scale, softcap, sinks)
                result = self.graph.call_function(ops.masked_attention.default, args)
                result.meta |= node.meta
        node.replace_all_uses_with(result)
        self.graph.erase_node(node)

    def _placed(self, cache: fx.Node) -> fx.Node:
        """`cache` [H, S, D] with the call's rows where they will be."""
        if cache not in self.placed:
            x, rows = self.written[cache]
            node = cache
            for target, args in (
                (aten.permute.default, ([1, 0, 2],)), (aten.index_copy.default, (0, rows, x)),
                (aten.permute.default, ([1, 0, 2],)),
            ):  # fmt: skip
                node = self.graph.call_function(target, (node, *args))
            node.meta["type"] = type_of(cache)
            self.placed[cache] = node
        return self.placed[cache]

    def _masks(self, *key: Any) -> Masks:
        if key not in self.masks:
            rows = type_of(key[1]).shape[0]
            last = [n for n in self.graph.nodes if n.op == "placeholder"][-1]
            builder = Builder(self.graph)
            if self.in_place:
                with self.graph.inserting_after(last):
                    type_ = TensorType("f32", (rows, self.length))
                    whole = builder.input(f"mask_{len(self.masks)}", type_)
                self.masks[key] = Masks(whole, None)
                return self.masks[key]
            with self.graph.inserting_after(last):
                new = builder.input(f"mask_new_{len(self.masks)}", TensorType("f32", (rows, rows)))
            with self.graph.inserting_after(last):
                old = builder.input(
                    f"mask_old_{len(self.masks)}", TensorType("f32", (rows, self.length))
                )
            self.masks[key] = Masks(old, new)
        return self.masks[key]

    def _caller(self, leaf: Function) -> Function:
        graph, copies = copy_graph(self.function.graph)
        call = copies[self.old_call]
        given = {taken: copies[value] for taken, value in self.given.items()}
        builder = Builder(graph)
        with graph.inserting_before(call):
            for (positions, rows, parents, written, window), masks in self.masks.items():
                told = [given[positions], given[rows], *(given.get(n) for n in (parents, written))]
                if self.in_place or (parents is None and written is not None):
                    none = builder.op(ops.roots.default, told[1], type_=type_of(rows))
                    if parents is None:
                        told[2] = none
                    if self.in_place:  # as if the call wrote no row, so that all are the cache's
                        told[3] = none
                count = int(type_of(rows).shape[0])
                types = (type_of(masks.old), TensorType("f32", (count, count)))
                pair = builder.ops(ops.masks.default, *told, window, self.length, types=types)
                given[masks.old] = pair[0]
                if masks.new is not None:
                    given[masks.new] = pair[1]
        call.args = tuple(given[n] for n in leaf.inputs)
        call.meta |= {
            "type": tuple(map(type_of, results_of(leaf.graph))),
            "writes": False,
        }
        first = len(self.leaf.outputs)
        with graph.inserting_before(output_of(graph)):
            new = builder.items(call)
            for unneeded in new[:first]:
                graph.erase_node(unneeded)
            for (cache, (_, rows)), x in zip(self.written.items(), new[first:], strict=True):
                builder.op(ops.cache_write.default, given[cache], x, given[rows])
        drop_dead(graph)
        return Function(self.function.name, self.function.role, graph, self.function.outputs)
