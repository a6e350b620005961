"""Medusa: heads on the target's last hidden state, one for each place after the next token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from specc.errors import PassError
from specc.ir import SpeculativeProgram, Tree
from specc.ir.importers.drafters import DrafterCheckpoint, Kind, Medusa
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.drafter_layers import given
from specc.passes.eagle_leaves import read_features
from specc.passes.keep_features import FEATURES
from specc.passes.leaf_writer import PREFIX, Leaf, LeafWriter, shared
from specc.passes.propose import Proposal, proposals, same_proposals
from specc.passes.propose_tree import TreeProposal, refuse_unfit, tree_weights

aten = torch.ops.aten


@dataclass(frozen=True)
class AttachMedusa(Pass):
    """Add the K drafts of a round, for each K: one from each of the first K heads.

    Before: target keeps $features (the hidden state after the final norm)
    After:  the same, and propose_K(root, length, temperature, seed) -> drafts[K]:
            h = $features[length - 1]; draft j = choose(lm_head_j(<residual blocks of head j>(h)))

            or, with a tree, -> (tokens[N+1], parents[N+1], depths[N+1]): the ranks of the first K heads that
            it names, or the N likeliest of their products

    The row before the root gave the root itself, so head j gives the token j places after it. There is
    no state of the drafter's own, and no draft depends on another.
    """

    name: ClassVar[str] = "attach-medusa"

    drafter: DrafterCheckpoint | None = None
    num_speculative_tokens: tuple[int, ...] = (0, 2, 4)
    tree: Tree | None = None

    def requires(self, program: SpeculativeProgram) -> None:
        need(FEATURES in program.state, "the target keeps no features", "keep-features")
        spec = given(self.drafter).spec
        if spec.kind is not Kind.MEDUSA or spec.medusa is None:
            raise PassError(
                "SPECC-E0367", f"a {spec.kind} drafter has no Medusa heads",
                expected=Kind.MEDUSA, cure="choose another drafter, or --method suffix",
            )  # fmt: skip
        if max(self.num_speculative_tokens) > spec.medusa.heads:
            raise PassError(
                "SPECC-E0368", f"the drafter has {spec.medusa.heads} heads",
                expected=f"K up to {spec.medusa.heads}", found=str(max(self.num_speculative_tokens)),
                cure="correct --num-speculative-tokens",
            )  # fmt: skip
        refuse_unfit(self.tree, self.num_speculative_tokens, program.model.vocab_size)

    def call(self, program: SpeculativeProgram) -> PassResult:
        ks = [k for k in self.num_speculative_tokens if k]
        if proposals(program):
            same_proposals(program, ks, self.tree)
            return PassResult(program, modified=False)
        medusa = given(self.drafter).spec.medusa
        assert medusa is not None
        features = read_features(program)
        width = int(program.state[FEATURES].type.shape[-1])
        heads = shared([medusa_head(program, medusa, i, width) for i in range(max(ks))])
        contract = replace(program.contract, min_length=1, tree=self.tree)
        leaves = {leaf.function.name: leaf.function for leaf in (features, *heads)}
        known = program.weights.added(tree_weights(self.tree, ks))
        program = replace(program, contract=contract, weights=known)
        program = program.with_functions(*leaves.values())
        functions = [_propose(program, features, heads, k) for k in ks]
        return PassResult(program.with_functions(*functions), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        promise(proposals(program), "it cannot draft")


def _propose(program: SpeculativeProgram, features: Leaf, heads: list[Leaf], k: int) -> Function:
    tree = program.contract.tree
    proposal = Proposal(program, k) if tree is None else TreeProposal(program, k)
    (hidden,) = features.call(proposal.builder, program, proposal.place(-1)[1], rows=1)
    every = []
    for head in heads[:k]:
        every += head.call(proposal.builder, program, hidden, rows=1)
        if tree is None:
            proposal.choose(every[-1])
    if isinstance(proposal, TreeProposal):
        assert tree is not None
        return proposal.of_marginals(every, tree)
    return proposal.end()


def medusa_head(program: SpeculativeProgram, medusa: Medusa, number: int, width: int) -> Leaf:
    """Leaf: hidden states [T, H], H = `width` -> logits [T, V] of head `number`."""
    writer = LeafWriter(program, f"{PREFIX}head.{number}", "head")
    x = writer.value("x", "f32", "T", width)
    for block in range(medusa.blocks):
        y = writer.linear(x, f"{PREFIX}heads.{number}.blocks.{block}")
        x = writer.op(aten.add.Tensor, x, writer.op(aten.silu.default, y))
    return writer.end(writer.linear(x, f"{PREFIX}heads.{number}.lm_head"), names=("logits",))
