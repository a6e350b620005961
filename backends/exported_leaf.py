"""A leaf as a torch.export program, for backends that compile or save one."""

from __future__ import annotations

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from specc.ir import Function
from specc.ir.graphs import type_of
from specc.ir.types import DTYPES

_ROWS = 8
"""Rows of the example call; the program is for any number."""


class _Leaf(nn.Module):
    """A graph as a module that torch.export takes."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()
        self.graph_module = fx.GraphModule({}, graph)

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.graph_module(*inputs)


def export_leaf(function: Function) -> tuple[ExportedProgram, tuple[torch.Tensor, ...]]:
    """`function` exported for 2 or more rows, and the example inputs it was traced with."""
    example = tuple(
        torch.zeros(type_of(n).at(T=_ROWS), dtype=DTYPES[type_of(n).dtype]) for n in function.inputs
    )
    rows = torch.export.Dim("rows", min=2, max=1 << 20)
    dynamic = tuple(
        {i: rows for i, d in enumerate(type_of(n).shape) if d == "T"} for n in function.inputs
    )
    leaf = _Leaf(function.graph)
    return torch.export.export(leaf, example, dynamic_shapes=(dynamic,), strict=False), example
