"""Draft, verify and accept as one function: nothing returns to the host inside a round."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from specc.ir import Role, Round, SpeculativeProgram, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import Builder
from specc.ir.program import Function
from specc.ir.round_inputs import EXTEND_INPUTS, round_inputs
from specc.passes.base import Pass, PassResult, need, promise

aten = torch.ops.aten
ONE = TensorType("i64", (1,))


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


class _Round:
    """Builds one round function."""

    def __init__(self, program: SpeculativeProgram, k: int, depth: int) -> None:
        self.program, self.k, self.depth = program, k, depth
        self.builder = Builder()
        self.root = self._input("root")
        self.length = self._input("length")
        self.first_row = self._input("first_row")
        self.temperature = self._input("temperature")
        self.seed = self._input("seed")

    def function(self) -> Function:
        k, builder = self.k, self.builder
        block = TensorType("i64", (k + 1,))
        drafts = self._drafts() if k else []
        tokens = self.root
        if drafts:
            tokens = builder.op(aten.cat.default, [self.root, *drafts], type_=block)
        functions = self.program.functions
        (logits,) = builder.call(functions[f"verify_{k}"], [tokens, *self._place(k + 1, 0)])
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
                logits = self._call("draft_first", tokens, *self._place(2, -1))[0]
                at = self.length
            else:
                at, row = self._place(1, step)
                logits = self._call("draft", token, at, row)[0]
            token = self._choose(token, logits, at)
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
            at, row = self._place(1, step)
            logits, hidden = self._call(f"draft_d{self.depth}", token, at, row, hidden)
            token = self._choose(token, logits, at)
            drafts.append(token)
        return drafts

    def _call(self, name: str, *args: fx.Node) -> list[fx.Node]:
        return self.builder.call(self.program.functions[name], args)

    def _choose(self, token: fx.Node, logits: fx.Node, at: fx.Node) -> fx.Node:
        """The token after `token` (at position `at`), by the rule of accept with no drafts."""
        vocabulary = self.program.model.vocab_size
        arguments = (token, logits, at, self.temperature, self.seed, vocabulary)
        return self.builder.ops(ops.accept.default, *arguments, types=(ONE, ONE))[0]

    def _place(self, count: int, offset: int) -> tuple[fx.Node, fx.Node]:
        """Positions length + offset, ... and their cache rows."""
        type_ = TensorType("i64", (count,))
        at = self.length
        if (count, offset) != (1, 0):
            at = self.builder.op(ops.positions.default, at, count, offset, type_=type_)
        return at, self.builder.op(ops.rows.default, at, self.first_row, type_=type_)

    def _input(self, name: str) -> fx.Node:
        """An input of the engine's; added late, it still stands in front."""
        graph = self.builder.graph
        placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        with graph.inserting_after(placeholders[-1]) if placeholders else nullcontext():
            return self.builder.input(name, (EXTEND_INPUTS | round_inputs(self.k))[name])
