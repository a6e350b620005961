"""A sharded program on as many processes as it has shards, which exchange tensors by `torch.distributed` (gloo)."""

from __future__ import annotations

import json
import multiprocessing
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from specc.ir import Role, SpeculativeProgram
from specc.ir.evaluate import State, evaluate
from specc.ir.graphs import has_effect, results_of, state_name, weight_name

Work = Callable[[SpeculativeProgram], Any]
"""What every process does with what it holds of the program; of JSON's types."""


def on_ranks(program: SpeculativeProgram, work: Work, folder: Path) -> list[Any]:
    """What each of the processes makes of `work`. They inherit the program, but hold one shard of the caches each."""
    assert program.sharding is not None
    count = program.sharding.count
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=_rank, args=(program, work, folder, rank, count))
        for rank in range(count)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [p.exitcode for p in ranks] == [0] * count
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def _rank(program: SpeculativeProgram, work: Work, folder: Path, rank: int, count: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count,
        timeout=timedelta(seconds=100),
    )  # fmt: skip
    state = {n: b for n, b in program.state.items() if shard_of(n) in (None, rank)}
    made = work(replace(program, state=state))
    (folder / f"{rank}.json").write_text(json.dumps(made))
    dist.destroy_process_group()


def shard_of(name: str) -> int | None:
    """Whose shard a buffer is; None for what all have."""
    parts = [p for p in name.split(".") if p.startswith("shard_")]
    return int(parts[0].removeprefix("shard_")) if parts else None


def evaluate_here(
    program: SpeculativeProgram, name: str, inputs: Sequence[torch.Tensor], state: State
) -> list[torch.Tensor]:
    """`ir.evaluate` on one device: attention of its own shard, then an all-gather; writes of its own shard."""
    graph, remaining, values = program.functions[name].graph, iter(inputs), {}
    with torch.no_grad():
        for node in graph.nodes:
            values[node] = _value(program, node, values, remaining, state)
    return [values[n] for n in results_of(graph)]


def _value(
    program: SpeculativeProgram, node: fx.Node, values: dict[fx.Node, Any], inputs: Any, state: State
) -> Any:  # fmt: skip
    if node.op == "placeholder":
        return next(inputs)
    if (weight := weight_name(node)) is not None:
        return program.weights[weight].load()
    if (buffer := state_name(node)) is not None:
        return state.get(buffer)
    owners = [shard_of(state_name(n) or "") for n in node.all_input_nodes]
    owner = next((o for o in owners if o is not None), None)
    if node.op == "call_module":
        args: Any = fx.map_arg(node.args, values.__getitem__)
        if program.functions[str(node.target)].role is not Role.LEAF:
            return evaluate_here(program, str(node.target), args, state)
        if owner is None:
            return evaluate(program, str(node.target), args, state)
        return _exchanged(program, node, args, state, owner)
    if node.op == "call_function":
        if owner not in (None, dist.get_rank()) and has_effect(node):
            return None
        args = fx.map_arg(node.args, values.__getitem__)
        return args[0][args[1]] if node.target is operator.getitem else node.target(*args)  # type: ignore[operator]
    return None


def _exchanged(
    program: SpeculativeProgram, node: fx.Node, args: Any, state: State, owner: int
) -> list[torch.Tensor]:
    """The part of `owner`: each sends its own to the others, in the order of the calls."""
    (type_,) = node.meta["type"]
    part = torch.empty(type_.at())
    if owner == dist.get_rank():
        (part,) = evaluate(program, str(node.target), args, state)
        part = part.contiguous()
    dist.broadcast(part, owner)
    return [part]
