"""Let a drafter in the graph propose a whole block: one function for each K, and depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from specc.ir import SpeculativeProgram, TensorType
from specc.ir.dialect import ops
from specc.ir.program import Function
from specc.ir.round_inputs import round_inputs
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.propose import Proposal, proposal_name

aten = torch.ops.aten
PAIR = TensorType("i64", (2,))


@dataclass(frozen=True)
class BuildPropose(Pass):
    """Chain a drafter's steps, for each K > 0 and each depth D of the drafter.

    Before: draft(tokens[1], positions[1], rows[1]) -> logits[1, V]
    After:  the same, and propose_K(root, length, first_row, temperature, seed, ...)
            -> (drafts[K], the logits[1, V] of each), or propose_K_dD where the drafter has depths

    Each draft is chosen by the rule and noise of accept, as the target will choose, so that it agrees as
    often as it can. `previous`, where a drafter begins with two rows (draft_first), is the token before
    the root; at length 0 there is none, and it is the root. A drafter behind an adapter begins with the
    hidden state at `tap_row`. Trained drafters bring their own propose_K; drafters on the host have none.
    """

    name: ClassVar[str] = "build-propose"

    def requires(self, program: SpeculativeProgram) -> None:
        need("verify_0" in program.functions, "K is not known", "build-verify")

    def call(self, program: SpeculativeProgram) -> PassResult:
        contract = program.contract
        functions = []
        for k in contract.num_speculative_tokens:
            for depth in contract.depths or (0,):
                there = contract.host or proposal_name(k, depth) in program.functions
                step = f"draft_d{depth}" if depth else "draft"
                if k and not there and step in program.functions:
                    functions.append(_chain(program, k, depth, step))
        return PassResult(program.with_functions(*functions), modified=bool(functions))

    def ensures(self, program: SpeculativeProgram) -> None:
        contract = program.contract
        drafts = any(n.startswith("draft") for n in program.functions) and not contract.host
        for k in contract.num_speculative_tokens if drafts else ():
            there = [proposal_name(k, d) in program.functions for d in contract.depths or (0,)]
            promise(k == 0 or all(there), f"nothing proposes {k} tokens")


def _chain(program: SpeculativeProgram, k: int, depth: int, step: str) -> Function:
    """`step` for each draft; the first may want the token before the root, or a hidden state."""
    first = "draft_first" if not depth and "draft_first" in program.functions else ""
    extra = ("tap_row",) if depth else ("previous",) if first else ()
    proposal = Proposal(program, k, **{name: round_inputs(k)[name] for name in extra})
    builder = proposal.builder
    hidden = []
    if depth:
        tap = program.state[f"tap.{program.model.num_layers - depth}"]
        width = TensorType("f32", (1, program.model.hidden_size))
        state = builder.state(tap.name, tap.type)
        hidden = [builder.op(ops.row.default, state, proposal.inputs["tap_row"], type_=width)]
    for number in range(k):
        if number == 0 and first:
            pair = [proposal.inputs["previous"], proposal.root]
            tokens = builder.op(aten.cat.default, pair, type_=PAIR)
            logits, *hidden = proposal.call(first, tokens, *proposal.place(-1, 2))
        else:
            at, row = proposal.place(number)
            logits, *hidden = proposal.call(step, proposal.before, at, row, *hidden)
        proposal.choose(logits)
    return proposal.end(depth)
