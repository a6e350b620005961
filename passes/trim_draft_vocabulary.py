"""A drafter that never says rare tokens need not compute their logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Role, SpeculativeProgram, Weight
from specc.ir.graphs import copy_graph, output_of, results_of, type_of, weight_name
from specc.ir.infer import infer_types
from specc.ir.program import Function
from specc.ir.types import TensorType
from specc.passes.base import Pass, PassResult, need, promise, same

aten = torch.ops.aten

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
            rows = [i for i, taken in enumerate(head.inputs) if _has_rows(head, taken)]
            args = list(call.args)
            with graph.inserting_before(call):
                for index in rows:
                    name = weight_name(args[index])
                    assert name is not None
                    weights[name + SUFFIX] = program.weights[name].rows(self.ids)
                    args[index] = graph.create_node("get_attr", f"{args[index].target}{SUFFIX}")
                    args[index].meta["type"] = weights[name + SUFFIX].type
                places = graph.create_node("get_attr", f"weight.{PLACES}")
                places.meta["type"] = weights[PLACES].type
            call.args, call.target = (*args, places), head.name + SUFFIX
            functions[call.target] = _trimmed(head, rows, len(self.ids), weights[PLACES].type)
        for node in [n for n in graph.nodes if weight_name(n) is not None and not n.users]:
            graph.erase_node(node)
        return Function(draft.name, draft.role, graph, draft.outputs)


def _a_draft(program: SpeculativeProgram) -> str:
    return next(n for n, f in program.functions.items() if f.role is Role.DRAFT)


def _has_rows(head: Function, taken: fx.Node) -> bool:
    """Whether a head's input has a row for each token: the matrix or the bias of the product that gives the logits."""
    last = [n for n in head.graph.nodes if n.target is aten.linear.default][-1]
    return taken in last.args[1:]


def _trimmed(head: Function, rows: list[int], count: int, places: TensorType) -> Function:
    """`head` on `count` rows, with its logits put in their places."""
    graph, copies = copy_graph(head.graph)
    for index in rows:
        node = copies[head.inputs[index]]
        node.meta["type"] = TensorType(type_of(node).dtype, (count, *type_of(node).shape[1:]))
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    with graph.inserting_after(last):
        where = graph.placeholder("places")
    where.meta["type"] = places
    (logits,) = results_of(graph)
    with graph.inserting_before(output_of(graph)):
        padded = graph.call_function(aten.constant_pad_nd.default, (logits, [0, 1], -torch.inf))
        spread = graph.call_function(aten.index_select.default, (padded, 1, where))
    output_of(graph).args = ((spread,),)
    infer_types(graph, head.name)
    if type_of(logits).shape != ("T", count) or type_of(spread) != type_of(
        results_of(head.graph)[0]
    ):
        raise PassError(
            "SPECC-E0363", "the head does more with its logits than can be done for some of them",
            where=head.name, found=str(type_of(logits)), cure="leave out --draft-vocab-size",
        )  # fmt: skip
    return Function(head.name + SUFFIX, head.role, graph, head.outputs)
