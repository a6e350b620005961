"""Plays leaves that TVM compiled, in Python by TVM's own runtime: what the C++ player does, told a second time."""

from __future__ import annotations

import operator
from typing import Any

import torch
import tvm
from torch import fx

from specc.backends.pack_weights import pack_weights
from specc.backends.tvm import conversions as _conversions
from specc.backends.tvm.kernels import Kernels, lowered, target
from specc.ir import Function, Role, SpeculativeProgram
from specc.ir.graphs import type_of
from specc.ir.types import DTYPES

ISA = "x86-64-v3"
_QUICK = tvm.target.Target({**target(ISA).export(), "opt-level": 0})
"""What is told here is what kernels compute; artifacts' are made by the whole of LLVM."""
_BUILT: dict[str, Any] = {}

assert _conversions  # registers what operations become


class Player:
    """The kernels of one leaf, loaded."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        text = kernels.text()  # many programs have one target
        if text not in _BUILT:
            _BUILT[text] = tvm.tirx.build(kernels.module, target=_QUICK)
        self._built = _BUILT[text]

    def __call__(self, *args: torch.Tensor) -> list[torch.Tensor]:
        kernels = self.kernels
        rows = next(
            (a.shape[t.shape.index("T")] for a, t in zip(args, kernels.values, strict=False) if "T" in t.shape), 0
        )  # fmt: skip
        values: dict[int, torch.Tensor] = dict(enumerate(args))
        for step in kernels.steps:
            made = step.args[len(step.args) - step.made :]
            if not step.kernel:
                values[made[0]] = values[step.args[0]].reshape(kernels.values[made[0]].at(T=rows))
                continue
            for value in made:
                type_ = kernels.values[value]
                values[value] = torch.empty(type_.at(T=rows), dtype=DTYPES[type_.dtype])
            for value in step.args:
                if not values[value].is_contiguous() or values[value].data_ptr() % 64:
                    assert value >= kernels.inputs or not kernels.written[value]
                    values[value] = values[value].clone(memory_format=torch.contiguous_format)
            self._built[step.kernel](*(tvm.runtime.from_dlpack(values[v]) for v in step.args))
        return [values[v] for v in kernels.outputs]


def played(program: SpeculativeProgram) -> SpeculativeProgram:
    """`program` with packed weights and leaves that TVM runs."""
    packed = pack_weights(program)
    leaves = []
    for leaf in [f for f in packed.functions.values() if f.role is Role.LEAF]:
        graph = fx.Graph()
        inputs = [graph.placeholder(n.name) for n in leaf.inputs]
        for copy, node in zip(inputs, leaf.inputs, strict=True):
            copy.meta["type"] = type_of(node)
        call = graph.call_function(_effective(Player(lowered(leaf, ISA))), tuple(inputs))
        results = [
            graph.call_function(operator.getitem, (call, i)) for i in range(len(leaf.outputs))
        ]
        graph.output(tuple(results))
        leaves.append(Function(leaf.name, Role.LEAF, graph, leaf.outputs))
    return packed.replacing(*leaves)


def _effective(player: Player) -> Any:
    """A function: FX wants a name."""

    def call(*args: torch.Tensor) -> list[torch.Tensor]:
        return player(*args)

    return call
