"""What a program means: its functions, run in plain torch. The oracle for every backend."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
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
    program: SpeculativeProgram, function: str, inputs: Sequence[torch.Tensor], state: State,
    instead: Mapping[Any, Callable[..., Any]] | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Run `function` on `inputs`, writing to `state`. A weight is loaded once for the call.

    `instead`: what plays an operation, for who can do with another rounding.
    """
    with torch.no_grad():
        return _Evaluation(program, state, instead or {}).run(function, inputs)


@dataclass(frozen=True)
class _Evaluation:
    program: SpeculativeProgram
    state: State
    instead: Mapping[Any, Callable[..., Any]]
    loaded: dict[str, torch.Tensor] = field(default_factory=dict)

    def run(self, name: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        function = self.program.functions[name]
        if len(inputs) != len(function.inputs):
            raise TypeError(f"{name} takes {len(function.inputs)} inputs, not {len(inputs)}")
        values: dict[fx.Node, Any] = {}
        remaining = iter(inputs)
        last_use = _last_uses(function.graph)
        for node in function.graph.nodes:
            values[node] = self._value(node, values, remaining)
            for dead in last_use.get(node, ()):
                del values[dead]
            if node.op == "output":
                break
        return [values[node] for node in results_of(function.graph)]

    def _value(self, node: fx.Node, values: dict[fx.Node, Any], inputs: Iterator[Any]) -> Any:
        if node.op == "placeholder":
            return next(inputs)
        if (weight := weight_name(node)) is not None:
            if weight not in self.loaded:
                self.loaded[weight] = self.program.weights[weight].load()
            return self.loaded[weight]
        if (buffer := state_name(node)) is not None:
            return self.state[buffer]
        args: Any = fx.map_arg(node.args, values.__getitem__)
        if node.op == "call_module":
            return self.run(str(node.target), args)
        if node.op == "call_function":
            if node.target is operator.getitem:
                return args[0][args[1]]
            play: Any = self.instead.get(node.target, node.target)
            return play(*args, **fx.map_arg(node.kwargs, values.__getitem__))
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
