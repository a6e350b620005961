"""Writes `propose_K` for token trees: a tree of drafts, ranked by what the target will choose by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import DynamicTree, Function, Role, StaticTree, TensorType, Tree, Weight
from specc.ir.dialect import ops
from specc.ir.graphs import type_of
from specc.ir.program import SpeculativeProgram
from specc.passes.propose import Proposal

aten = torch.ops.aten
ZERO, CERTAIN = "tree.zero", "tree.certain"


def integers(count: int) -> TensorType:
    """i64[count]."""
    return TensorType("i64", (count,))


def scores(count: int) -> TensorType:
    """f64[count]."""
    return TensorType("f64", (count,))


def tree_weights(tree: Tree | None, ks: Sequence[int]) -> dict[str, Weight]:
    """The constants of proposals: where the root is, how likely it is, and what places a static tree has."""
    if tree is None:
        return {}
    weights = {ZERO: torch.tensor([0]), CERTAIN: torch.tensor([0.0], dtype=torch.float64)}
    for k in ks:
        if isinstance(tree, DynamicTree):
            break
        nodes = tree.nodes(k)
        first = [sum(map(tree.ranks, range(1, d))) for d in range(1, k + 1)]
        index = [first[len(p) - 1] + p[-1] for p in nodes[1:]]
        weights[f"tree.{k}.index"] = torch.tensor(index)
        weights[f"tree.{k}.parents"] = torch.tensor(tree.parents(k))
        weights[f"tree.{k}.depths"] = torch.tensor([len(p) for p in nodes])
    return {name: Weight.of(value) for name, value in weights.items()}


def refuse_unfit(tree: Tree | None, ks: Sequence[int], tokens: int, dynamic_only: str = "") -> None:
    """Raise PassError (SPECC-E0369) for a tree that has no path of every K, or more than `tokens` at a place.

    `dynamic_only`: what a drafter is whose drafts depend on the path, for which places must be counted, not listed.
    """
    if tree is None:
        return
    deepest, why = max(ks), ""
    if isinstance(tree, StaticTree):
        if dynamic_only:
            why = f"{dynamic_only} grows trees: say how many nodes, not which"
        elif deepest > tree.depth:
            why = f"its longest path has {tree.depth} drafts, fewer than K = {deepest}"
        elif max(tree.ranks(d) for d in range(1, deepest + 1)) > tokens:
            why = f"it wants more than the {tokens} tokens that there are"
    elif tree.most < deepest:
        why = f"{tree.most} nodes have no path of K = {deepest} drafts"
    elif tree.width > tokens:
        why = f"it wants more than the {tokens} tokens that there are"
    if why:
        raise PassError(
            "SPECC-E0369", f"this tree does not fit: {why}", found=str(tree), cure="correct --tree, or K"
        )  # fmt: skip


@dataclass(frozen=True)
class Front:
    """Nodes of one level that go on: F of them.

    `slots`: for each, which of the level before it goes on from; `nodes`: its number among all candidates.
    """

    tokens: fx.Node
    nodes: fx.Node
    scores: fx.Node
    slots: fx.Node
    count: int


@dataclass(frozen=True)
class Level:
    """Candidates of one depth: `each` after every node of the front before."""

    tokens: fx.Node
    parents: fx.Node
    scores: fx.Node
    size: int
    each: int


class TreeProposal(Proposal):
    """A function propose_K(root, ...) -> (tokens[N+1], parents[N+1], depths[N+1]), the root first, while it is written.

    A dynamic tree is grown level by level: `front` is what goes on, `grow` or `cross` adds what follows it.
    """

    def __init__(self, program: SpeculativeProgram, k: int, **more: TensorType) -> None:
        super().__init__(program, k, **more)
        self.levels: list[Level] = []
        self.zero, self._certain = self._constant(ZERO), self._constant(CERTAIN)
        self.root_front = Front(self.root, self.zero, self._certain, self.zero, 1)
        self.front = self.root_front

    def _constant(self, name: str) -> fx.Node:
        return self.builder.weight(name, self.program.weights[name].type)

    def cat(self, *parts: fx.Node) -> fx.Node:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        first = type_of(parts[0])
        rows = sum(int(type_of(p).shape[0]) for p in parts)
        type_ = TensorType(first.dtype, (rows, *first.shape[1:]))
        return self.builder.op(aten.cat.default, list(parts), type_=type_)

    def take(self, x: fx.Node, index: fx.Node) -> fx.Node:
        """Rows `index` of `x`."""
        type_ = TensorType(type_of(x).dtype, (*type_of(index).shape, *type_of(x).shape[1:]))
        return self.builder.op(ops.take.default, x, index, type_=type_)

    def shifted(self, x: fx.Node, by: int) -> fx.Node:
        """Integers [N] plus a number."""
        return self.builder.op(ops.positions.default, x, 1, by, type_=type_of(x)) if by else x

    def count(self, first: int, count: int) -> fx.Node:
        """The numbers `first` to first + count - 1."""
        type_ = integers(count)
        return self.builder.op(ops.positions.default, self.zero, count, first, type_=type_)

    def same(self, x: fx.Node, count: int) -> fx.Node:
        """The one row of `x`, `count` times."""
        return self.cat(*[x] * count)

    def ranked(self, logits: fx.Node, depth: int, count: int, front: Front) -> Level:
        """The `count` best tokens at `depth` after each node of `front`, from logits f32[F, V]."""
        at = self.same(self.position(depth - 1), front.count)
        size = front.count * count
        tokens, parents, values = self.builder.ops(
            ops.candidates.default, logits, front.nodes, front.scores, at, self.temperature, self.seed,
            count, self.program.model.vocab_size, types=(integers(size), integers(size), scores(size)),
        )  # fmt: skip
        return Level(tokens, parents, values, size, count)

    def grow(self, logits: fx.Node, count: int) -> None:
        """Add the next level: the `count` best tokens after each node of the front."""
        self.levels.append(self.ranked(logits, len(self.levels) + 1, count, self.front))

    def cross(self, logits: fx.Node, count: int) -> None:
        """Add the next level where logits f32[1, V] are the same after each node of the front."""
        level = self.ranked(logits, len(self.levels) + 1, count, self.root_front)
        size = self.front.count * count
        types = (integers(size), integers(size), scores(size))
        arguments = (level.tokens, level.scores, self.front.nodes, self.front.scores)
        tokens, parents, values = self.builder.ops(ops.cross.default, *arguments, types=types)
        self.levels.append(Level(tokens, parents, values, size, count))

    def advance(self, count: int) -> Front:
        """Go on from the `count` best of the last level."""
        level = self.levels[-1]
        before = 1 + sum(x.size for x in self.levels[:-1])
        types = (integers(count), integers(count))
        arguments = (level.scores, count, level.each)
        index, slots = self.builder.ops(ops.best.default, *arguments, types=types)
        tokens, values = self.take(level.tokens, index), self.take(level.scores, index)
        self.front = Front(tokens, self.shifted(index, before), values, slots, count)
        return self.front

    def pruned(self, tree: DynamicTree) -> Function:
        """The function: the best of all levels."""
        above = self.builder.op(ops.roots.default, self.root, type_=integers(1))
        count = tree.size(self.k)
        every = (
            self.cat(self.root, *(x.tokens for x in self.levels)),
            self.cat(above, *(x.parents for x in self.levels)),
            self.cat(self._certain, *(x.scores for x in self.levels)),
        )
        types = (integers(count + 1),) * 3
        results = self.builder.ops(ops.prune_tree.default, *every, count, types=types)
        return self._end(*results)

    def placed(self, logits: Sequence[fx.Node], tree: StaticTree) -> Function:
        """The function: the ranks that the tree names, of logits f32[1, V] for each depth."""
        found = [
            self.ranked(row, depth, tree.ranks(depth), self.front).tokens
            for depth, row in enumerate(logits, 1)
        ]
        index, parents, depths = (
            self._constant(f"tree.{self.k}.{name}") for name in ("index", "parents", "depths")
        )
        return self._end(self.cat(self.root, self.take(self.cat(*found), index)), parents, depths)

    def of_marginals(self, logits: Sequence[fx.Node], tree: Tree) -> Function:
        """The function where logits f32[1, V] of a depth, one for each, are the same on every path."""
        if isinstance(tree, StaticTree):
            return self.placed(logits, tree)
        for depth, row in enumerate(logits):
            if depth:
                self.advance(tree.width)
            self.cross(row, tree.width)
        return self.pruned(tree)

    def _end(self, *results: fx.Node) -> Function:
        names = ("tokens", "parents", "depths")
        return Function(f"propose_{self.k}", Role.DRAFT, self.builder.output(*results), names)
