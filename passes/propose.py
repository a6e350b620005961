"""Writes functions about one round, `propose_K` first of all: K drafts, each chosen as the target will choose."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from specc.ir import Function, Role, SpeculativeProgram, TensorType, Tree
from specc.ir.dialect import ops
from specc.ir.graphs import Builder
from specc.ir.round_inputs import round_inputs
from specc.passes.base import same

aten = torch.ops.aten
ONE = TensorType("i64", (1,))


class RoundWriter:
    """What any function about one round needs while it is written: the round's inputs, places and choices."""

    def __init__(self, program: SpeculativeProgram, k: int) -> None:
        self.program, self.k, self.builder = program, k, Builder()
        known = round_inputs(k)
        self.root, self.length, self.first_row, self.temperature, self.seed = (
            self.builder.input(name, known[name])
            for name in ("root", "length", "first_row", "temperature", "seed")
        )

    def call(self, name: str, *args: fx.Node) -> list[fx.Node]:
        """A call of another function."""
        return self.builder.call(self.program.functions[name], args)

    def position(self, offset: int, count: int = 1) -> fx.Node:
        """`count` positions from length + offset on."""
        if (offset, count) == (0, 1):
            return self.length
        type_ = TensorType("i64", (count,))
        return self.builder.op(ops.positions.default, self.length, count, offset, type_=type_)

    def place(self, offset: int, count: int = 1) -> tuple[fx.Node, fx.Node]:
        """`count` positions from length + offset on, and their cache rows."""
        at = self.position(offset, count)
        type_ = TensorType("i64", (count,))
        return at, self.builder.op(ops.rows.default, at, self.first_row, type_=type_)

    def row(self, x: fx.Node, index: int) -> fx.Node:
        """Row `index` of x f32[N, D], [1, D]; @constant.<index> must be there."""
        where = self.builder.weight(f"constant.{index}", TensorType("i64", (1,)))
        one = TensorType("f32", (1, x.meta["type"].shape[1]))
        return self.builder.op(ops.row.default, x, where, type_=one)

    def choice(self, token: fx.Node, logits: fx.Node, at: fx.Node) -> fx.Node:
        """The token after `token` (at position `at`) from logits f32[1, V], by the rule of accept with no drafts.

        Greedy, or with the noise of its position: as the target will choose.
        """
        vocabulary = self.program.model.vocab_size
        arguments = (token, logits, at, self.temperature, self.seed, vocabulary)
        return self.builder.ops(ops.accept.default, *arguments, types=(ONE, ONE))[0]


class Proposal(RoundWriter):
    """A function propose_K(root, length, first_row, temperature, seed, ...), while it is written.

    Its results are drafts i64[K] and, for each draft, the logits f32[1, V] that it was chosen from, and a confidence
    f32[1, 1] where the drafter has a head for that. A host that keeps
    drafts by p/q gives it a seed of its own, so that drafts are drawn, and by a noise that nothing else has.
    """

    def __init__(self, program: SpeculativeProgram, k: int, **more: TensorType) -> None:
        super().__init__(program, k)
        self.inputs = {name: self.builder.input(name, type_) for name, type_ in more.items()}
        self.drafts: list[fx.Node] = []
        self.logits: list[fx.Node] = []
        self.confidences: list[fx.Node] = []

    @property
    def before(self) -> fx.Node:
        """The token before the next draft."""
        return self.drafts[-1] if self.drafts else self.root

    def choose(self, logits: fx.Node, confidence: fx.Node | None = None) -> None:
        """The next draft from its logits f32[1, V].

        `confidence` f32[1, 1] foretells whether it will be kept, from the drafts before it alone: a cut that saw the
        draft itself would change the law of what is kept by p/q.
        """
        at = self.position(len(self.drafts))
        self.drafts.append(self.choice(self.before, logits, at))
        self.logits.append(logits)
        if confidence is not None:
            self.confidences.append(confidence)

    def end(self, depth: int = 0) -> Function:
        """The function; `depth` where the drafter has depths."""
        assert len(self.drafts) == self.k
        (drafts,) = self.drafts if self.k == 1 else [
            self.builder.op(aten.cat.default, self.drafts, type_=TensorType("i64", (self.k,)))
        ]  # fmt: skip
        told = {"logits": self.logits, "confidence": self.confidences}
        names = [f"{name}_{j}" for name, nodes in told.items() for j in range(len(nodes))]
        graph = self.builder.output(drafts, *self.logits, *self.confidences)
        return Function(proposal_name(self.k, depth), Role.DRAFT, graph, ("drafts", *names))


def proposal_name(k: int, depth: int = 0) -> str:
    """Of the function that proposes `k` tokens, `depth` deep where the drafter has depths."""
    return f"propose_{k}_d{depth}" if depth else f"propose_{k}"


def same_proposals(program: SpeculativeProgram, ks: Sequence[int], tree: Tree | None) -> None:
    """Raise PassError (SPECC-E0334) if the functions that are there propose other K, or another tree."""
    same("K", proposals(program), list(ks))
    same("tree", program.contract.tree, tree)


def proposals(program: SpeculativeProgram) -> list[int]:
    """K of every propose_K that there is."""
    return [int(n.removeprefix("propose_")) for n in program.functions if n.startswith("propose_")]
