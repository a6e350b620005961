"""Proof that a program's rows meet only in attention.

The compiler runs the same graph on a whole prompt, on a chunk of it and on a handful of drafts. That is right only if
everything but attention treats each row for itself and takes its position from the input. A convolution over rows, a
recurrent state or a position that the model counts on its own breaks it, and would show as slowly worsening text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from specc.errors import ModelError
from specc.ir.dialect import ops
from specc.ir.graphs import weight_name
from specc.ir.program import SpeculativeProgram
from specc.ir.types import TensorType

_TOLERANCE = 1e-4


def check_rows(program: SpeculativeProgram) -> None:
    """Run `target` with attention cut to each row's own value; equal rows must give equal results everywhere.

    Rows 1 and 3 of the probe hold the same token at the same position between other neighbours. A weight is loaded
    where it is used and dropped at once. Raises ModelError (SPECC-E0216) with the layer where they first differ.
    """
    function = program.functions["target"]
    last = max(program.model.vocab_size - 1, 1)
    inputs = iter((torch.tensor([0, 1, last, 1]), torch.tensor([0, 1, 2, 1])))
    left = {node: len(node.users) for node in function.graph.nodes}
    values: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for node in function.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(inputs)
            elif node.op == "call_function":
                values[node] = _run(node, values, program)
                _compare(node, values[node])
            for source in node.all_input_nodes:
                left[source] -= 1
                if left[source] == 0:
                    values.pop(source, None)


def _run(node: fx.Node, known: dict[fx.Node, Any], program: SpeculativeProgram) -> Any:
    values = {
        n: known[n] if (name := weight_name(n)) is None else program.weights[name].load()
        for n in node.all_input_nodes
    }
    args: Any = fx.map_arg(node.args, values.__getitem__)
    if node.target is ops.attention.default:
        query, value = args[0], args[2]
        repeated = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        return repeated.transpose(1, 2).contiguous()
    run: Any = node.target
    return run(*args, **fx.map_arg(node.kwargs, values.__getitem__))


def _compare(node: fx.Node, value: Any) -> None:
    """Rows 1 and 3 along each dimension that is T."""
    type_ = node.meta.get("type")
    if not isinstance(value, Tensor) or not isinstance(type_, TensorType):
        return
    for dim, size in enumerate(type_.shape):
        if size != "T":
            continue
        a, b = value.select(dim, 1).double(), value.select(dim, 3).double()
        same = (a == b) | ((a - b).abs() <= _TOLERANCE * (1 + a.abs()))  # infinities are only equal
        if bool(same.all()):
            continue
        raise ModelError(
            "SPECC-E0216",
            f"rows meet outside attention: {node.target} depends on other rows",
            where=str(node.meta.get("origin", "")) or node.name,
            expected="rows that meet in attention alone, and positions taken from the input",
            found="a convolution, a recurrent state or positions that the model counts itself",
            cure="choose another architecture; `specc doctor` lists those that work",
        )
