"""What a program means: its functions, run in plain torch. The oracle for every backend."""

from __future__ import annotations

import operator
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import fx

from specc.ir.graphs import results_of, state_name, weight_name
from specc.ir.program import SpeculativeProgram
from specc.ir.types import DTYPES

State = MutableMapping[str, torch.Tensor]


def fresh_state(program: SpeculativeProgram, positions: int | None = None) -> State:
    """Zero-filled buffers. `positions` gives S where plan-state has not fixed it."""
    length = positions or program.max_model_len * program.max_num_seqs
    return {
        name: torch.zeros(buffer.type.at(S=length), dtype=DTYPES[buffer.type.dtype])
        for name, buffer in program.state.items()
    }


def text_inputs(
    program: SpeculativeProgram, function: str, tokens: torch.Tensor, positions: torch.Tensor,
    first_row: int = 0,
) -> list[torch.Tensor]:  # fmt: skip
    """What a target, prefill, verify or draft takes for tokens of the text at cache row `first_row`."""
    known = {"tokens": tokens, "positions": positions, "rows": positions + first_row}
    known["parents"] = torch.full_like(positions, -1)  # a text is no tree
    inputs = program.functions[function].inputs
    return [known[node.name] for node in inputs if node.name in known]


def evaluate(
    program: SpeculativeProgram, function: str, inputs: Sequence[torch.Tensor], state: State
) -> list[torch.Tensor]:
    """Run `function` on `inputs`, writing to `state`. A weight is loaded once for the call."""
    with torch.no_grad():
        return _run(program, function, inputs, state, {})


def _run(
    program: SpeculativeProgram, name: str, inputs: Sequence[torch.Tensor], state: State,
    loaded: dict[str, torch.Tensor],
) -> list[torch.Tensor]:  # fmt: skip
    graph = program.functions[name].graph
    expected = len(program.functions[name].inputs)
    if len(inputs) != expected:
        raise TypeError(f"{name} takes {expected} inputs, not {len(inputs)}")
    values: dict[fx.Node, Any] = {}
    remaining = iter(inputs)
    last_use = _last_uses(graph)
    for node in graph.nodes:
        values[node] = _value(program, node, values, remaining, state, loaded)
        for dead in last_use.get(node, ()):
            del values[dead]
        if node.op == "output":
            break
    return [values[node] for node in results_of(graph)]


def _value(
    program: SpeculativeProgram, node: fx.Node, values: dict[fx.Node, Any],
    inputs: Any, state: State, loaded: dict[str, torch.Tensor],
) -> Any:  # fmt: skip
    if node.op == "placeholder":
        return next(inputs)
    if (weight := weight_name(node)) is not None:
        if weight not in loaded:
            loaded[weight] = program.weights[weight].load()
        return loaded[weight]
    if (buffer := state_name(node)) is not None:
        return state[buffer]
    args: Any = fx.map_arg(node.args, values.__getitem__)
    if node.op == "call_module":
        return _run(program, str(node.target), args, state, loaded)
    if node.op == "call_function":
        if node.target is operator.getitem:
            return args[0][args[1]]
        return node.target(*args, **fx.map_arg(node.kwargs, values.__getitem__))  # type: ignore[operator]
    return None


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the values that nobody needs after it (results of the graph excepted)."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    kept = set(results_of(graph))
    uses: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.users and node not in kept:
            uses.setdefault(max(node.users, key=order.__getitem__), []).append(node)
    return uses
