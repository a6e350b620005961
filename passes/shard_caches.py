"""The target's caches lie on several devices, each of which attends to its part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import fx

from specc.errors import PassError
from specc.ir import Owner, SpeculativeProgram, StateBuffer, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import copy_graph, state_name
from specc.ir.infer import infer_types
from specc.ir.program import Function, Role
from specc.ir.sharding import Sharding, Way
from specc.passes.attend import Attended, Masks, attend
from specc.passes.base import Pass, PassResult, need, promise, same
from specc.passes.cut_caller import Caller
from specc.passes.cut_graph import Cut
from specc.passes.merge_leaves import GRAPH, graph_call, need_graphs
from specc.passes.pack_caches import PACKED
from specc.passes.shard_costs import Sizes, choose


@dataclass(frozen=True)
class ShardCaches(Pass):
    """Graphs end where devices exchange what they attended to; each device holds a shard of the caches.

    Before: state $target.rows: f32[1, 2048, W]
            old, new = masks(positions, rows, None, None, 0, 2048)
            logits, z = call verify_2.graph(tokens, ..., $target.rows, old, new)
            cache_write($target.rows, z, rows)
    After:  (two shards, by rows)
            state $target.shard_0.rows: f32[1, 1024, W]; state $target.shard_1.rows: f32[1, 1024, W]
            old_0, new_0 = masks(..., 1024, 0); old_1, new_1 = masks(..., 1024, 1024)
            q, k, v, x = call verify_2.part_0(tokens, ...)
            a = call verify_2.attend_0(q, k, v, $target.shard_0.rows, old_0, new_0)
            b = call verify_2.attend_0(q, k, v, $target.shard_1.rows, old_1, new_1)
            logits, z = call verify_2.part_1(a, b, x, ...)
            cache_write_shard($target.shard_0.rows, z, rows, 0); cache_write_shard($target.shard_1.rows, z, rows, 1024)

    Every device runs every part, and the call of attend that takes its shard; an all-gather follows. By heads, a shard
    has all rows and some heads' columns. A drafter's own caches, and what it reads of the target, stay whole.
    """

    name: ClassVar[str] = "shard-caches"

    count: int
    way: Way | None = None
    """Left out: the one that moves fewer bytes."""

    def requires(self, program: SpeculativeProgram) -> None:
        if program.sharding is None:
            need_graphs(program)
        for buffer in program.state.values():
            need(buffer.name.endswith(PACKED), f"${buffer.name} is alone", "pack-caches")
        if self.count < 2:
            raise PassError(
                "SPECC-E0373", f"{self.count} shards share nothing", expected="2 or more",
                cure="leave out --kv-shards",
            )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        if program.sharding is not None:
            same("shards", program.sharding.count, self.count)
            same("way", program.sharding.way, self.way or program.sharding.way)
            return PassResult(program, modified=False)
        split = _attended(program)
        plain = [
            n for n in _attentions(program, "verify_0") if _cache(program, "verify_0", n) in split
        ]
        need(plain, "no attention is left to share", "delta-caches with written_out=False")
        sharding = choose([Sizes.of(n) for n in plain], self.count, self.way)
        shards = {name: _shards(program.state[name], sharding) for name in split}
        state = {n: b for n, b in program.state.items() if n not in split}
        state |= {s.name: s for parts in shards.values() for s in parts}
        for function in list(program.functions.values()):
            if graph_call(function) is None:
                continue
            program = _written_out(program, function, split)
            if any(state_name(n) in split for n in function.graph.nodes):
                cut = Caller(Cut(program, function, sharding, shards))
                program = program.without_function(function.name + GRAPH).replacing(
                    cut.function(), *cut.leaves, *cut.attends
                )
        return PassResult(replace(program, state=state, sharding=sharding), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        for function in program.functions.values():
            left = any(n.target is ops.masked_attention.default for n in function.graph.nodes)
            promise(not left, f"{function.name} attends to whole caches")


def _attentions(program: SpeculativeProgram, function: str) -> list[fx.Node]:
    call = graph_call(program.functions[function])
    nodes = () if call is None else program.functions[str(call.target)].graph.nodes
    return [n for n in nodes if n.target is ops.masked_attention.default]


def _cache(program: SpeculativeProgram, function: str, attention: fx.Node) -> str:
    """The packed buffer that an attention's keys are cut out of; empty if there is none."""
    call = graph_call(program.functions[function])
    assert call is not None
    leaf = program.functions[str(call.target)]
    at: Any = attention.args[1]
    while isinstance(at, fx.Node) and at.op == "call_function":
        at = at.args[0]
    passed = dict(zip(leaf.inputs, call.args, strict=True))
    given = passed.get(at)
    return (state_name(given) if isinstance(given, fx.Node) else None) or ""


def _attended(program: SpeculativeProgram) -> set[str]:
    """The target's buffers that are keys and values."""
    found = {
        _cache(program, f.name, n)
        for f in program.functions.values() if graph_call(f) is not None
        for n in _attentions(program, f.name)
    }  # fmt: skip
    return {n for n in found if n and program.state[n].owner is Owner.TARGET}


def _shards(buffer: StateBuffer, sharding: Sharding) -> list[StateBuffer]:
    _, rows, columns = buffer.type.at()
    ways = (sharding.count, 1) if sharding.way is Way.ROWS else (1, sharding.count)
    shape = (1, rows // ways[0], columns // ways[1])
    stem = buffer.name.removesuffix(PACKED)
    type_ = TensorType(buffer.type.dtype, shape)
    return [
        replace(buffer, name=f"{stem}.shard_{i}{PACKED}", type=type_, zone=f"{buffer.zone}.shard_{i}")
        for i in range(sharding.count)
    ]  # fmt: skip


def _written_out(
    program: SpeculativeProgram, function: Function, split: set[str]
) -> SpeculativeProgram:
    """Attention to caches that stay whole, in plain operations."""
    call = graph_call(function)
    assert call is not None
    leaf = program.functions[str(call.target)]
    graph, copies = copy_graph(leaf.graph)
    whole = [
        n for n in _attentions(program, function.name)
        if _cache(program, function.name, n) not in split
    ]  # fmt: skip
    for node in (copies[n] for n in whole):
        q, k, v, k_new, v_new, old, new, scale, softcap, sinks = node.args
        given: Any = (q, k, v, k_new, v_new, scale, softcap, sinks)
        with graph.inserting_before(node):
            result = attend(graph, Attended(*given), Masks(old, new), node.meta)  # type: ignore[arg-type]
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    infer_types(graph, leaf.name)
    return program.replacing(Function(leaf.name, Role.LEAF, graph, leaf.outputs))
