"""A drafter that never says rare tokens need not compute their logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from specc.errors import PassError
from specc.ir import Role, SpeculativeProgram, Weight
from specc.ir.graphs import copy_graph, results_of, type_of, weight_name
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise, same
from specc.passes.head_rows import call_with_rows

SUFFIX = ".trimmed"
"""Ends the names of what replaces a head and its matrix."""

PLACES = "draft.places"
"""i32[V], for each token id its place among the head's rows; the one after the last for ids without one."""


@dataclass(frozen=True)
class TrimDraftVocabulary(Pass):
    """Drafts compute logits of the tokens `ids` alone; all others are minus infinity.

    Before: draft: logits = call head(x, @norm, @head)                 @head: f32[V, H]
    After:  draft: logits = call head.trimmed(x, @norm, @head.trimmed, @draft.places)     [F, H], i32[V]

    Only proposals change, so the text does not. Logits keep their places, so that a drafter chooses with the same
    noise as the target. The target's head and all embeddings stay whole and shared.
    """

    name: ClassVar[str] = "trim-draft-vocabulary"

    ids: tuple[int, ...] = ()
    """Token ids, ascending: as a rule the most frequent ones."""

    def requires(self, program: SpeculativeProgram) -> None:
        attach = "prune-layers, attach-draft-model or attach-adapter"
        need(
            any(f.role is Role.DRAFT for f in program.functions.values()), "nothing drafts", attach
        )
        known = program.model.vocab_size
        good = list(self.ids) == sorted(set(self.ids)) and all(0 <= i < known for i in self.ids)
        if not good or len(self.ids) in (0, known):
            raise PassError(
                "SPECC-E0362", f"a draft vocabulary of {len(self.ids)} tokens cannot be made",
                expected=f"some, not all, of the ids below {known}, ascending",
                cure="choose another --draft-vocab-size",
            )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        if program.contract.draft_vocab_size:
            same("draft vocabulary", program.contract.draft_vocab_size, len(self.ids))
            program.weights.added({PLACES: self._places(program)})  # refuses other ids
            return PassResult(program, modified=False)
        weights, functions = {PLACES: self._places(program)}, dict[str, Function]()
        for function in program.functions.values():
            if function.role is Role.DRAFT:
                functions[function.name] = self._draft(program, function, weights, functions)
        contract = replace(program.contract, draft_vocab_size=len(self.ids))
        rewritten = replace(program, contract=contract, weights=program.weights.added(weights))
        return PassResult(rewritten.replacing(*functions.values()), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        for function in program.functions.values():
            heads = [n for n in function.graph.nodes if n.meta.get("part") == "head"]
            trimmed = all(str(n.target).endswith(SUFFIX) for n in heads)
            promise(trimmed or function.role is not Role.DRAFT, f"{function.name} has a whole head")

    def _places(self, program: SpeculativeProgram) -> Weight:
        """Padding of the head, beyond the vocabulary, has no logits either."""
        (logits, *_) = results_of(program.functions[_a_draft(program)].graph)
        places = torch.full((int(type_of(logits).shape[-1]),), len(self.ids), dtype=torch.int32)
        places[list(self.ids)] = torch.arange(len(self.ids), dtype=torch.int32)
        return Weight.of(places)

    def _draft(
        self, program: SpeculativeProgram, draft: Function, weights: dict[str, Weight],
        functions: dict[str, Function],
    ) -> Function:  # fmt: skip
        graph, _ = copy_graph(draft.graph)
        for call in [n for n in graph.nodes if n.meta.get("part") == "head"]:
            head = program.functions[str(call.target)]
            functions[head.name + SUFFIX] = call_with_rows(
                call, head, self.ids, SUFFIX, PLACES, program.weights, weights
            )
        for node in [n for n in graph.nodes if weight_name(n) is not None and not n.users]:
            graph.erase_node(node)
        return Function(draft.name, draft.role, graph, draft.outputs)


def _a_draft(program: SpeculativeProgram) -> str:
    return next(n for n, f in program.functions.items() if f.role is Role.DRAFT)
