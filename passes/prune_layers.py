"""A drafter out of the target itself: fewer of its layers, the same weights, the same cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from specc.errors import PassError
from specc.ir import Role, SpeculativeProgram
from specc.ir.graphs import Builder
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, promise, same
from specc.passes.replay import parts_of, replay, token_inputs


@dataclass(frozen=True)
class PruneLayers(Pass):
    """Add `draft`: the target with only `layers` of its layers, on one row.

    Before: target: x1 = layer 0(x0); x2 = layer 1(x1); x3 = layer 2(x2)     (layers = 0, 2)
    After:  the same, and draft: x1 = layer 0(x0); x3 = layer 2(x1)

    Nothing is copied: draft calls the target's leaves with the target's weights. It writes its rows
    to the target's cache at rows that verify rewrites before reading them, so no draft row
    outlives its round.
    """

    name: ClassVar[str] = "prune-layers"

    layers: tuple[int, ...] = ()
    """Layers that the draft keeps, ascending."""

    def requires(self, program: SpeculativeProgram) -> None:
        parts_of(program)
        count = program.model.num_layers
        good = list(self.layers) == sorted(set(self.layers)) and all(
            0 <= j < count for j in self.layers
        )
        if not good or len(self.layers) in (0, count):
            raise PassError(
                "SPECC-E0352",
                f"a draft of the layers {list(self.layers)} cannot be made",
                expected=f"some, not all, of 0..{count - 1}, ascending",
                cure="choose other layers with --draft-layers",
            )

    def call(self, program: SpeculativeProgram) -> PassResult:
        if "draft" in program.functions:
            same("layers", program.contract.layers, self.layers)
            return PassResult(program, modified=False)
        builder = Builder()
        inputs = token_inputs(builder, 1)
        logits = replay(builder, program, "target", inputs, 1, layers=self.layers, taps=False)
        assert logits is not None
        draft = Function("draft", Role.DRAFT, builder.output(logits), ("logits",))
        contract = replace(program.contract, layers=self.layers)
        return PassResult(replace(program, contract=contract).with_functions(draft), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        kept = tuple(p.layer for p in parts_of(program, "draft") if p.part == "layer")
        promise(kept == self.layers, f"draft runs layers {kept}")
