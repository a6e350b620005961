"""Draft, verify and accept as one function: nothing returns to the host inside a round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from specc.ir import Role, Round, SpeculativeProgram, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import Builder, type_of
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise

aten = torch.ops.aten
ONE = TensorType("i64", (1,))


@dataclass(frozen=True)
class FuseRound(Pass):
    """Add round_K for each K, or round_K_dD for each K > 0 and depth D of the drafter.

    Before: draft, verify_K and accept_K, each called by the host
    After:  the same, and round_K(root, length, temperature, seed, ...) -> (tokens[K+1], accepted)

        1. draft: K tokens, from the drafter's functions, or an input where it is on the host
        2. verify_K on root and drafts at positions length .. length + K
        3. accept_K

    `previous`, where a round takes it, is the token before the root; at length 0 there is none, and it
    is the root. Commit is the host's: it adds accepted + 1 to the length. A drafter chooses by the same rule and
    noise as the target, so that it agrees as often as it can.
    """

    name: ClassVar[str] = "fuse-round"

    def requires(self, program: SpeculativeProgram) -> None:
        need("accept_0" in program.functions, "there is no accept", "build-accept")
        drafts = any(f.role is Role.DRAFT for f in program.functions.values())
        silent = program.contract.num_speculative_tokens == (0,)
        attach = "prune-layers, attach-draft-model or attach-adapter"
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
        self.root = self.builder.input("root", ONE)
        self.length = self.builder.input("length", ONE)
        self.temperature = self.builder.input("temperature", TensorType("f64", (1,)))
        self.seed = self.builder.input("seed", ONE)

    def function(self) -> Function:
        k, builder = self.k, self.builder
        block = TensorType("i64", (k + 1,))
        drafts = self._drafts() if k else []
        tokens = self.root
        if drafts:
            tokens = builder.op(aten.cat.default, [self.root, *drafts], type_=block)
        positions = self._positions(k + 1, 0) if k else self.length
        functions = self.program.functions
        (logits,) = builder.call(functions[f"verify_{k}"], [tokens, positions])
        arguments = [tokens, logits, self.length, self.temperature, self.seed]
        results = builder.call(functions[f"accept_{k}"], arguments)
        name = f"round_{k}_d{self.depth}" if self.depth else f"round_{k}"
        return Function(name, Role.ROUND, builder.output(*results), ("tokens", "accepted"))

    def _drafts(self) -> list[fx.Node]:
        """K tokens, or one value of K tokens."""
        if self.program.contract.host:
            return [self._input("drafts", TensorType("i64", (self.k,)))]
        if self.depth:
            return self._adaptive()
        previous = None
        if "draft_first" in self.program.functions:
            previous = self._input("previous", ONE)
        drafts: list[fx.Node] = []
        token = self.root
        for step in range(self.k):
            at = self._positions(1, step)
            if step == 0 and previous is not None:
                pair = TensorType("i64", (2,))
                rows = self.builder.op(aten.cat.default, [previous, token], type_=pair)
                logits = self._call("draft_first", rows, self._positions(2, -1))[0]
            else:
                logits = self._call("draft", token, at)[0]
            token = self._choose(token, logits, at)
            drafts.append(token)
        return drafts

    def _adaptive(self) -> list[fx.Node]:
        tap = f"tap.{self.program.model.num_layers - self.depth}"
        row = self._input("tap_row", ONE)
        state = self.builder.state(tap, self.program.state[tap].type)
        width = TensorType("f32", (1, self.program.model.hidden_size))
        hidden = self.builder.op(ops.row.default, state, row, type_=width)
        drafts: list[fx.Node] = []
        token = self.root
        for step in range(self.k):
            at = self._positions(1, step)
            logits, hidden = self._call(f"draft_d{self.depth}", token, at, hidden)
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

    def _positions(self, count: int, offset: int) -> fx.Node:
        type_ = TensorType("i64", (count,))
        return self.builder.op(ops.positions.default, self.length, count, offset, type_=type_)

    def _input(self, name: str, type_: TensorType) -> fx.Node:
        """An input added late: placeholders stay in front."""
        last = [n for n in self.builder.graph.nodes if n.op == "placeholder"][-1]
        with self.builder.graph.inserting_after(last):
            node = self.builder.graph.placeholder(name)
        node.meta["type"] = type_
        assert type_of(node) == type_
        return node
