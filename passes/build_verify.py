"""Let the target score a block: one function for each K."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from specc.errors import PassError
from specc.ir import Role, SpeculativeProgram
from specc.ir.graphs import Builder, results_of, type_of
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise, same
from specc.passes.replay import parts_of, replay, token_inputs


@dataclass(frozen=True)
class BuildVerify(Pass):
    """Specialise the target to K+1 rows: the root and K drafts.

    Before: target(tokens[T], positions[T], rows[T]) -> logits[T, V]
    After:  verify_K(tokens[K+1], positions[K+1], rows[K+1]) -> logits[K+1, V], for each K;
            K = 0 decodes
            or, where the drafts of a round of K are a tree of N nodes,
            verify_K(tokens[N+1], positions[N+1], rows[N+1], parents[N+1]) -> logits[N+1, V]

    All call the same leaves as prefill: the same machine code on another number of rows, which is
    why decoding and verifying agree bit for bit. `target` is dropped; its drafter pieces stay.
    """

    name: ClassVar[str] = "build-verify"

    num_speculative_tokens: tuple[int, ...] = (0, 2, 4)
    """K, ascending; 0 is always there."""

    def requires(self, program: SpeculativeProgram) -> None:
        if "verify_0" not in program.functions:
            parts_of(program)
            takes = [n.name for n in program.functions["target"].inputs]
            need(not program.contract.branches or "parents" in takes, "attention takes no parents",
                 "make-stateful with trees")  # fmt: skip
        if any(k < 0 for k in self.num_speculative_tokens):
            raise PassError(
                "SPECC-E0358", f"K cannot be {min(self.num_speculative_tokens)}",
                expected="0 or more drafts", cure="correct --num-speculative-tokens",
            )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        ks = tuple(sorted({0, *self.num_speculative_tokens}))
        if "verify_0" in program.functions:
            same("K", program.contract.num_speculative_tokens, ks)
            return PassResult(program, modified=False)
        functions = []
        for k in ks:
            builder, rows = Builder(), program.contract.nodes(k) + 1
            tree = k > 0 and program.contract.branches
            inputs = token_inputs(builder, rows, tree)
            logits = replay(builder, program, "target", inputs, rows)
            assert logits is not None
            functions.append(
                Function(f"verify_{k}", Role.VERIFY, builder.output(logits), ("logits",))
            )
        contract = replace(program.contract, num_speculative_tokens=ks)
        rewritten = replace(program, contract=contract).with_functions(*functions)
        return PassResult(rewritten.without_function("target"), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        for k in program.contract.num_speculative_tokens:
            (logits,) = results_of(program.functions[f"verify_{k}"].graph)
            rows = program.contract.nodes(k) + 1
            promise(type_of(logits).shape[0] == rows, f"verify_{k} scores {type_of(logits)}")
