"""Drafters of one or a few layers that read the target's features and feed on their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import DraftState, DynamicTree, Role, SpeculativeProgram, TensorType, Tree, Weight
from specc.ir.dialect import ops
from specc.ir.graphs import Builder, type_of
from specc.ir.importers.drafters.spec import DrafterCheckpoint, DrafterSpec, Kind, Recycle
from specc.ir.program import Function
from specc.ir.round_inputs import EXTEND_INPUTS
from specc.passes.base import Pass, PassResult, need, promise, same
from specc.passes.drafter_layers import (
    LayerWriter,
    by_target_id,
    caches,
    drafter_weights,
    given,
    refuse_unknown_layers,
)
from specc.passes.keep_features import FEATURES
from specc.passes.leaf_writer import PREFIX, Leaf, LeafWriter, shared
from specc.passes.propose import Proposal, proposals
from specc.passes.propose_tree import TreeProposal, refuse_unfit, tree_weights

aten = torch.ops.aten
KINDS = (Kind.EAGLE, Kind.EAGLE3, Kind.MTP)
LAST = "constant.last"
"""An index that specc.row takes for the last row of a call of any length."""


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
        spec = drafter.spec
        weights = drafter_weights(drafter, self.max_model_len)
        weights[LAST] = Weight.of(torch.tensor([1 << 40]))
        weights |= tree_weights(self.tree, self.num_speculative_tokens)
        if "extend" in program.functions:
            program.weights.added(weights)  # refuses other contents
            same("K", proposals(program), [k for k in self.num_speculative_tokens if k])
            same("tree", program.contract.tree, self.tree)
            return PassResult(program, modified=False)
        program = replace(program, weights=program.weights.added(weights)).with_state(*caches(spec))
        chain, tree = _Chain(program, spec, self.tree is not None), self.tree
        deepest = max(self.num_speculative_tokens)
        contract = replace(
            program.contract, state=DraftState.OWN, extend="extend", min_length=1, tree=tree,
            draft_vocab_size=spec.draft_vocab_size if spec.mapped else 0,
            draft_rows=(deepest - 1) * tree.width if isinstance(tree, DynamicTree) else 0,
        )  # fmt: skip
        chain.program = replace(chain.program, contract=contract).with_functions(*chain.functions())
        functions = [
            chain.propose_tree(k, tree) if isinstance(tree, DynamicTree) else chain.propose(k)
            for k in self.num_speculative_tokens
            if k
        ]
        return PassResult(chain.program.with_functions(*functions), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        promise({"extend", "draft_first"} <= set(program.functions), "it cannot draft")


def read_features(program: SpeculativeProgram) -> Leaf:
    """Leaf: rows i64[T] -> those rows of $features f32[T, ...]."""
    writer = LeafWriter(program, f"{PREFIX}features", FEATURES)
    rows = writer.value("rows", "i64", "T")
    kept = writer.op(aten.select.int, writer.state(FEATURES), 0, 0)
    return writer.end(writer.op(aten.index_select.default, kept, 0, rows), names=("features",))


class _Chain:
    """The leaves of one drafter, and the functions that call them."""

    def __init__(self, program: SpeculativeProgram, spec: DrafterSpec, trees: bool) -> None:
        self.program, self.spec, self.trees = program, spec, trees
        self.features = read_features(program)
        self.width = program.state[FEATURES].type.shape[-1]
        self.enter = self._enter()
        self.layers = shared([self._layer(j) for j in range(len(self.spec.layers))])
        self.head = self._head()
        leaves = (self.features, self.enter, *self.layers, self.head)
        functions = {leaf.function.name: leaf.function for leaf in leaves}
        self.program = program.with_functions(*functions.values())

    def propose(self, k: int) -> Function:
        """propose_K of a chain."""
        proposal = Proposal(self.program, k, **EXTEND_INPUTS)
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
        proposal, width = TreeProposal(self.program, k, **EXTEND_INPUTS), tree.width
        builder, above = proposal.builder, proposal.place(-1)
        logits, hidden = proposal.call("draft_first", *proposal.inputs.values())
        proposal.grow(logits, width)
        tokens, positions = [proposal.root], [above[0]]
        parents = [builder.op(ops.roots.default, proposal.root, type_=type_of(proposal.root))]
        read = self.features.call(builder, self.program, above[1], rows=1)
        for level in range(k - 1):
            front = proposal.advance(width)
            rows = 1 + (level + 1) * width
            tokens.append(front.tokens)
            positions.append(proposal.same(proposal.position(level), width))
            parents.append(proposal.shifted(front.slots, max(0, 1 + (level - 1) * width)))
            read.append(proposal.take(hidden, front.slots))
            place = [proposal.cat(*positions), proposal.place(-1, rows)[1], proposal.cat(*parents)]
            x = self._body(builder, proposal.cat(*tokens), place, proposal.cat(*read), rows)
            x = proposal.take(x, proposal.count(rows - width, width))
            logits, hidden = self._scored(builder, x, width)
            proposal.grow(logits, width)
        return proposal.pruned(tree)

    def functions(self) -> list[Function]:
        """extend, draft_first and, for a chain, draft."""
        extend = Builder()
        next_tokens, *place = self._inputs(extend, "next_tokens", "T")
        (features,) = self.features.call(extend, self.program, place[1])
        self._body(extend, next_tokens, place, features, None)
        first = Builder()
        next_tokens, *place = self._inputs(first, "next_tokens", "T")
        (features,) = self.features.call(first, self.program, place[1])
        x = self._body(first, next_tokens, place, features, None)
        last = first.weight(LAST, self.program.weights[LAST].type)
        one = TensorType("f32", (1, self.spec.hidden_size))
        x = first.op(ops.row.default, x, last, type_=one)
        names = ("logits", "hidden")
        extending = [
            Function("extend", Role.DRAFT, extend.output(), ()),
            Function("draft_first", Role.DRAFT, first.output(*self._scored(first, x, 1)), names),
        ]
        if self.trees:
            return extending
        step = Builder()
        tokens, *place = self._inputs(step, "tokens", 1)
        hidden = step.input("hidden", one)
        x = self._body(step, tokens, place, hidden, 1)
        results = self._scored(step, x, 1)
        return [*extending, Function("draft", Role.DRAFT, step.output(*results), names)]

    def _inputs(self, builder: Builder, tokens: str, rows: int | str) -> list[fx.Node]:
        """Tokens, positions, rows, and parents where layers take them: such rows are no tree."""
        type_ = TensorType("i64", (rows,))
        found = [builder.input(name, type_) for name in (tokens, "positions", "rows")]
        if self.trees:
            found.append(builder.op(ops.roots.default, found[-1], type_=type_))
        return found

    def _body(
        self,
        builder: Builder,
        tokens: fx.Node,
        place: list[fx.Node],
        features: fx.Node,
        rows: int | None,
    ) -> fx.Node:
        """Everything before the head: what the last layer gives, [T, H]."""
        read, *own = self.enter.call(builder, self.program, tokens, features, rows=rows)
        x = own[0] if own else read if self.spec.fuse.tokens else features
        (x,) = self.layers[0].call(builder, self.program, read, x, *place, rows=rows)
        for layer in self.layers[1:]:
            (x,) = layer.call(builder, self.program, x, *place, rows=rows)
        return x

    def _scored(self, builder: Builder, x: fx.Node, rows: int) -> tuple[fx.Node, fx.Node]:
        """Logits of x [rows, H], and what the next step reads."""
        logits, *normed = self.head.call(builder, self.program, x, rows=rows)
        return logits, normed[0] if normed else x

    def _enter(self) -> Leaf:
        """Tokens and features -> what the first layer's attention reads, and its residual if that is another."""
        spec = self.spec
        writer = LeafWriter(self.program, f"{PREFIX}enter", "embed")
        tokens = writer.value("tokens", "i64", "T")
        x = features = writer.value("features", "f32", "T", self.width)
        embedding = writer.op(
            aten.embedding.default, writer.weight(f"{PREFIX}embed_tokens.weight"), tokens
        )
        if spec.fuse.tokens:
            pair = [embedding, x]
            if spec.fuse.token_norms:
                names = ("token_norm", "feature_norm")
                pair = [
                    writer.norm(part, PREFIX + n, spec.norm_eps)
                    for part, n in zip(pair, names, strict=True)
                ]
            x = writer.linear(writer.cat(*pair), f"{PREFIX}fc")
        read, residual = LayerWriter(writer, spec, 0).read(x, embedding)
        if residual in (read, features):
            return writer.end(read, names=("read",))
        return writer.end(read, residual, names=("read", "x"))

    def _layer(self, number: int) -> Leaf:
        spec = self.spec
        writer = LeafWriter(self.program, f"{PREFIX}layer.{number}", "layer", number)
        write = LayerWriter(writer, spec, number)
        read = writer.value("read", "f32", "T", write.attention.input_size) if number == 0 else None
        x = writer.value("x", "f32", "T", spec.hidden_size)
        positions = writer.value("positions", "i64", "T")
        rows = writer.value("rows", "i64", "T")
        parents = writer.value("parents", "i64", "T") if self.trees else None
        if read is None:
            read, x = write.read(x)
        write.keys_and_values(read, positions, rows)
        x = write.finish(write.attend(read, positions, (positions, rows), None, parents), x)
        return writer.end(x, names=("x",))

    def _head(self) -> Leaf:
        spec = self.spec
        writer = LeafWriter(self.program, f"{PREFIX}head", "head")
        x = writer.value("x", "f32", "T", spec.hidden_size)
        normed = writer.norm(x, f"{PREFIX}norm", spec.norm_eps) if spec.norm else x
        logits = by_target_id(writer, spec.mapped, writer.linear(normed, f"{PREFIX}lm_head"))
        if normed is x or spec.recycle is Recycle.PRE_NORM:
            return writer.end(logits, names=("logits",))
        return writer.end(logits, normed, names=("logits", "hidden"))
