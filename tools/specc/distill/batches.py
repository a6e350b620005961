"""Texts of the feature shards, packed into rows of one length for training, or one by one for evaluation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specc.distill.features import Shard


@dataclass(frozen=True, eq=False)
class Batch:
    """B rows of T tokens; several texts may stand in a row, one after another.

    tokens, positions, chosen i64[B, T]; text i64[B, T] numbers the texts of a row, -1 is padding; answer bool[B, T]
    says which tokens the target wrote; taps [B, T, A, H] and final [B, T, H] as in the shards.
    """

    tokens: Tensor
    positions: Tensor
    text: Tensor
    answer: Tensor
    taps: Tensor
    final: Tensor
    chosen: Tensor
    kinds: tuple[str, ...]

    def ahead(self, count: int) -> Tensor:
        """The tokens `count` places later; 0 past the end of a row."""
        return _ahead(self.tokens, count, 0)

    def learnable(self, depth: int) -> Tensor:
        """Rows i bool[B, T] with something to foretell at `depth`: token i + depth + 2 is the target's own."""
        later = _ahead(self.text, depth + 2, -1)
        mine = _ahead(self.answer.long(), depth + 2, 0) > 0
        return mine & (later == self.text) & (self.text >= 0)

    def causal_mask(self) -> Tensor:
        """What to add to scores [B, 1, 1, T, T]: 0 for earlier rows of the same text, else -inf.

        A row always sees itself, so no row is without a key.
        """
        length = self.tokens.shape[1]
        before = torch.ones(length, length, dtype=torch.bool, device=self.tokens.device).tril()
        same = self.text[:, :, None] == self.text[:, None, :]
        mask = torch.zeros(same.shape, device=self.tokens.device, dtype=self.taps.dtype)
        return mask.masked_fill(~(same & before), -torch.inf)[:, None, None]

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        moved = (
            self.tokens,
            self.positions,
            self.text,
            self.answer,
            self.taps,
            self.final,
            self.chosen,
        )
        tokens, positions, text, answer, taps, final, chosen = (x.to(device) for x in moved)
        return Batch(tokens, positions, text, answer, taps, final, chosen, self.kinds)


def _ahead(x: Tensor, count: int, fill: int) -> Tensor:
    out = torch.full_like(x, fill)
    out[:, : max(0, x.shape[1] - count)] = x[:, count:]
    return out


Piece = tuple[Shard, int, int, int, str]
"""A shard, where a text or a part of it begins and ends there, the tokens of its prompt in it, and its kind."""


def pieces(shards: Sequence[Shard], length: int, *, held: bool) -> list[Piece]:
    """The texts that are (not) held out; longer ones in parts of `length` tokens."""
    found = []
    for shard in shards:
        spans = zip(
            shard.starts, shard.starts[1:], shard.prompts, shard.held, shard.kinds, strict=False
        )
        for begin, end, prompt, out, kind in spans:
            if out is not held:
                continue
            for start in range(begin, end, length):
                given = max(0, begin + prompt - start)
                stop = min(end, start + length)
                if stop - start > max(given, 0) + 2:
                    found.append((shard, start, stop, given, kind))
    return found


def epoch(
    shards: Sequence[Shard], length: int, rows: int, order: random.Random
) -> Iterator[Batch]:  # fmt: skip
    """All training texts once, in random order, packed into batches of `rows` rows of `length` tokens."""
    todo = pieces(shards, length, held=False)
    order.shuffle(todo)
    packed: list[list[Piece]] = []
    for group in _packed(todo, length):
        packed.append(group)
        if len(packed) == rows:
            yield collate(packed, length)
            packed = []


def _packed(todo: Sequence[Piece], length: int) -> Iterator[list[Piece]]:
    """Groups that fit into a row: each piece goes into the fullest of a few open rows that has room."""
    open_rows: list[tuple[int, list[Piece]]] = []
    for piece in todo:
        size = piece[2] - piece[1]
        fits = [i for i, (used, _) in enumerate(open_rows) if used + size <= length]
        if fits:
            best = max(fits, key=lambda i: open_rows[i][0])
            used, group = open_rows[best]
            open_rows[best] = (used + size, [*group, piece])
            continue
        if len(open_rows) == 16:
            fullest = max(range(16), key=lambda i: open_rows[i][0])
            yield open_rows.pop(fullest)[1]
        open_rows.append((size, [piece]))
    for _, group in open_rows:
        yield group


def collate(groups: Sequence[Sequence[Piece]], length: int) -> Batch:
    """Each group of pieces as one row of `length` tokens."""
    shard = groups[0][0][0]
    taps, final = shard.read("taps", 0, 1), shard.read("final", 0, 1)
    shape = (len(groups), length)
    tokens, positions, chosen = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
    text = torch.full(shape, -1)
    answer = torch.zeros(shape, dtype=torch.bool)
    all_taps = torch.zeros(*shape, *taps.shape[1:], dtype=taps.dtype)
    all_final = torch.zeros(*shape, *final.shape[1:], dtype=final.dtype)
    for row, group in enumerate(groups):
        at = 0
        for number, (source, begin, end, prompt, _) in enumerate(group):
            where = (row, slice(at, at + end - begin))
            tokens[where] = source.read("tokens", begin, end).long()
            chosen[where] = source.read("chosen", begin, end).long()
            all_taps[where] = source.read("taps", begin, end)
            all_final[where] = source.read("final", begin, end)
            positions[where] = torch.arange(end - begin)
            text[where] = number
            answer[row, at + prompt : at + end - begin] = True
            at += end - begin
    kinds = tuple(group[0][-1] for group in groups)
    return Batch(tokens, positions, text, answer, all_taps, all_final, chosen, kinds)
