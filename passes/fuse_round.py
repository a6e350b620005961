"""Draft, verify and accept as one function: nothing returns to the host inside a round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from specc.ir import Role, Round, SpeculativeProgram, TensorType
from specc.ir.dialect import ops
from specc.ir.program import Function
from specc.ir.round_inputs import EXTEND_INPUTS, round_inputs
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.propose import RoundWriter

aten = torch.ops.aten


@dataclass(frozen=True)
class FuseRound(Pass):
    """Add round_K for each K, or round_K_dD for each K > 0 and depth D of the drafter.

    Before: draft, verify_K and accept_K, each called by the host
    After:  the same, and round_K(root, length, first_row, temperature, seed, ...)
            -> (tokens[K+1], accepted)

        1. draft: K tokens, from the drafter's functions, or an input where it is on the host
        2. verify_K on root and drafts at positions length .. length + K, in the cache rows of this
           text, which begin at first_row
        3. accept_K

    `previous`, where a round takes it, is the token before the root; at length 0 there is none, and it
    is the root. A drafter that reads the target's features is first extended over what was committed since
    it last was: `next_tokens` and `positions`, T rows of which the last is that before the root.
    Commit is the host's: it adds accepted + 1 to the length. A drafter chooses by the same rule and
    noise as the target, so that it agrees as often as it can.
    """

    name: ClassVar[str] = "fuse-round"

    def requires(self, program: SpeculativeProgram) -> None:
        need("accept_0" in program.functions, "there is no accept", "build-accept")
        drafts = any(f.role is Role.DRAFT for f in program.functions.values())
        silent = program.contract.num_speculative_tokens == (0,)
        attach = "prune-layers, or the attach- pass of the drafter"
        need(program.contract.host or drafts or silent, "nothing drafts", attach)

    def call(self, program: SpeculativeProgram) -> PassResult:
        if program.rounds:
            return PassResult(program, modified=False)
        functions, rounds = [], []
        for k in program.contract.num_speculative_tokens:
            for depth in program.contract.depths if k and program.contract.depths else (0,):
                functions.append(_Round(program, k, depth).function())
                rounds.append(Round(functions[-1].name, k, depth))
        fused = replace(program, rounds=tuple(rounds)).with_functions(*functions)
        return PassResult(fused, modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        for function in program.functions.values():
            if function.role is Role.ROUND:
                calls = [str(n.target) for n in function.graph.nodes if n.op == "call_module"]
                promise(calls[-1].startswith("accept_"), f"{function.name} does not end in accept")


class _Round(RoundWriter):
    """Builds one round function."""

    def __init__(self, program: SpeculativeProgram, k: int, depth: int) -> None:
        super().__init__(program, k)
        self.depth = depth

    def function(self) -> Function:
        k, builder = self.k, self.builder
        block = TensorType("i64", (k + 1,))
        drafts = self._drafts() if k else []
        tokens = self.root
        if drafts:
            tokens = builder.op(aten.cat.default, [self.root, *drafts], type_=block)
        functions = self.program.functions
        (logits,) = builder.call(functions[f"verify_{k}"], [tokens, *self.place(0, k + 1)])
        arguments = [tokens, logits, self.length, self.temperature, self.seed]
        results = builder.call(functions[f"accept_{k}"], arguments)
        name = f"round_{k}_d{self.depth}" if self.depth else f"round_{k}"
        return Function(name, Role.ROUND, builder.output(*results), ("tokens", "accepted"))

    def _drafts(self) -> list[fx.Node]:
        """K tokens, or one value of K tokens."""
        if self.program.contract.host:
            return [self._input("drafts")]
        if self.depth:
            return self._adaptive()
        if f"propose_{self.k}" in self.program.functions:
            return [self._proposed(self.program.functions[f"propose_{self.k}"])]
        previous = None
        if "draft_first" in self.program.functions:
            previous = self._input("previous")
        drafts: list[fx.Node] = []
        token = self.root
        for step in range(self.k):
            if step == 0 and previous is not None:
                pair = TensorType("i64", (2,))
                tokens = self.builder.op(aten.cat.default, [previous, token], type_=pair)
                logits = self.call("draft_first", tokens, *self.place(-1, 2))[0]
                at = self.length
            else:
                at, row = self.place(step)
                logits = self.call("draft", token, at, row)[0]
            token = self.choice(token, logits, at)
            drafts.append(token)
        return drafts

    def _proposed(self, propose: Function) -> fx.Node:
        """The drafter's own function; inputs that every round has are the round's, others become its own."""
        given = (self.root, self.length, self.first_row, self.temperature, self.seed)
        known = {n.name: n for n in given}
        args = [known.get(n.name) or self._input(n.name) for n in propose.inputs]
        return self.builder.call(propose, args)[0]

    def _adaptive(self) -> list[fx.Node]:
        tap = f"tap.{self.program.model.num_layers - self.depth}"
        tap_row = self._input("tap_row")
        state = self.builder.state(tap, self.program.state[tap].type)
        width = TensorType("f32", (1, self.program.model.hidden_size))
        hidden = self.builder.op(ops.row.default, state, tap_row, type_=width)
        drafts: list[fx.Node] = []
        token = self.root
        for step in range(self.k):
            at, row = self.place(step)
            logits, hidden = self.call(f"draft_d{self.depth}", token, at, row, hidden)
            token = self.choice(token, logits, at)
            drafts.append(token)
        return drafts

    def _input(self, name: str) -> fx.Node:
        """An input of the engine's; added late, it still stands in front."""
        graph = self.builder.graph
        last = [n for n in graph.nodes if n.op == "placeholder"][-1]
        with graph.inserting_after(last):
            return self.builder.input(name, (EXTEND_INPUTS | round_inputs(self.k))[name])
