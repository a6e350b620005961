"""Caches that are written together lie together: a commit is one copy of consecutive rows."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import fx

from specc.ir import SpeculativeProgram, StateBuffer, StateKind, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import (
    STATE,
    Builder,
    copy_graph,
    drop_dead,
    output_of,
    results_of,
    state_name,
    type_of,
)
from specc.ir.infer import infer_types
from specc.ir.program import Function, Role
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.merge_leaves import graph_call

aten = torch.ops.aten
PACKED = ".rows"
"""Ends the name of a packed buffer."""


@dataclass(frozen=True)
class PackCaches(Pass):
    """Buffers that the same functions write become columns of one, row by row.

    Before: state $target.k.0: f32[3, 2048, 64], $target.v.0: f32[3, 2048, 64]
            x, y = call verify_2.graph(..., $target.k.0, $target.v.0)
            cache_write($target.k.0, x, rows); cache_write($target.v.0, y, rows)
    After:  state $target.rows: f32[1, 2048, 384]
            z = call verify_2.graph(..., $target.rows)
            cache_write($target.rows, z, rows)

    A graph cuts the columns that it reads out of the buffer, and joins what it returns.
    """

    name: ClassVar[str] = "pack-caches"

    kinds_apart: bool = False
    """Whether what a drafter reads of the target lies apart from keys and values, which then may be cut into shards."""

    def requires(self, program: SpeculativeProgram) -> None:
        for function in program.functions.values():
            call = graph_call(function)
            need(call is None or not call.meta["writes"], "graphs write caches", "delta-caches")

    def call(self, program: SpeculativeProgram) -> PassResult:
        groups = _groups(program, self.kinds_apart)
        if all(name.endswith(PACKED) for members in groups.values() for name in members):
            return PassResult(program, modified=False)
        packed: dict[str, StateBuffer] = {}
        columns: dict[str, tuple[str, int]] = {}
        for members in groups.values():
            first = program.state[members[0]]
            apart = self.kinds_apart and first.kind is StateKind.FEATURES
            stem = "features" if apart else str(first.owner)
            number = sum(name.startswith(stem) for name in packed)
            name = f"{stem}{f'.{number}' if number else ''}{PACKED}"
            at = 0
            for member in members:
                columns[member] = (name, at)
                at += _width(program.state[member])
            type_ = TensorType(first.type.dtype, (1, first.type.shape[1], at))
            packed[name] = replace(first, name=name, type=type_, kind=StateKind.KV_CACHE)
        kept = {n: b for n, b in program.state.items() if n not in columns}
        rewriter = _Rewriter(program, packed, columns)
        functions = [rewritten for f in program.functions.values() for rewritten in rewriter.of(f)]
        program = replace(program, state={**kept, **packed}).replacing(*functions)
        return PassResult(program, modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        for function in program.functions.values():
            written = [
                n.args[0] for n in function.graph.nodes if n.target is ops.cache_write.default
            ]
            promise(len(written) == len(set(written)), f"{function.name} commits a buffer twice")


def _width(buffer: StateBuffer) -> int:
    heads, _, width = buffer.type.at()
    return heads * width


def _groups(program: SpeculativeProgram, kinds_apart: bool) -> dict[tuple[object, ...], list[str]]:
    """Names of buffers by dtype, rows, the functions that write them, and kind if asked for."""
    writers: dict[str, list[str]] = {}
    for function in program.functions.values():
        for node in function.graph.nodes:
            if node.target is ops.cache_write.default and function.role is not Role.LEAF:
                name = state_name(node.args[0])
                assert name is not None
                writers.setdefault(name, []).append(function.name)
    groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for name, functions in writers.items():
        type_, kind = program.state[name].type, program.state[name].kind
        apart = (kind,) if kinds_apart else ()
        groups[type_.dtype, type_.shape[1], *apart, *functions].append(name)
    return groups


@dataclass(frozen=True)
class _Rewriter:
    """Puts `packed` buffers in place of those in `columns`: name -> packed buffer, first column."""

    program: SpeculativeProgram
    packed: dict[str, StateBuffer]
    columns: dict[str, tuple[str, int]]

    def of(self, function: Function) -> tuple[Function, ...]:
        call = graph_call(function)
        if call is None:
            return ()
        leaf = self.program.functions[str(call.target)]
        inner, copies = copy_graph(leaf.graph)
        outer, outer_copies = copy_graph(function.graph)
        new_call, builder = outer_copies[call], Builder(outer)
        passed: tuple[Any, ...] = call.args
        given = {copies[n]: outer_copies[a] for n, a in zip(leaf.inputs, passed, strict=True)}
        read = self._inputs(inner, builder, given, new_call)
        writes = [n for n in outer.nodes if n.target is ops.cache_write.default]
        returned: dict[str, list[tuple[int, fx.Node, fx.Node]]] = defaultdict(list)
        for node in writes:
            member, item, rows = node.args
            name, at = self.columns[state_name(member) or ""]
            returned[name].append((at, results_of(inner)[item.args[1]], rows))
        own = len(leaf.outputs) - len(writes)
        joined = [
            _join(inner, [x for _, x, _ in sorted(parts, key=lambda p: p[0])])
            for parts in returned.values()
        ]
        output_of(inner).args = ((*results_of(inner)[:own], *joined),)
        drop_dead(inner)
        infer_types(inner, leaf.name)
        names = (*leaf.outputs[:own], *(n.replace(".", "_") for n in returned))
        new_leaf = Function(leaf.name, Role.LEAF, inner, names)
        for node in writes:
            outer.erase_node(node)
        new_call.args = tuple(given[n] for n in new_leaf.inputs)
        new_call.meta["type"] = tuple(map(type_of, results_of(inner)))
        with outer.inserting_before(output_of(outer)):
            new = builder.items(new_call)
            for unneeded in new[:own]:
                outer.erase_node(unneeded)
            for (name, parts), item in zip(returned.items(), new[own:], strict=True):
                target = read.get(name) or self._reference(builder, new_call, name)
                builder.op(ops.cache_write.default, target, item, parts[0][2])
        drop_dead(outer)
        return new_leaf, Function(function.name, function.role, outer, function.outputs)

    def _reference(self, builder: Builder, call: fx.Node, name: str) -> fx.Node:
        with builder.graph.inserting_before(call):
            node = builder.graph.create_node("get_attr", STATE + name)
        node.meta["type"] = self.packed[name].type
        return node

    def _inputs(
        self, inner: fx.Graph, builder: Builder, given: dict[fx.Node, fx.Node], call: fx.Node
    ) -> dict[str, fx.Node]:
        """Cut what the graph reads out of packed inputs. Returns the caller's references."""
        references: dict[str, fx.Node] = {}
        inputs: dict[str, fx.Node] = {}
        last = [n for n in inner.nodes if n.op == "placeholder"][-1]
        for node in [n for n in given if state_name(given[n]) in self.columns]:
            name, at = self.columns[state_name(given[node]) or ""]
            type_ = self.packed[name].type
            if name not in inputs:
                references[name] = self._reference(builder, call, name)
                with inner.inserting_before(node):
                    inputs[name] = Builder(inner).input(name.replace(".", "_"), type_)
                given[inputs[name]] = references[name]
            heads, rows, width = type_of(node).at()
            with inner.inserting_after(last):
                cut = inner.call_function(
                    aten.slice.Tensor, (inputs[name], 2, at, at + heads * width)
                )
            with inner.inserting_after(cut):
                apart = inner.call_function(aten.reshape.default, (cut, [rows, heads, width]))
            with inner.inserting_after(apart):
                turned = inner.call_function(aten.permute.default, (apart, [1, 0, 2]))
            for user in [u for u in node.users if u.target is aten.permute.default]:
                if user.args[1] == [1, 0, 2]:  # back to rows
                    user.replace_all_uses_with(apart)
            node.replace_all_uses_with(turned)
            del given[node]
            inner.erase_node(node)
        return references


def _join(graph: fx.Graph, parts: list[fx.Node]) -> fx.Node:
    """New rows [T, H, D] of several buffers side by side, [T, 1, sum of H * D]."""
    with graph.inserting_before(output_of(graph)):
        flat = [
            graph.call_function(aten.reshape.default, (x, [type_of(x).at()[0], 1, math.prod(type_of(x).at()[1:])]))
            for x in parts
        ]  # fmt: skip
        return flat[0] if len(flat) == 1 else graph.call_function(aten.cat.default, (flat, 2))
