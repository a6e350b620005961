"""Drafters that fill a block of unknown tokens in one pass: DFlash, and DSpark with its Markov heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import DraftState, DynamicTree, SpeculativeProgram, TensorType, Tree, Weight
from specc.ir.importers.drafters import Attention, Block, DrafterCheckpoint, DrafterSpec, Kind
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.drafter_layers import (
    LayerWriter,
    by_target_id,
    drafter_weights,
    given,
    refuse_unknown_layers,
)
from specc.passes.leaf_writer import PREFIX, Leaf, LeafWriter, shared
from specc.passes.propose import Proposal, proposals, same_proposals
from specc.passes.propose_tree import TreeProposal, refuse_unfit, tree_weights

aten = torch.ops.aten
KINDS = (Kind.DFLASH, Kind.DSPARK)


@dataclass(frozen=True)
class AttachBlock(Pass):
    """Add propose_K for each K: one pass over a block, whose rows see the text and one another.

    Before: target keeps $drafter.k.0, $drafter.v.0, ...: keys and values of what it taps
    After:  the same, and propose_K(root, length, first_row, temperature, seed) -> drafts[K]:
            x = <layers>(embed(root, mask, mask, ...)), each writing its keys and values behind the
            text's; logits = head(rows of x that give drafts); draft j = choose(logits[j]), or of
            logits[j] + markov(draft j - 1). A head that foretells what is kept reads no draft from j on.
            or, with a tree of N nodes, -> (tokens[N+1], parents[N+1], depths[N+1]), of logits[j] at depth
            j + 1 of every path, or of those + markov(the token before)

    The block has as many rows as the drafter was trained with, whatever K is; what it writes is
    written again by verify, or by the next block. So there must be room for it: `draft_rows`.
    """

    name: ClassVar[str] = "attach-block"

    drafter: DrafterCheckpoint | None = None
    num_speculative_tokens: tuple[int, ...] = (0, 2, 4)
    max_model_len: int = 2048
    tree: Tree | None = None

    def requires(self, program: SpeculativeProgram) -> None:
        need("drafter.k.0" in program.state, "the target keeps no context", "keep-features")
        spec = given(self.drafter).spec
        if spec.kind not in KINDS or spec.block is None:
            raise PassError(
                "SPECC-E0367", f"a {spec.kind} drafter does not draft in blocks",
                expected=", ".join(KINDS), cure="choose another drafter, or --method suffix",
            )  # fmt: skip
        if max(self.num_speculative_tokens) > spec.most_drafts:
            raise PassError(
                "SPECC-E0368", f"a block of the drafter gives {spec.most_drafts} drafts",
                expected=f"K up to {spec.most_drafts}", found=str(max(self.num_speculative_tokens)),
                cure="correct --num-speculative-tokens",
            )  # fmt: skip
        refuse_unknown_layers(spec)
        tokens = spec.draft_vocab_size if spec.mapped else spec.vocab_size
        walks = f"a {spec.kind} drafter with a Markov head" if spec.markov is not None else ""
        refuse_unfit(self.tree, self.num_speculative_tokens, tokens, walks)
        for number in range(len(spec.layers)):
            _reach(spec, spec.block, number)

    def call(self, program: SpeculativeProgram) -> PassResult:
        drafter = given(self.drafter)
        spec, ks = drafter.spec, [k for k in self.num_speculative_tokens if k]
        assert spec.block is not None
        weights = drafter_weights(drafter, self.max_model_len)
        weights[f"{PREFIX}masks"] = Weight.of(
            torch.full((spec.block.size - 1,), spec.block.mask_token_id)
        )
        if spec.markov is not None and spec.markov.kind == "rnn":
            weights[f"{PREFIX}markov.start"] = Weight.of(torch.zeros(1, spec.markov.rank))
        for index in range(spec.block.size):
            weights[f"constant.{index}"] = Weight.of(torch.tensor([index]))
        weights |= tree_weights(self.tree, ks)
        program = replace(program, weights=program.weights.added(weights))  # refuses other contents
        if proposals(program):
            same_proposals(program, ks, self.tree)
            return PassResult(program, modified=False)
        block = _Block(program, spec, spec.block)
        contract = replace(
            program.contract, state=DraftState.TARGET, draft_rows=spec.block.size, tree=self.tree,
            draft_vocab_size=spec.draft_vocab_size if spec.mapped else 0,
        )  # fmt: skip
        block.program = replace(block.program, contract=contract)
        functions = map(block.propose, ks)
        return PassResult(block.program.with_functions(*functions), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        promise(proposals(program), "it cannot draft")


def _reach(spec: DrafterSpec, block: Block, number: int) -> tuple[bool, int]:
    """Whether rows of layer `number` see the block's end, and the window of cached_attention.

    Raises PassError for a window that starts at another place for each row of a block that sees its end.
    """
    attention = spec.layers[number].attention
    assert isinstance(attention, Attention)
    if not attention.window:
        return not attention.causal, 0
    if attention.window_at_anchor and not attention.causal:
        return True, attention.window + block.size
    if attention.causal and not attention.window_at_anchor and attention.window >= block.size:
        return False, attention.window
    raise PassError(
        "SPECC-E0366", f"a {spec.kind} drafter with this sliding window is not built yet",
        where=f"layer {number} of the drafter", expected="windows of causal rows, or from the root on",
        cure="choose another drafter, or --method suffix",
    )  # fmt: skip


class _Block:
    """The leaves of one drafter, and the functions that call them."""

    def __init__(self, program: SpeculativeProgram, spec: DrafterSpec, block: Block) -> None:
        self.program, self.spec, self.block = program, spec, block
        self.embed = self._embed()
        self.layers = shared([self._layer(j) for j in range(len(spec.layers))])
        self.head, self.choose = self._head(), self._choose()
        leaves = [self.embed, *self.layers, self.head, *([self.choose] if self.choose else [])]
        functions = {leaf.function.name: leaf.function for leaf in leaves}
        self.program = program.with_functions(*functions.values())

    def propose(self, k: int) -> Function:
        """propose_K."""
        tree = self.program.contract.tree
        if tree is not None:
            return self._tree(TreeProposal(self.program, k), tree)
        proposal = Proposal(self.program, k)
        logits, hidden = self._scored(proposal)
        state = self._start(proposal)
        for j in range(k):
            scores = proposal.row(logits, j)
            read = (j, scores, proposal.before, hidden, state)
            scores, state, confidence = self._chosen(proposal, *read)
            proposal.choose(scores, confidence)
        return proposal.end()

    def _tree(self, proposal: TreeProposal, tree: Tree) -> Function:
        logits, hidden = self._scored(proposal)
        every = [proposal.row(logits, j) for j in range(proposal.k)]
        state, front = self._start(proposal), proposal.front
        if self.spec.markov is None:
            read = (front.tokens, hidden, state)
            rows = [self._chosen(proposal, j, x, *read)[0] for j, x in enumerate(every)]
            return proposal.of_marginals(rows, tree)
        assert isinstance(tree, DynamicTree)
        for j, row in enumerate(every):
            if j:
                front = proposal.advance(tree.width)
                state = [proposal.take(x, front.slots) for x in state]
            wide = proposal.same(row, front.count)
            scores, state, _ = self._chosen(proposal, j, wide, front.tokens, hidden, state)
            proposal.grow(scores, tree.width)
        return proposal.pruned(tree)

    def _scored(self, proposal: Proposal) -> list[fx.Node]:
        """Logits by draft id and hidden states of the K rows that give drafts."""
        program, size, builder = self.program, self.block.size, proposal.builder
        masks = builder.weight(f"{PREFIX}masks", program.weights[f"{PREFIX}masks"].type)
        row = TensorType("i64", (size,))
        tokens = (
            builder.op(aten.cat.default, [proposal.root, masks], type_=row)
            if size > 1
            else proposal.root
        )
        place = proposal.place(0, size)
        last = [
            builder.op(aten.cat.default, [x] * size, type_=row) for x in proposal.place(size - 1)
        ]
        (x,) = self.embed.call(builder, program, tokens, rows=size)
        for number, layer in enumerate(self.layers):
            seen = last if _reach(self.spec, self.block, number)[0] else place
            (x,) = layer.call(builder, program, x, *place, *seen, rows=size)
        first = 0 if self.block.anchor_first else 1
        k = proposal.k
        rows = [proposal.row(x, first + j) for j in range(k)]
        wide = TensorType("f32", (k, self.spec.hidden_size))
        x = builder.op(aten.cat.default, rows, type_=wide) if k > 1 else rows[0]
        return self.head.call(builder, program, x, rows=k)

    def _start(self, proposal: Proposal) -> list[fx.Node]:
        """What a recurrent Markov head begins with."""
        if self.spec.markov is None or self.spec.markov.kind != "rnn":
            return []
        name = f"{PREFIX}markov.start"
        return [proposal.builder.weight(name, self.program.weights[name].type)]

    def _chosen(
        self, proposal: Proposal, place: int, logits: fx.Node, before: fx.Node, hidden: fx.Node,
        state: list[fx.Node],
    ) -> tuple[fx.Node, list[fx.Node], fx.Node | None]:  # fmt: skip
        """Logits by target id, the next state, and the confidence where there is such a head.

        `logits` f32[F, Vd] and `before` [F] of F paths at one place of the block; `hidden` f32[K, H] of all places.
        """
        if self.choose is None:
            return logits, [], None
        rows = int(logits.meta["type"].shape[0])
        more = [before] if self.spec.markov else []
        if self._reads_hidden:
            row = proposal.row(hidden, place)
            more.append(proposal.same(row, rows) if isinstance(proposal, TreeProposal) else row)
        values = (logits, *more, *state)
        logits, *state = self.choose.call(proposal.builder, self.program, *values, rows=rows)
        return logits, state, state.pop() if self.spec.confidence else None

    def _embed(self) -> Leaf:
        writer = LeafWriter(self.program, f"{PREFIX}embed", "embed")
        tokens = writer.value("tokens", "i64", "T")
        table = writer.weight(f"{PREFIX}embed_tokens.weight")
        return writer.end(writer.op(aten.embedding.default, table, tokens), names=("x",))

    def _layer(self, number: int) -> Leaf:
        writer = LeafWriter(self.program, f"{PREFIX}layer.{number}", "layer", number)
        write = LayerWriter(writer, self.spec, number)
        x = writer.value("x", "f32", "T", self.spec.hidden_size)
        positions, rows, until, last = (
            writer.value(n, "i64", "T")
            for n in ("positions", "rows", "seen_positions", "seen_rows")
        )
        read, residual = write.read(x)
        write.keys_and_values(read, positions, rows)
        window = _reach(self.spec, self.block, number)[1]
        x = write.finish(write.attend(read, positions, (until, last), window), residual)
        return writer.end(x, names=("x",))

    def _head(self) -> Leaf:
        writer = LeafWriter(self.program, f"{PREFIX}head", "head")
        x = writer.value("x", "f32", "T", self.spec.hidden_size)
        normed = writer.norm(x, f"{PREFIX}norm", self.spec.norm_eps)
        return writer.end(
            writer.linear(normed, f"{PREFIX}lm_head"), normed, names=("logits", "hidden")
        )

    @property
    def _reads_hidden(self) -> bool:
        return self.spec.markov is not None or self.spec.confidence is not None

    def _choose(self) -> Leaf | None:
        """Leaf: logits of draft ids (and the token before, hidden state, state) -> logits by target id (and more).

        More: the state of an rnn, and the confidence [T, 1].
        """
        spec, markov = self.spec, self.spec.markov
        if not self._reads_hidden and not spec.mapped:
            return None
        writer = LeafWriter(self.program, f"{PREFIX}choose", "head")
        logits = writer.value(
            "logits", "f32", "T", spec.draft_vocab_size if spec.mapped else self._ids()
        )
        states: list[fx.Node] = []
        known: list[fx.Node] = []  # what a confidence head reads
        before = writer.value("tokens", "i64", "T") if markov else None
        if self._reads_hidden:
            known = [hidden := writer.value("hidden", "f32", "T", spec.hidden_size)]
        if markov is not None:
            states = (
                [writer.value("state", "f32", "T", markov.rank)] if markov.kind == "rnn" else []
            )
            name = f"{PREFIX}markov_head"
            e = writer.op(aten.embedding.default, writer.weight(f"{name}.markov_w1.weight"), before)
            inner = e
            if spec.confidence is not None and spec.confidence.markov:
                known.append(e)
            if markov.kind == "gated":
                gate = writer.linear(writer.cat(hidden, e), f"{name}.gate_proj")
                inner = writer.op(aten.mul.Tensor, writer.op(aten.sigmoid.default, gate), e)
            elif markov.kind == "rnn":
                joint = writer.linear(writer.cat(*states, e, hidden), f"{name}.joint_proj")
                g, new, o = (
                    writer.op(aten.slice.Tensor, joint, -1, i * markov.rank, (i + 1) * markov.rank)
                    for i in range(3)
                )
                g, new = writer.op(aten.sigmoid.default, g), writer.op(aten.tanh.default, new)
                difference = writer.op(aten.sub.Tensor, states[0], new)
                states = [
                    writer.op(aten.add.Tensor, new, writer.op(aten.mul.Tensor, g, difference))
                ]
                inner = writer.op(aten.tanh.default, o)
            logits = writer.op(aten.add.Tensor, logits, writer.linear(inner, f"{name}.markov_w2"))
        logits = by_target_id(writer, spec.mapped, logits)
        named = {"logits": logits} | ({"state": states[0]} if states else {})
        if spec.confidence is not None:
            read = writer.linear(writer.cat(*known), f"{PREFIX}confidence_head.proj")
            named["confidence"] = writer.op(aten.sigmoid.default, read)
        return writer.end(*named.values(), names=tuple(named))

    def _ids(self) -> int:
        """Rows of the head, which may be more than there are tokens."""
        return int(self.program.weights[f"{PREFIX}lm_head.weight"].type.shape[0])
