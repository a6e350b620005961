"""Writes `propose_K`: the K drafts of a round, each chosen as the target will choose."""

from __future__ import annotations

import torch
from torch import fx

from specc.ir import Function, Role, SpeculativeProgram, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import Builder
from specc.ir.round_inputs import round_inputs

aten = torch.ops.aten
ONE = TensorType("i64", (1,))


class Proposal:
    """A function propose_K(root, length, first_row, temperature, seed, ...) -> drafts i64[K], while it is written."""

    def __init__(self, program: SpeculativeProgram, k: int, **more: TensorType) -> None:
        self.program, self.k, self.builder = program, k, Builder()
        known = round_inputs(k)
        self.root, self.length, self.first_row, self.temperature, self.seed = (
            self.builder.input(name, known[name])
            for name in ("root", "length", "first_row", "temperature", "seed")
        )
        self.inputs = {name: self.builder.input(name, type_) for name, type_ in more.items()}
        self.drafts: list[fx.Node] = []

    @property
    def before(self) -> fx.Node:
        """The token before the next draft."""
        return self.drafts[-1] if self.drafts else self.root

    def call(self, name: str, *args: fx.Node) -> list[fx.Node]:
        """A call of another function."""
        return self.builder.call(self.program.functions[name], args)

    def place(self, offset: int, count: int = 1) -> tuple[fx.Node, fx.Node]:
        """`count` positions from length + offset on, and their cache rows."""
        type_, at = TensorType("i64", (count,)), self.length
        if (offset, count) != (0, 1):
            at = self.builder.op(ops.positions.default, at, count, offset, type_=type_)
        return at, self.builder.op(ops.rows.default, at, self.first_row, type_=type_)

    def choose(self, logits: fx.Node) -> None:
        """The next draft from its logits f32[1, V]: greedy, or with the noise of its position."""
        at = self.length
        if self.drafts:
            at = self.builder.op(ops.positions.default, at, 1, len(self.drafts), type_=ONE)
        arguments = (
            self.before, logits, at, self.temperature, self.seed, self.program.model.vocab_size,
        )  # fmt: skip
        self.drafts.append(self.builder.ops(ops.accept.default, *arguments, types=(ONE, ONE))[0])

    def end(self) -> Function:
        """The function."""
        assert len(self.drafts) == self.k
        (drafts,) = self.drafts if self.k == 1 else [
            self.builder.op(aten.cat.default, self.drafts, type_=TensorType("i64", (self.k,)))
        ]  # fmt: skip
        return Function(f"propose_{self.k}", Role.DRAFT, self.builder.output(drafts), ("drafts",))


def proposals(program: SpeculativeProgram) -> list[int]:
    """K of every propose_K that there is."""
    return [int(n.removeprefix("propose_")) for n in program.functions if n.startswith("propose_")]
