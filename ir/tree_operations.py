"""The operations of the dialect on token trees.

Shapes: N drafts and their root are N + 1 nodes, the root first and parents before children; D is the depth, V the
vocabulary. `parents` names a node's parent by number, -1 the root's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specc.ir.dialect import gumbel, operation


@operation("roots(Tensor rows) -> Tensor", lambda rows: torch.empty_like(rows))
def _roots(rows: Tensor) -> Tensor:
    """Parents [T] of `rows` [T] that are no tree: -1 for each."""
    return torch.full_like(rows, -1)


@operation(
    "take(Tensor x, Tensor index) -> Tensor",
    lambda x, index: x.new_empty(index.shape[0], *x.shape[1:]),
)
def _take(x: Tensor, index: Tensor) -> Tensor:
    """Rows index [N] of x [T, ...] -> [N, ...]."""
    return x.index_select(0, index)


@operation(
    "candidates(Tensor logits, Tensor nodes, Tensor scores, Tensor positions, Tensor temperature, "
    "Tensor seed, int count, int vocab_size) -> (Tensor, Tensor, Tensor)",
    lambda logits, nodes, scores, positions, temperature, seed, count, vocab_size: (
        nodes.new_empty(nodes.shape[0] * count),
        nodes.new_empty(nodes.shape[0] * count),
        scores.new_empty(nodes.shape[0] * count),
    ),
)
def _candidates(
    logits: Tensor, nodes: Tensor, scores: Tensor, positions: Tensor, temperature: Tensor,
    seed: Tensor, count: int, vocab_size: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The `count` best tokens after each of F nodes, best first: tokens, parents and scores [F * count].

    logits [F, V] after `nodes` [F], which stand at `positions` [F] and have scores f64 [F]. Tokens are ranked by what
    `accept` chooses by: the logit, or logit / temperature + gumbel(seed, position + 1); the lowest id wins a tie, and
    NaN counts as -inf. A score is the parent's plus the logarithm of the token's part of softmax over the vocabulary;
    where there is noise, over the `count` alone, for noise of the whole vocabulary would cost more than it tells. Where
    the best is infinite, nothing is likely: all scores are -inf.
    """
    heat, tokens, totals = float(temperature), [], []
    for row, score, position in zip(logits, scores, positions.tolist(), strict=True):
        values = row[:vocab_size].double()
        values = values.where(~values.isnan(), -torch.inf)
        if heat > 0:
            values = values / heat + gumbel(int(seed), position + 1, vocab_size)
        best = torch.sort(values, descending=True, stable=True)
        tokens.append(best.indices[:count])
        top = best.values[:count]
        total = torch.logsumexp(top if heat > 0 else values, 0)
        known = bool(top[0].isfinite())
        totals.append(score + (top - total if known else torch.full_like(top, -torch.inf)))
    return torch.cat(tokens), nodes.repeat_interleave(count), torch.cat(totals)


@operation(
    "cross(Tensor tokens, Tensor shares, Tensor nodes, Tensor scores) -> (Tensor, Tensor, Tensor)",
    lambda tokens, shares, nodes, scores: (
        nodes.new_empty(nodes.shape[0] * tokens.shape[0]),
        nodes.new_empty(nodes.shape[0] * tokens.shape[0]),
        scores.new_empty(nodes.shape[0] * tokens.shape[0]),
    ),
)
def _cross(
    tokens: Tensor, shares: Tensor, nodes: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same `tokens` [C], whose scores after the root are `shares` f64 [C], after each of `nodes` [F].

    Tokens, parents and scores [F * C], as `candidates` gives them.
    """
    count, rows = tokens.shape[0], nodes.shape[0]
    totals = (scores[:, None] + shares).reshape(-1)
    return tokens.repeat(rows), nodes.repeat_interleave(count), totals


@operation(
    "best(Tensor scores, int count, int each) -> (Tensor, Tensor)",
    lambda scores, count, each: (
        scores.new_empty(count, dtype=torch.int64),
        scores.new_empty(count, dtype=torch.int64),
    ),
)
def _best(scores: Tensor, count: int, each: int) -> tuple[Tensor, Tensor]:
    """Where the `count` highest of scores f64 [M] stand, best first, and in which group of `each`: two of [count].

    The lowest index wins a tie.
    """
    index = torch.sort(scores, descending=True, stable=True).indices[:count]
    return index, index // each


@operation(
    "prune_tree(Tensor tokens, Tensor parents, Tensor scores, int count) -> (Tensor, Tensor, Tensor)",
    lambda tokens, parents, scores, count: tuple(tokens.new_empty(count + 1) for _ in range(3)),
)
def _prune_tree(
    tokens: Tensor, parents: Tensor, scores: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The root and the `count` best drafts of a tree of M nodes: tokens, parents and depths, three of [count + 1].

    Of nodes with the same score the earlier is better, and no score is above its parent's: so the parent of what is
    kept is kept. Nodes stay in order.
    """
    kept = torch.sort(scores, descending=True, stable=True).indices[: count + 1].sort().values
    place = {node: number for number, node in enumerate(kept.tolist())}
    above = [place[parents[n].item()] if n else -1 for n in place]
    depths: list[int] = []
    for parent in above:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return tokens[kept], torch.tensor(above), torch.tensor(depths)


@operation(
    "accept_tree(Tensor tokens, Tensor parents, Tensor logits, Tensor length, Tensor temperature, "
    "Tensor seed, int depth, int vocab_size) -> (Tensor, Tensor, Tensor)",
    lambda tokens, parents, logits, length, temperature, seed, depth, vocab_size: (
        tokens.new_empty(depth + 1),
        length.new_empty(1),
        tokens.new_empty(depth + 1),
    ),
)
def _accept_tree(
    tokens: Tensor, parents: Tensor, logits: Tensor, length: Tensor, temperature: Tensor,
    seed: Tensor, depth: int, vocab_size: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The path from the root that equals the target's own choices.

    tokens and parents [N+1], logits [N+1, V], length [1]: the root's position. From the root on, the target chooses as
    `accept` does, at position length + 1 + steps; while a child of the node has that token, the path goes on there (to
    the first such child), at most `depth` times. Returns tokens [D+1], of which the first accepted + 1 are new,
    accepted [1] (-1 if a logit that counts is NaN), and the nodes of the path [D+1]; from accepted + 1 on, i for the
    i-th, so that `cache_move` to consecutive rows leaves those where they are.
    """
    chosen, nodes = torch.zeros(depth + 1, dtype=torch.int64), torch.arange(depth + 1)
    heat, node = float(temperature), 0
    for step in range(depth + 1):
        scores = logits[node, :vocab_size]
        if bool(scores.isnan().any()):
            return torch.zeros_like(chosen), torch.tensor([-1]), torch.arange(depth + 1)
        if heat > 0:
            noise = gumbel(int(seed), int(length) + 1 + step, vocab_size)
            scores = scores.double() / heat + noise
        chosen[step] = int((scores == scores.max()).to(torch.int8).argmax())
        nodes[step] = node
        children = ((parents == node) & (tokens == chosen[step])).nonzero().flatten().tolist()
        if step == depth or not children:
            return chosen, torch.tensor([step]), nodes
        node = children[0]
    raise AssertionError("unreachable: the last step always returns")
