"""The leaves of drafters that pair the feature of position i with the token at i + 1."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from specc.ir import DraftState, Role, SpeculativeProgram, TensorType, Tree, Weight
from specc.ir.dialect import ops
from specc.ir.graphs import Builder
from specc.ir.importers.drafters.spec import DrafterCheckpoint, DrafterSpec, Recycle
from specc.ir.program import Function
from specc.passes.drafter_layers import LayerWriter, by_target_id, drafter_weights
from specc.passes.keep_features import FEATURES
from specc.passes.leaf_writer import PREFIX, Leaf, LeafWriter, shared

aten = torch.ops.aten
LAST = "constant.last"
"""An index that specc.row takes for the last row of a call of any length."""

SCORED = ("logits", "hidden")


def eagle_weights(drafter: DrafterCheckpoint, rows: int) -> dict[str, Weight]:
    """What these leaves read beside the checkpoint's own weights, for texts of `rows` tokens."""
    return {**drafter_weights(drafter, rows), LAST: Weight.of(torch.tensor([1 << 40]))}


def with_contract(
    program: SpeculativeProgram, spec: DrafterSpec, tree: Tree | None, draft_rows: int
) -> SpeculativeProgram:
    """`program`, whose drafter has caches of its own that are extended over the text."""
    contract = replace(
        program.contract, state=DraftState.OWN, extend="extend", min_length=1, tree=tree,
        draft_vocab_size=spec.draft_vocab_size if spec.mapped else 0, draft_rows=draft_rows,
    )  # fmt: skip
    return replace(program, contract=contract)


def read_features(program: SpeculativeProgram) -> Leaf:
    """Leaf: rows i64[T] -> those rows of $features f32[T, ...]."""
    writer = LeafWriter(program, f"{PREFIX}features", FEATURES)
    rows = writer.value("rows", "i64", "T")
    kept = writer.op(aten.select.int, writer.state(FEATURES), 0, 0)
    return writer.end(writer.op(aten.index_select.default, kept, 0, rows), names=("features",))


class EagleLeaves:
    """The leaves of one drafter, and the functions that extend its caches over the text.

    `trees`: layers take the parents of rows. `program` has the leaves.
    """

    def __init__(
        self, program: SpeculativeProgram, spec: DrafterSpec, *, trees: bool = False
    ) -> None:
        self.program, self.spec, self.trees = program, spec, trees
        self.features = read_features(program)
        self.width = program.state[FEATURES].type.shape[-1]
        self.enter = self._enter()
        self.layers = shared([self._layer(j) for j in range(len(self.spec.layers))])
        self.head = self._head()
        leaves = (self.features, self.enter, *self.layers, self.head)
        functions = {leaf.function.name: leaf.function for leaf in leaves}
        self.program = program.with_functions(*functions.values())

    def extending(self) -> list[Function]:
        """extend, and draft_first."""
        extend = Builder()
        next_tokens, *place = self.inputs(extend, "next_tokens", "T")
        (features,) = self.features.call(extend, self.program, place[1])
        self.body(extend, next_tokens, place, features, None)
        first = Builder()
        next_tokens, *place = self.inputs(first, "next_tokens", "T")
        (features,) = self.features.call(first, self.program, place[1])
        x = self.body(first, next_tokens, place, features, None)
        last = first.weight(LAST, self.program.weights[LAST].type)
        one = TensorType("f32", (1, self.spec.hidden_size))
        x = first.op(ops.row.default, x, last, type_=one)
        return [
            Function("extend", Role.DRAFT, extend.output(), ()),
            Function("draft_first", Role.DRAFT, first.output(*self.scored(first, x, 1)), SCORED),
        ]

    def inputs(self, builder: Builder, tokens: str, rows: int | str) -> list[fx.Node]:
        """Tokens, positions, rows, and parents where layers take them: such rows are no tree."""
        type_ = TensorType("i64", (rows,))
        found = [builder.input(name, type_) for name in (tokens, "positions", "rows")]
        if self.trees:
            found.append(builder.op(ops.roots.default, found[-1], type_=type_))
        return found

    def body(
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

    def scored(self, builder: Builder, x: fx.Node, rows: int) -> tuple[fx.Node, fx.Node]:
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
        read = (
            writer.value("read", "f32", "T", write.layer.attention.input_size)
            if number == 0
            else None
        )
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
        if normed is x or spec.recycle is not Recycle.POST_NORM:
            return writer.end(logits, names=("logits",))
        return writer.end(logits, normed, names=("logits", "hidden"))
