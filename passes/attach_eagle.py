"""Drafters of one or a few layers that read the target's features and feed on their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from specc.errors import PassError
from specc.ir import DynamicTree, Role, SpeculativeProgram, TensorType, Tree
from specc.ir.dialect import ops
from specc.ir.graphs import Builder, type_of
from specc.ir.importers.drafters.spec import DrafterCheckpoint, Kind
from specc.ir.program import Function
from specc.ir.round_inputs import EXTEND_INPUTS
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.drafter_layers import caches, given, refuse_unknown_layers
from specc.passes.eagle_leaves import SCORED, EagleLeaves, eagle_weights, with_contract
from specc.passes.keep_features import FEATURES
from specc.passes.propose import Proposal, same_proposals
from specc.passes.propose_tree import TreeProposal, refuse_unfit, tree_weights

KINDS = (Kind.EAGLE, Kind.EAGLE3, Kind.MTP)


@dataclass(frozen=True)
class AttachEagle(Pass):
    """Add a drafter that pairs the feature of position i with the token at i + 1: EAGLE-1, -2, -3 and MTP.

    Before: target keeps $features
    After:  the same, and, over the drafter's own caches,
            extend(next_tokens[T], positions[T], rows[T]) -> ()
            draft_first(next_tokens[T], positions[T], rows[T]) -> (logits[1, V], hidden[1, H]) of the last row
            draft(tokens[1], positions[1], rows[1], hidden[1, H]) -> (logits[1, V], hidden[1, H])
            propose_K(root, ..., next_tokens[T], positions[T], rows[T]) -> drafts[K]: the one, then the other
            or, with a tree of N nodes, -> (tokens[N+1], parents[N+1], depths[N+1]); there is no draft then

    `extend` and `draft_first` read the target's features of `positions`; `next_tokens` are the tokens
    one place later, which are always known. `draft` reads the hidden state of the step before in a
    feature's place; the rows that it writes are written again by the next extension. A drafter with
    fewer tokens than the target gives -inf to those that it does not have. A level of a tree is drafted in one call,
    which runs those above it again, from the last extended row on: attention knows a row's ancestors within a call.
    """

    name: ClassVar[str] = "attach-eagle"

    drafter: DrafterCheckpoint | None = None
    num_speculative_tokens: tuple[int, ...] = (0, 2, 4)
    max_model_len: int = 2048
    tree: Tree | None = None

    def requires(self, program: SpeculativeProgram) -> None:
        need(FEATURES in program.state, "the target keeps no features", "keep-features")
        spec = given(self.drafter).spec
        if spec.kind not in KINDS:
            raise PassError(
                "SPECC-E0367", f"a {spec.kind} drafter does not feed on its own features",
                expected=", ".join(KINDS), cure="choose another drafter, or --method suffix",
            )  # fmt: skip
        refuse_unknown_layers(spec)
        tokens = spec.draft_vocab_size if spec.mapped else spec.vocab_size
        refuse_unfit(self.tree, self.num_speculative_tokens, tokens, f"a {spec.kind} drafter")

    def call(self, program: SpeculativeProgram) -> PassResult:
        drafter = given(self.drafter)
        spec, ks = drafter.spec, [k for k in self.num_speculative_tokens if k]
        weights = eagle_weights(drafter, self.max_model_len)
        weights |= tree_weights(self.tree, self.num_speculative_tokens)
        if "extend" in program.functions:
            program.weights.added(weights)  # refuses other contents
            same_proposals(program, ks, self.tree)
            return PassResult(program, modified=False)
        program = replace(program, weights=program.weights.added(weights)).with_state(*caches(spec))
        leaves, tree = EagleLeaves(program, spec, trees=self.tree is not None), self.tree
        rows = tree.width if isinstance(tree, DynamicTree) else 0
        deepest = max(self.num_speculative_tokens)
        leaves.program = with_contract(leaves.program, spec, tree, (deepest - 1) * rows)
        chain = _Chain(leaves)
        parts = [*leaves.extending(), *([] if tree is not None else [chain.step()])]
        leaves.program = leaves.program.with_functions(*parts)
        functions = [
            chain.propose_tree(k, tree) if isinstance(tree, DynamicTree) else chain.propose(k)
            for k in ks
        ]
        return PassResult(leaves.program.with_functions(*functions), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        promise({"extend", "draft_first"} <= set(program.functions), "it cannot draft")


class _Chain:
    """The functions that draft."""

    def __init__(self, leaves: EagleLeaves) -> None:
        self.leaves = leaves

    def step(self) -> Function:
        """draft: one more row of a chain."""
        step, leaves = Builder(), self.leaves
        one = TensorType("f32", (1, leaves.spec.hidden_size))
        tokens, *place = leaves.inputs(step, "tokens", 1)
        x = leaves.body(step, tokens, place, step.input("hidden", one), 1)
        return Function("draft", Role.DRAFT, step.output(*leaves.scored(step, x, 1)), SCORED)

    def propose(self, k: int) -> Function:
        """propose_K of a chain."""
        proposal = Proposal(self.leaves.program, k, **EXTEND_INPUTS)
        logits, hidden = proposal.call("draft_first", *proposal.inputs.values())
        proposal.choose(logits)
        for step in range(k - 1):
            logits, hidden = proposal.call("draft", proposal.before, *proposal.place(step), hidden)
            proposal.choose(logits)
        return proposal.end()

    def propose_tree(self, k: int, tree: DynamicTree) -> Function:
        """propose_K of a tree.

        The rows of a call: the last that was extended over, then `width` for each level so far.
        """
        proposal, width = TreeProposal(self.leaves.program, k, **EXTEND_INPUTS), tree.width
        builder, above = proposal.builder, proposal.place(-1)
        logits, hidden = proposal.call("draft_first", *proposal.inputs.values())
        proposal.grow(logits, width)
        tokens, positions = [proposal.root], [above[0]]
        parents = [builder.op(ops.roots.default, proposal.root, type_=type_of(proposal.root))]
        read = self.leaves.features.call(builder, self.leaves.program, above[1], rows=1)
        for level in range(k - 1):
            front = proposal.advance(width)
            rows = 1 + (level + 1) * width
            tokens.append(front.tokens)
            positions.append(proposal.same(proposal.position(level), width))
            parents.append(proposal.shifted(front.slots, max(0, 1 + (level - 1) * width)))
            read.append(proposal.take(hidden, front.slots))
            place = [proposal.cat(*positions), proposal.place(-1, rows)[1], proposal.cat(*parents)]
            x = self.leaves.body(builder, proposal.cat(*tokens), place, proposal.cat(*read), rows)
            x = proposal.take(x, proposal.count(rows - width, width))
            logits, hidden = self.leaves.scored(builder, x, width)
            proposal.grow(logits, width)
        return proposal.pruned(tree)
