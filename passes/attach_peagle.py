"""P-EAGLE: EAGLE-3's layers over all drafts at once, rows of unknown tokens behind the one that is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, fx

from specc.errors import PassError
from specc.ir import SpeculativeProgram, Tree, Weight
from specc.ir.importers.drafters.spec import DrafterCheckpoint, Kind
from specc.ir.program import Function
from specc.ir.round_inputs import EXTEND_INPUTS
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.drafter_layers import caches, given, refuse_unknown_layers
from specc.passes.eagle_leaves import EagleLeaves, eagle_weights, with_contract
from specc.passes.keep_features import FEATURES
from specc.passes.leaf_writer import PREFIX
from specc.passes.propose import Proposal, same_proposals
from specc.passes.propose_tree import TreeProposal, refuse_unfit, tree_weights


@dataclass(frozen=True)
class AttachPeagle(Pass):
    """Add a drafter that pairs features with tokens, and drafts K of them in one pass (arXiv 2602.01469).

    Before: target keeps $features
    After:  the same, and, over the drafter's own caches,
            extend(next_tokens[T], positions[T], rows[T]) -> ()
            draft_first(next_tokens[T], positions[T], rows[T]) -> (logits[1, V], hidden[1, H]) of the last row
            propose_K(root, ..., next_tokens[T], positions[T], rows[T]) -> drafts[K]: draft_first, then
            K - 1 rows of the mask token and the mask feature at the places that follow, in one call
            or, with a tree of N nodes, -> (tokens[N+1], parents[N+1], depths[N+1])

    The mask feature is what fc makes of the checkpoint's `mask_hidden`. What the mask rows write is written again
    by the next extension.
    """

    name: ClassVar[str] = "attach-peagle"

    drafter: DrafterCheckpoint | None = None
    num_speculative_tokens: tuple[int, ...] = (0, 2, 4)
    max_model_len: int = 2048
    tree: Tree | None = None

    def requires(self, program: SpeculativeProgram) -> None:
        need(FEATURES in program.state, "the target keeps no features", "keep-features")
        spec = given(self.drafter).spec
        if spec.kind is not Kind.PEAGLE or spec.block is None:
            raise PassError(
                "SPECC-E0367", f"a {spec.kind} drafter has no mask feature",
                expected=Kind.PEAGLE, cure="choose another drafter, or --method suffix",
            )  # fmt: skip
        if max(self.num_speculative_tokens) > spec.most_drafts:
            raise PassError(
                "SPECC-E0368", f"the drafter was trained for {spec.most_drafts} drafts",
                expected=f"K up to {spec.most_drafts}", found=str(max(self.num_speculative_tokens)),
                cure="correct --num-speculative-tokens",
            )  # fmt: skip
        refuse_unknown_layers(spec)
        tokens = spec.draft_vocab_size if spec.mapped else spec.vocab_size
        refuse_unfit(self.tree, self.num_speculative_tokens, tokens)

    def call(self, program: SpeculativeProgram) -> PassResult:
        drafter = given(self.drafter)
        spec, ks = drafter.spec, [k for k in self.num_speculative_tokens if k]
        assert spec.block is not None
        weights = eagle_weights(drafter, self.max_model_len) | tree_weights(self.tree, ks)
        feature = mask_feature(drafter)
        for k in ks:
            if k > 1:
                weights[_tokens(k)] = Weight.of(torch.full((k - 1,), spec.block.mask_token_id))
                weights[_features(k)] = Weight.of(feature.expand(k - 1, -1).contiguous())
        for index in range(max(ks) - 1):
            weights[f"constant.{index}"] = Weight.of(torch.tensor([index]))
        if "extend" in program.functions:
            program.weights.added(weights)  # refuses other contents
            same_proposals(program, ks, self.tree)
            return PassResult(program, modified=False)
        program = replace(program, weights=program.weights.added(weights)).with_state(*caches(spec))
        leaves = EagleLeaves(program, spec)
        leaves.program = with_contract(leaves.program, spec, self.tree, 0)
        leaves.program = leaves.program.with_functions(*leaves.extending())
        functions = [self._propose(leaves, k) for k in ks]
        return PassResult(leaves.program.with_functions(*functions), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        promise({"extend", "draft_first"} <= set(program.functions), "it cannot draft")

    def _propose(self, leaves: EagleLeaves, k: int) -> Function:
        program, tree = leaves.program, self.tree
        if tree is not None:
            grown = TreeProposal(program, k, **EXTEND_INPUTS)
            return grown.of_marginals(_logits(leaves, grown, k), tree)
        proposal = Proposal(program, k, **EXTEND_INPUTS)
        for logits in _logits(leaves, proposal, k):
            proposal.choose(logits)
        return proposal.end()


def mask_feature(drafter: DrafterCheckpoint) -> Tensor:
    """What the drafter reads in place of an unknown feature, f32[H].

    Raises PassError (SPECC-E0366) where every tap has a norm of its own: whether trainers norm the mask, too, no
    format says.
    """
    spec, weights = drafter.spec, drafter.weights
    if spec.fuse.per_tap_norm:
        raise PassError(
            "SPECC-E0366", "a peagle drafter with a norm for each tap is not built yet",
            where="fc_norm of the drafter", expected="no norm before fc, or one",
            cure="choose another drafter, or --method suffix",
        )  # fmt: skip
    x = weights["mask_hidden"].load().float()
    if spec.fuse.pre_norm:
        scale = torch.rsqrt(x.pow(2).mean() + spec.norm_eps)
        x = x * scale * weights["input_norm.weight"].load().float()
    return weights["fc.weight"].load().float() @ x


def _tokens(k: int) -> str:
    return f"{PREFIX}masks.{k}"


def _features(k: int) -> str:
    return f"{PREFIX}mask_features.{k}"


def _logits(leaves: EagleLeaves, proposal: Proposal, k: int) -> list[fx.Node]:
    """Logits f32[1, V] of each of the K drafts."""
    program, builder = leaves.program, proposal.builder
    logits, _ = proposal.call("draft_first", *proposal.inputs.values())
    if k == 1:
        return [logits]
    tokens, features = (
        builder.weight(name, program.weights[name].type) for name in (_tokens(k), _features(k))
    )
    x = leaves.body(builder, tokens, list(proposal.place(0, k - 1)), features, k - 1)
    behind, _ = leaves.scored(builder, x, k - 1)
    return [logits, *([behind] if k == 2 else [proposal.row(behind, j) for j in range(k - 1)])]
