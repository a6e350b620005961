"""Drafters of one layer that feed on what they give, trained unrolled as they will be used (EAGLE-3, arXiv 2503.01840).

Row i pairs the feature of position i with the token at i + 1. At depth 0 the feature is the target's, and the row
foretells token i + 2. At depth t the row of the chain that began at i stands at i + t. It reads the token at i + t + 1
and, in the feature's place, what this chain gave one depth earlier; it sees the rows of depth 0 up to i and those of
its own chain: what the caches hold when the engine drafts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from specc.distill.batches import Batch
from specc.distill.layer import Layer, Norm, Sizes, Turn, split
from specc.distill.loss import Bias, Candidates, Head, soft_cross_entropy


class Chain(nn.Module, ABC):
    """A drafter's parameters, under the names of a checkpoint's tensors."""

    sizes: Sizes
    dtype: torch.dtype

    @abstractmethod
    def layer(self) -> Layer:
        """The layer."""

    @abstractmethod
    def last(self) -> Norm:
        """The norm before the head; what it gives is fed back."""

    @abstractmethod
    def feature(self, batch: Batch) -> Tensor:
        """What row i reads of the target at depth 0, f32[B, T, H]."""

    @abstractmethod
    def enter(self, feature: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """From a feature and an embedding [B, M, H]: what attention reads [B, M, ...], and the residual [B, M, H]."""

    def forward(
        self, batch: Batch, embedding: Tensor, depths: int, chains: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """For each depth the rows i64[B, M] whose chains go so deep, and what feeds the head there f32[B, M, H].

        Row i at depth t foretells token i + t + 2. All rows have depth 0, `chains` bool[B, T] (all, if not given) more;
        where a text has fewer than another its first rows stand in.
        """
        layer, feature, seen = self.layer(), self.feature(batch), batch.causal_mask()
        rows = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        rows = rows.expand(batch.tokens.shape)
        first: tuple[Tensor, Tensor] | None = None
        chain: list[tuple[Tensor, Tensor]] = []
        for depth in range(depths):
            token = embedding[batch.ahead(depth + 1).gather(1, rows)].float()
            read, residual = self.enter(feature, token)
            turn = Turn(self.sizes, batch.positions.gather(1, rows) + depth, self.dtype)
            query = layer.self_attn.queries(read, turn) * self.sizes.head_dim**-0.5
            key, value = layer.self_attn.keys_and_values(read, turn)
            if first is None:
                first = key, value
            else:
                chain.append((key, value))
            feature = self.last()(layer.finish(attend(query, first, chain, seen), residual))
            yield rows, feature
            if depth == 0 and chains is not None:
                most = max(1, int(chains.sum(-1).max()))
                rows = chains.long().argsort(dim=-1, descending=True, stable=True)[:, :most]
                feature = feature.gather(1, rows[..., None].expand(-1, -1, feature.shape[-1]))
                every = rows[:, None, None, :, None].expand(-1, -1, -1, -1, seen.shape[-1])
                seen = seen.gather(3, every)


def attend(
    query: Tensor, first: tuple[Tensor, Tensor], chain: list[tuple[Tensor, Tensor]], seen: Tensor
) -> Tensor:
    """Attention of query [B, g, h, M, D] over `first` [B, g, 1, T, D] where `seen` adds 0, and over its own `chain`."""
    heads, length = query.shape[2], first[0].shape[-2]
    # All heads of a group share keys and values: one product for the group.
    key, value = (x.squeeze(2) for x in first)
    scores = [split(query.flatten(2, 3) @ key.transpose(-1, -2), 2, heads) + seen]
    scores += [(query * key).sum(-1, keepdim=True) for key, _ in chain]
    weights = torch.softmax(torch.cat(scores, -1).float(), -1).to(query.dtype)
    out = split(weights[..., :length].flatten(2, 3) @ value, 2, heads)
    for place, (_, value) in enumerate(chain, length):
        out = out + weights[..., place : place + 1] * value
    return out


class ChainStudent:
    """A chain with the target's embedding and rows of its head, both frozen."""

    def __init__(
        self, module: Chain, embedding: Tensor, head: Head, depths: int, *, decay: float = 0.8, candidates: int = 2048,
    ) -> None:  # fmt: skip
        self.module, self.embedding, self.head = module, embedding, head
        self.depths, self.decay, self.candidates = depths, decay, candidates

    def loss(self, batch: Batch) -> tuple[Tensor, list[float]]:
        """Cross entropy with the target's distribution at every depth, depth t weighted by decay ** t."""
        lesson = Lesson.of(batch, self.head, self.candidates)
        deep = batch.learnable(1)
        total, right = torch.zeros((), device=deep.device), []
        for depth, (rows, hidden) in enumerate(
            self.module(batch, self.embedding, self.depths, deep)
        ):
            learn = batch.learnable(depth).gather(1, rows)
            if depth:  # (rows that only fill up are not counted twice)
                learn = learn & deep.gather(1, rows)
            score = lesson.score(hidden, rows, learn, depth + 1)
            total = total + self.decay**depth * score.loss
            right.append(score.right)
        return total, right

    @torch.no_grad()
    def drafts(self, batch: Batch, count: int) -> Tensor:
        """As evaluation asks for."""
        return torch.stack([
            self.head.first(hidden.flatten(0, 1)).view_as(batch.tokens)
            for _, hidden in self.module(batch, self.embedding, count)
        ])  # fmt: skip


class Score(NamedTuple):
    """Mean cross entropy; how often the first choice was the target's, of some rows; and how far p and q overlap."""

    loss: Tensor
    right: float
    overlap: Tensor


class Lesson:
    """What the target says in one batch, and how far from it a drafter is."""

    def __init__(self, batch: Batch, head: Head, of: Candidates, place: Tensor) -> None:
        self._batch, self._head, self._of, self._place = batch, head, of, place

    @classmethod
    def of(cls, batch: Batch, head: Head, candidates: int) -> Lesson:
        """The target's distributions at the places where the next token is its own."""
        taught = batch.learnable(-1).flatten().nonzero().squeeze(-1)
        wanted = head.teach(batch.final.flatten(0, 1)[taught])
        place = torch.zeros(batch.tokens.numel(), dtype=torch.int64, device=taught.device)
        place[taught] = torch.arange(len(taught), device=taught.device)
        return cls(batch, head, Candidates.of(head, wanted, candidates), place)

    def score(
        self, hidden: Tensor, rows: Tensor, learn: Tensor, ahead: int, bias: Bias | None = None
    ) -> Score:
        """Of hidden [B, M, H], against what the target gives `ahead` places after `rows` i64[B, M].

        Only where `learn` bool[B, M]. The memory of a bias is [B, M, r].
        """
        batch, length = self._batch, self._batch.tokens.shape[1]
        begins = torch.arange(len(batch.tokens), device=rows.device)[:, None] * length
        index, known = (rows + begins)[learn] + ahead, hidden[learn]
        weight = torch.full((len(index),), 1 / max(1, len(index)), device=rows.device)
        if bias is not None:
            bias = Bias(bias.memory[learn], bias.rows)
        loss, overlap = soft_cross_entropy(known, self._of, self._place[index], weight, bias)
        some = slice(None, None, 8)
        few = None if bias is None else Bias(bias.memory.detach()[some], bias.rows.detach())
        first = self._head.first(known.detach()[some], few)
        right = (first == batch.chosen.flatten()[index[some]]).float()
        return Score(loss, float(right.mean()) if len(right) else 0.0, overlap)
