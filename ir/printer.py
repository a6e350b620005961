"""Programs as text: all but the contents of weights and where operations come from; stable, without object ids.

Tests and `specc opt` compare it. `provenance` is not shown.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from specc.ir.arena import Arena
from specc.ir.graphs import state_name, weight_name
from specc.ir.program import Contract, DraftState, Function, ModelInfo, Role, SpeculativeProgram
from specc.ir.weights import Weight, WeightStore


def text(program: SpeculativeProgram) -> str:
    """The whole program."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: SpeculativeProgram) -> Iterator[str]:
    yield f"program {program.name} S={program.max_model_len} chunk={program.prefill_chunk}"
    yield _model(program.model)
    yield _drafter(program.contract)
    if program.sharding is not None:
        yield f"shards {program.sharding.count} by {program.sharding.way}"
    yield from map(str, program.state.values())
    if program.arena is not None:
        yield from _arena(program.arena)
    yield from _weights(program.weights)
    for played in program.rounds:
        depth = f" depth={played.depth}" if played.depth else ""
        nodes = f" nodes={played.nodes}" if played.nodes != played.k else ""
        yield f"round K={played.k}{depth}{nodes}: {played.function}"
    order = {role: place for place, role in enumerate(Role)}
    for function in sorted(program.functions.values(), key=lambda f: order[f.role]):
        yield from function_lines(function)


def _model(model: ModelInfo) -> str:
    parts = [f"model {model.architecture} vocab={model.vocab_size} hidden={model.hidden_size}"]
    parts += [f"layers={model.num_layers} positions={model.max_position}"]
    parts += [f"eos={list(model.eos_token_ids)}"]
    parts += [] if model.bos_token_id is None else [f"bos={model.bos_token_id}"]
    return " ".join(parts)


def _arena(arena: Arena) -> Iterator[str]:
    for plan in arena.plans:
        yield f"arena {arena.split} ({arena.writes} writes proved): {plan.rows} rows, {plan.bytes} bytes"
        for zone in plan.zones:
            yield f"  zone {zone.name} at {zone.offset}: {zone.bytes} bytes, {zone.used} used"
            yield from (f"    ${name} at {offset}" for name, offset in zone.buffers.items())


_HASH = re.compile(r"([0-9a-f]{8})[0-9a-f]{56}")


def _weights(weights: WeightStore) -> Iterator[str]:
    """A line for each: how it was derived (hashes cut short), or which earlier one it is.

    Contents are not compared, since that would read them all.
    """
    first: dict[Weight | str, str] = {}
    for name, weight in sorted(weights.items()):
        line = f"weight @{name}: {weight.type}"
        known = first.setdefault(weight.derivation or weight, name)
        if known != name:
            line += f" = @{known}"
        elif weight.derivation:
            line += " = " + _HASH.sub(r"\1", weight.derivation)
        yield line


def _drafter(contract: Contract) -> str:
    """The contract; what is empty is not shown."""
    parts = [f"drafter {contract.kind} K={list(contract.num_speculative_tokens)}"]
    parts += ["on the host"] if contract.host else []
    parts += (
        [f"beside {contract.host_drafter}"] if contract.host_drafter and not contract.host else []
    )
    parts += ["with own state"] if contract.state is DraftState.OWN else []
    parts += [f"lag={contract.lag}"] if contract.lag else []
    parts += [f"extend={contract.extend}"] if contract.extend else []
    for name in ("layers", "depths", "taps"):
        if values := getattr(contract, name):
            parts.append(f"{name}={list(values)}")
    if contract.draft_vocab_size:
        parts.append(f"vocabulary={contract.draft_vocab_size}")
    parts += [f"tree={contract.tree}"] if contract.tree else []
    parts += ["of any tree"] if contract.given_trees else []
    parts += [f"{name}={value}" for name, value in sorted(contract.options.items())]
    return " ".join(parts)


def function_lines(function: Function) -> Iterator[str]:
    """One function: its signature, then a line per operation, with values numbered in order."""
    names: dict[fx.Node, str] = {}
    counter = itertools.count()
    for node in function.graph.nodes:
        if (name := weight_name(node)) is not None:
            names[node] = f"@{name}"
        elif (name := state_name(node)) is not None:
            names[node] = f"${name}"
        elif node.op == "placeholder":
            names[node] = f"%{node.name}"
        elif node.op in ("call_function", "call_module") and node.meta.get("type") is not None:
            names[node] = f"%{next(counter)}"
    inputs = ", ".join(f"{names[n]}: {n.meta['type']}" for n in function.inputs)
    yield f"fn {function.name}({inputs}) {{{function.role}}}:"
    for node in function.graph.nodes:
        if node.op in ("call_function", "call_module"):
            yield f"  {_statement(node, names)}"
        elif node.op == "output":
            values = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
            pairs = zip(function.outputs, values, strict=True)
            results = ", ".join(f"{o}={_argument(v, names)}" for o, v in pairs)
            yield f"  return {results}".rstrip()


def _statement(node: fx.Node, names: dict[fx.Node, str]) -> str:
    if node.target is operator.getitem:
        call = f"{_argument(node.args[0], names)}[{node.args[1]}]"
    else:
        arguments = [_argument(a, names) for a in node.args]
        arguments += [f"{k}={_argument(v, names)}" for k, v in node.kwargs.items()]
        call = f"{_operation(node)}({', '.join(arguments)})"
    type_ = node.meta.get("type")
    if type_ is None:
        return call
    shown = f"({', '.join(map(str, type_))})" if isinstance(type_, tuple) else str(type_)
    return f"{names[node]} = {call} : {shown}"


def _operation(node: fx.Node) -> str:
    if node.op == "call_module":
        return f"call {node.target}{_part(node)}"
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target).removesuffix(".default")
    return getattr(node.target, "__name__", str(node.target))


def _part(node: fx.Node) -> str:
    """What a call of a leaf is in its model."""
    part, layer = node.meta.get("part"), node.meta.get("layer", -1)
    if part is None:
        return ""
    return f" {{{part} {layer}}}" if part == "layer" else f" {{{part}}}"


def _argument(value: Any, names: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return names.get(value, f"<undefined {value}>")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_argument(v, names) for v in value)}]"
    return str(value).removeprefix("torch.")
