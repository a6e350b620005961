"""A second, smaller model with the same tokens as drafter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import DraftState, Owner, Role, SpeculativeProgram, StateBuffer, Weight
from specc.ir.graphs import Builder, state_name, type_of, weight_name
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise, same
from specc.passes.leaf_writer import PREFIX
from specc.passes.replay import parts_of, replay, token_inputs


@dataclass(frozen=True)
class AttachDraftModel(Pass):
    """Take another outlined program in: its leaves, weights and caches, under names of their own.

    Before: target, prefill (of the target)
    After:  the same; draft_first(tokens[2], positions[2], rows[2]) and
            draft(tokens[1], positions[1], rows[1]) -> logits[1, V]; prefill fills both models' caches

    A round begins with two rows, the last committed token and the root: after a block that was
    accepted whole, the drafter has not seen its last token yet. Writing a row twice writes the same
    values.
    """

    name: ClassVar[str] = "attach-draft-model"

    drafter: SpeculativeProgram | None = None
    """The drafter after the pipeline `drafter_model`: leaves called draft.*, state its own."""

    def requires(self, program: SpeculativeProgram) -> None:
        need("prefill" in program.functions, "there is no prefill", "gather-logits")
        if self.drafter is None:
            raise PassError("SPECC-E0354", "no drafter was given", cure="add --drafter MODEL")
        parts_of(self.drafter)
        leaves = [n for n, f in self.drafter.functions.items() if f.role is Role.LEAF]
        owners = {b.owner for b in self.drafter.state.values()}
        need(
            all(n.startswith(PREFIX) for n in leaves) and owners == {Owner.DRAFTER},
            "the drafter has names of the target", "the pipeline `drafter` on it",
        )  # fmt: skip
        theirs, ours = self.drafter.model.vocab_size, program.model.vocab_size
        if theirs != ours:
            raise PassError(
                "SPECC-E0355", "target and drafter have different vocabularies",
                expected=f"{ours} token ids", found=f"{theirs}",
                cure="choose a drafter of the same family (same tokenizer), or translate-tokens first",
            )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        assert self.drafter is not None
        if "draft" in program.functions:
            theirs = {PREFIX + name: weight for name, weight in self.drafter.weights.items()}
            program.weights.added(theirs)  # refuses other contents
            same("the drafter's weights", sorted(_drafters(program)), sorted(theirs))
            return PassResult(program, modified=False)
        merged = _merge(program, self.drafter)
        builder = Builder()
        inputs = token_inputs(builder, "T")
        replay(builder, merged, "prefill", inputs, None, head=False)
        replay(builder, merged, "draft.target", inputs, None, head=False)
        prefill = Function("prefill", Role.PREFILL, builder.output(), ())
        drafts = []
        for name, rows in (("draft_first", 2), ("draft", 1)):
            builder = Builder()
            last = builder.weight("constant.one", merged.weights["constant.one"].type)
            logits = replay(
                builder, merged, "draft.target", token_inputs(builder, rows), rows,
                head_row=last if rows == 2 else None,
            )  # fmt: skip
            assert logits is not None
            drafts.append(Function(name, Role.DRAFT, builder.output(logits), ("logits",)))
        said = self.drafter.contract.draft_vocab_size
        contract = replace(program.contract, state=DraftState.OWN, lag=1, draft_vocab_size=said)
        merged = replace(merged, contract=contract).with_functions(*drafts).replacing(prefill)
        return PassResult(merged.without_function("draft.target"), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        owners = {b.owner for b in program.state.values()}
        promise(owners == {Owner.TARGET, Owner.DRAFTER}, "the drafter has no cache of its own")


def _drafters(program: SpeculativeProgram) -> list[str]:
    return [name for name in program.weights if name.startswith(PREFIX)]


def _merge(program: SpeculativeProgram, drafter: SpeculativeProgram) -> SpeculativeProgram:
    """Both programs' parts in one; the drafter's target is called `draft.target`."""
    weights = {PREFIX + name: weight for name, weight in drafter.weights.items()}
    weights["constant.one"] = Weight.of(torch.ones(1, dtype=torch.int64))
    leaves = [f for f in drafter.functions.values() if f.role is Role.LEAF]
    source = drafter.functions["target"]
    builder = Builder()
    values: dict[fx.Node, fx.Node] = {}
    for node in source.graph.nodes:
        if (weight := weight_name(node)) is not None:
            values[node] = builder.weight(PREFIX + weight, type_of(node))
        elif (state := state_name(node)) is not None:
            values[node] = builder.state(state, type_of(node))
        else:
            values[node] = builder.graph.node_copy(node, values.__getitem__)
            values[node].meta = dict(node.meta)
    renamed = Function("draft.target", Role.DRAFT, builder.graph, source.outputs)
    buffers: list[StateBuffer] = list(drafter.state.values())
    return replace(program, weights=program.weights.added(weights)).with_functions(
        *leaves, renamed
    ).with_state(*buffers)  # fmt: skip
