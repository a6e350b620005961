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
from specc.ir.round_inputs import EXTEND_INPUTS, commit_inputs, round_inputs
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.propose import RoundWriter, proposal_name
from specc.passes.replay import written_state

aten = torch.ops.aten


@dataclass(frozen=True)
class FuseRound(Pass):
    """Add round_K for each K, or round_K_dD for each K > 0 and depth D of the drafter.

    Before: propose_K, verify_K and accept_K, each called by the host
    After:  the same, and round_K(root, length, first_row, temperature, seed, ...)
            -> (tokens[K+1], accepted)

        1. propose_K: K tokens; an input where the drafter is on the host
        2. verify_K on root and drafts at positions length .. length + K, in the cache rows of this
           text, which begin at first_row
        3. accept_K
        4. where drafts are a tree: cache_move of whatever verify_K wrote, so that the accepted path stands in
           consecutive rows; commit_K(rows[K+1], nodes[K+1]) does that alone, where the host gives the tree

    Commit is the host's: it adds accepted + 1 to the length. Where accept_K is not the rule that a text
    asks for (penalties, grammars), the host plays the pieces, which `rounds` names, and chooses itself.
    A drafter that reads the target's features is first extended over what was committed since it last
    was: `next_tokens` and `positions`, T rows of which the last is that before the root.
    """

    name: ClassVar[str] = "fuse-round"

    def requires(self, program: SpeculativeProgram) -> None:
        need("accept_0" in program.functions, "there is no accept", "build-accept")
        host = program.contract.host or program.contract.num_speculative_tokens == (0,)
        drafts = any(f.role is Role.DRAFT for f in program.functions.values())
        attach = "prune-layers, or the attach- pass of the drafter"
        need(host or drafts, "nothing drafts", attach)
        proposes = any(n.startswith("propose_") for n in program.functions)
        need(host or proposes, "nothing proposes a block", "build-propose")

    def call(self, program: SpeculativeProgram) -> PassResult:
        if program.rounds:
            return PassResult(program, modified=False)
        contract = program.contract
        rounds = tuple(
            _parts(program, k, depth)
            for k in contract.num_speculative_tokens
            for depth in (contract.depths if k and contract.depths else (0,))
        )
        functions = [_writer(program, played).function() for played in rounds]
        functions += [_commit(program, played) for played in rounds if played.commit]
        return PassResult(replace(program, rounds=rounds).with_functions(*functions), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        for function in program.functions.values():
            if function.role is Role.ROUND:
                calls = [str(n.target) for n in function.graph.nodes if n.op == "call_module"]
                promise(calls[-1].startswith("accept_"), f"{function.name} does not end in accept")


def _parts(program: SpeculativeProgram, k: int, depth: int) -> Round:
    """What a round is made of, under which the engine may also call it piece by piece."""
    name = f"round_{k}_d{depth}" if depth else f"round_{k}"
    if k and program.contract.tree is not None:
        return Round(name, k, depth, nodes=program.contract.nodes(k))
    propose = None if program.contract.host or not k else proposal_name(k, depth)
    commit = f"commit_{k}" if k and program.contract.given_trees else None
    return Round(name, k, depth, propose, f"verify_{k}", commit=commit)


def _writer(program: SpeculativeProgram, played: Round) -> _Round:
    tree = played.k > 0 and program.contract.branches
    return (_TreeRound if tree else _Round)(program, played)


def _commit(program: SpeculativeProgram, played: Round) -> Function:
    """commit_K: the end of a tree's round, where the host chose the path."""
    builder = Builder()
    rows, nodes = (builder.input(n, t) for n, t in commit_inputs(played.k).items())
    _move(builder, program, program.functions[f"verify_{played.k}"], rows, nodes, rows)
    return Function(f"commit_{played.k}", Role.COMMIT, builder.output(), ())


def _move(
    builder: Builder, program: SpeculativeProgram, verify: Function, rows: fx.Node, nodes: fx.Node,
    target: fx.Node,
) -> None:  # fmt: skip
    """What `verify` wrote at those of `rows` that `nodes` [K+1] name, to rows `target` [K+1]."""
    source = builder.op(ops.take.default, rows, nodes, type_=type_of(nodes))
    for name in written_state(program, verify):
        state = builder.state(name, program.state[name].type)
        builder.op(ops.cache_move.default, state, source, target)


class _Round(RoundWriter):
    """Builds one round function."""

    def __init__(self, program: SpeculativeProgram, played: Round) -> None:
        super().__init__(program, played.k)
        self.played = played

    def function(self) -> Function:
        k, builder = self.k, self.builder
        block = TensorType("i64", (k + 1,))
        tokens = self.root
        if k:
            tokens = builder.op(aten.cat.default, [self.root, self._drafts()], type_=block)
        functions = self.program.functions
        (logits,) = builder.call(functions[f"verify_{k}"], [tokens, *self.place(0, k + 1)])
        arguments = [tokens, logits, self.length, self.temperature, self.seed]
        results = builder.call(functions[f"accept_{k}"], arguments)
        graph = builder.output(*results)
        return Function(self.played.function, Role.ROUND, graph, ("tokens", "accepted"))

    def _drafts(self) -> fx.Node:
        """K tokens: of the drafter's own function, or given."""
        if self.played.propose is None:
            return self._input("drafts")
        return self._proposed(self.program.functions[self.played.propose])[0]

    def _proposed(self, propose: Function) -> list[fx.Node]:
        """The drafter's own function; inputs that every round has are the round's, others become its own."""
        given = (self.root, self.length, self.first_row, self.temperature, self.seed)
        known = {n.name: n for n in given}
        args = [known.get(n.name) or self._input(n.name) for n in propose.inputs]
        return self.builder.call(propose, args)

    def _input(self, name: str) -> fx.Node:
        """An input of the engine's; added late, it still stands in front."""
        graph = self.builder.graph
        last = [n for n in graph.nodes if n.op == "placeholder"][-1]
        with graph.inserting_after(last):
            return self.builder.input(name, (EXTEND_INPUTS | round_inputs(self.k))[name])


class _TreeRound(_Round):
    """A round whose drafts are a tree of N nodes."""

    def function(self) -> Function:
        k, builder, functions = self.k, self.builder, self.program.functions
        every = self.program.contract.nodes(k) + 1
        type_ = TensorType("i64", (every,))
        if self.program.contract.given_trees:
            drafts, parents, depths = (self._input(n) for n in ("drafts", "parents", "depths"))
            tokens = builder.op(aten.cat.default, [self.root, drafts], type_=type_)
        else:
            tokens, parents, depths = self._proposed(functions[f"propose_{k}"])
        # As rows are positions counted from the text's first, positions are depths counted from the root's.
        positions = builder.op(ops.rows.default, depths, self.length, type_=type_)
        rows = self.place(0, every)[1]
        verify = functions[f"verify_{k}"]
        (logits,) = builder.call(verify, [tokens, positions, rows, parents])
        arguments = [tokens, parents, logits, self.length, self.temperature, self.seed]
        chosen, accepted, nodes = builder.call(functions[f"accept_{k}"], arguments)
        _move(builder, self.program, verify, rows, nodes, self.place(0, k + 1)[1])
        graph = builder.output(chosen, accepted)
        return Function(self.played.function, Role.ROUND, graph, ("tokens", "accepted"))
