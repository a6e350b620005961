"""Let the target score what several texts drafted, in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from specc.ir import Role, SpeculativeProgram
from specc.ir.graphs import Builder, results_of, type_of
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.replay import parts_of, replay, token_inputs


@dataclass(frozen=True)
class BuildScore(Pass):
    """Keep the target's rows open: as many as the texts of a batch have drafts and roots.

    Before: target(tokens[T], positions[T], rows[T]) -> logits[T, V]
    After:  the same, and score(tokens[T], positions[T], rows[T]) -> logits[T, V]
            or, where drafts may be a tree, score(tokens[T], positions[T], rows[T], parents[T]) -> logits[T, V]

    The root and the drafts of one text follow each other; so do the texts. A row sees its own text alone, which
    begins at cache row rows[t] - positions[t], and parents are rows of the call. The leaves are those of prefill and
    verify_K, so that a text's logits have the bits that they have alone.
    """

    name: ClassVar[str] = "build-score"

    def requires(self, program: SpeculativeProgram) -> None:
        if "score" not in program.functions:
            parts_of(program)
            # (A tree that a graph grows is chosen inside its round, which scores for itself.)
            need(program.contract.tree is None, "the graph grows trees", "no tree")

    def call(self, program: SpeculativeProgram) -> PassResult:
        if "score" in program.functions:
            return PassResult(program, modified=False)
        builder = Builder()
        inputs = token_inputs(builder, "T", program.contract.branches)
        logits = replay(builder, program, "target", inputs, None)
        assert logits is not None
        score = Function("score", Role.SCORE, builder.output(logits), ("logits",))
        return PassResult(program.with_functions(score), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        (logits,) = results_of(program.functions["score"].graph)
        promise(type_of(logits).shape[0] == "T", f"score gives {type_of(logits)}")
