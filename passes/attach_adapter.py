"""A self-draft of adjustable depth: the target's own last layers behind a linear adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Role, SpeculativeProgram, TensorType, Weight
from specc.ir.graphs import Builder
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise, same
from specc.passes.replay import mark, parts_of, replay, token_inputs

aten = torch.ops.aten


@dataclass(frozen=True)
class Adapter:
    """embedding @ x + hidden @ h + bias predicts what enters the first layer that runs."""

    embedding: torch.Tensor
    hidden: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True)
class AttachAdapter(Pass):
    """For each depth D add a draft of the last D layers behind an adapter.

    Before: target: x[L-D] = <L-D layers>(embed(token)); logits = head(<D layers>(x[L-D]))
    After:  draft_dD(tokens[1], positions[1], rows[1], hidden[1, H]) -> (logits[1, V], hidden[1, H]):
            h = adapter(embed(token), hidden); logits = head(<D layers>(h)); h is the next hidden

    `hidden` is the state that entered layer L-D at the position before (a tap for the first step).
    The layers read the target's cache, exact for committed positions, and write rows that verify
    rewrites.
    """

    name: ClassVar[str] = "attach-adapter"

    adapters: Mapping[int, Adapter] = field(default_factory=dict)
    """By depth."""

    def requires(self, program: SpeculativeProgram) -> None:
        parts_of(program)
        for depth, adapter in self.adapters.items():
            count, width = program.model.num_layers, program.model.hidden_size
            shapes = [tuple(t.shape) for t in (adapter.embedding, adapter.hidden, adapter.bias)]
            if not 0 < depth < count or shapes != [(width, width), (width, width), (width,)]:
                raise PassError(
                    "SPECC-E0356", f"an adapter for depth {depth} of {shapes} does not fit",
                    expected=f"depth 1 to {count - 1}, {width} x {width}",
                    cure="fit the adapter on this model",
                )  # fmt: skip
            need(f"tap.{count - depth}" in program.state, "a tap is missing", "tap-hidden-states")

    def call(self, program: SpeculativeProgram) -> PassResult:
        if not self.adapters:
            return PassResult(program, modified=False)
        if "adapter" in program.functions:
            same("depths", program.contract.depths, tuple(sorted(self.adapters)))
            program.weights.added(self._weights())  # refuses other contents
            return PassResult(program, modified=False)
        program = replace(
            program, weights=program.weights.added(self._weights())
        ).with_functions(_leaf(program.model.hidden_size))  # fmt: skip
        drafts = [_draft(program, depth) for depth in sorted(self.adapters)]
        # Before the first position there is no hidden state, but what another text left in its place.
        depths = tuple(sorted(self.adapters))
        contract = replace(program.contract, depths=depths, min_length=1)
        return PassResult(
            replace(program, contract=contract).with_functions(*drafts), modified=True
        )

    def _weights(self) -> dict[str, Weight]:
        weights: dict[str, Weight] = {}
        for depth, adapter in self.adapters.items():
            for part in ("embedding", "hidden", "bias"):
                weights[f"adapter.{depth}.{part}"] = Weight.of(getattr(adapter, part).float())
        return weights

    def ensures(self, program: SpeculativeProgram) -> None:
        promise(
            all(f"draft_d{d}" in program.functions for d in self.adapters), "a depth is missing"
        )


def _leaf(width: int) -> Function:
    """adapter(embedding[T, H], hidden[T, H], two matrices, bias) -> [T, H]."""
    rows, square = TensorType("f32", ("T", width)), TensorType("f32", (width, width))
    builder = Builder()
    x, h = builder.input("embedding", rows), builder.input("hidden", rows)
    wx, wh = builder.input("weight_2", square), builder.input("weight_3", square)
    bias = builder.input("weight_4", TensorType("f32", (width,)))
    left = builder.op(aten.linear.default, x, wx, bias, type_=rows)
    right = builder.op(aten.linear.default, h, wh, type_=rows)
    total = builder.op(aten.add.Tensor, left, right, type_=rows)
    return Function("adapter", Role.LEAF, builder.output(total), ("hidden",))


def _draft(program: SpeculativeProgram, depth: int) -> Function:
    builder = Builder()
    inputs = token_inputs(builder, 1)
    hidden = builder.input("hidden", TensorType("f32", (1, program.model.hidden_size)))
    matrices = [
        builder.weight(name, program.weights[name].type)
        for name in (f"adapter.{depth}.{part}" for part in ("embedding", "hidden", "bias"))
    ]
    adapted: list[fx.Node] = []

    def adapt(embedded: fx.Node) -> fx.Node:
        arguments = [embedded, hidden, *matrices]
        adapted.extend(builder.call(program.functions["adapter"], arguments, 1))
        mark(adapted[0], "adapter", -1)
        return adapted[0]

    count = program.model.num_layers
    layers = range(count - depth, count)
    logits = replay(builder, program, "target", inputs, 1, layers=layers, taps=False, stream=adapt)
    assert logits is not None
    outputs = ("logits", "hidden")
    return Function(f"draft_d{depth}", Role.DRAFT, builder.output(logits, adapted[0]), outputs)
