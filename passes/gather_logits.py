"""Logits only where they are read: prefill has no head."""

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
class GatherLogits(Pass):
    """Give the target an entry for the prompt that fills state and computes no logits.

    Before: target(tokens[T], positions[T], rows[T]) -> logits
    After:  the same, and prefill(tokens[T], positions[T], rows[T]) -> ()

    The last prompt token is not prefilled: it is the first round's root, so the first new token
    comes from the same rows, and the same bits, as all others.
    """

    name: ClassVar[str] = "gather-logits"

    prefill_chunk: int = 64
    """Most rows of one prefill call."""

    def requires(self, program: SpeculativeProgram) -> None:
        parts_of(program)
        if self.prefill_chunk < 1:
            raise PassError(
                "SPECC-E0335", f"a prefill of {self.prefill_chunk} rows makes no progress",
                expected="1 row or more", cure="correct --prefill-chunk",
            )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        if "prefill" in program.functions:
            same("prefill_chunk", program.prefill_chunk, self.prefill_chunk)
            return PassResult(program, modified=False)
        builder = Builder()
        replay(builder, program, "target", token_inputs(builder, "T"), None, head=False)
        prefill = Function("prefill", Role.PREFILL, builder.output(), ())
        rewritten = replace(program, prefill_chunk=self.prefill_chunk).with_functions(prefill)
        return PassResult(rewritten, modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        calls = {p.part for p in parts_of(program, "prefill")}
        promise("head" not in calls, "prefill computes logits")
