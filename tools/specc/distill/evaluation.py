"""How much of a held-out text a drafter would have said: rounds as the engine runs them, drafts by argmax."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from specc.distill.batches import Batch, Piece, collate

GREEDY = 0.95
"""Texts whose answer is to this share the target's first choices were written greedily; only they say what a greedy
drafter is worth."""


class Drafter(Protocol):
    """What evaluation asks of a method's drafter."""

    def drafts(self, batch: Batch, count: int) -> Tensor:
        """The tokens i64[count, B, T] that row i drafts for positions i + 2, i + 3, ... if all before are right."""
        ...


@dataclass
class Acceptance:
    """Rounds of K drafts: how many drafts of each were kept."""

    k: int
    kept: list[int] = field(default_factory=list)

    @property
    def length(self) -> float:
        """Tokens of a round on average: the drafts that were kept, and the target's own."""
        return 1 + sum(self.kept) / max(1, len(self.kept))

    def by_place(self) -> list[float]:
        """The share of rounds in which draft 1, 2, ... K was kept."""
        return [sum(a > t for a in self.kept) / max(1, len(self.kept)) for t in range(self.k)]

    def as_json(self) -> dict[str, Any]:
        """For reports."""
        places = [round(x, 3) for x in self.by_place()]
        return {"rounds": len(self.kept), "length": round(self.length, 3), "by_place": places}


def greedy_pieces(found: Iterable[Piece], most: int) -> list[Piece]:
    """Those that were written greedily, `most` of each kind."""
    kept: dict[str, list[Piece]] = {}
    for piece in found:
        shard, begin, end, prompt, kind = piece
        if len(kept.setdefault(kind, [])) == most or prompt < 2 or end - begin - prompt < 8:
            continue
        said = shard.read("tokens", begin + prompt, end).long()
        chosen = shard.read("chosen", begin + prompt - 1, end - 1).long()
        if float((said == chosen).float().mean()) >= GREEDY:
            kept[kind].append(piece)
    return [piece for group in kept.values() for piece in group]


@torch.no_grad()
def evaluate(
    drafter: Drafter, found: Sequence[Piece], k: int, device: torch.device | None = None
) -> dict[str, Acceptance]:
    """Acceptance with K = `k` by kind of text, and under `all`."""
    result = {"all": Acceptance(k)}
    by_length = sorted(found, key=lambda p: p[2] - p[1])
    for begin in range(0, len(by_length), 8):
        group = by_length[begin : begin + 8]
        batch = collate([[p] for p in group], max(p[2] - p[1] for p in group))
        batch = batch if device is None else batch.to(device)
        right = matches(drafter.drafts(batch, k), batch)
        for row, (_, start, end, prompt, kind) in enumerate(group):
            kept = rounds(right[:, row], prompt, end - start)
            result.setdefault(kind, Acceptance(k)).kept += kept
            result["all"].kept += kept
    return result


def matches(drafts: Tensor, batch: Batch) -> Tensor:
    """Whether draft t of row i is what the target says there, bool[K, B, T]; false past the end of a row."""
    right = torch.zeros(drafts.shape, dtype=torch.bool, device=drafts.device)
    for t, draft in enumerate(drafts):
        later = batch.chosen[:, t + 1 :]
        right[t, :, : later.shape[1]] = draft[:, : later.shape[1]] == later
    return right


def rounds(right: Tensor, prompt: int, length: int) -> list[int]:
    """Drafts kept in each round over a text, from matches bool[K, T]; only rounds that the text could hold whole.

    As the engine's, the first round begins at the prompt's last token; row n - 1 drafts when token n is the last known.
    """
    k = len(right)
    kept = right[:, :length].long().cumprod(0).sum(0).tolist()
    found, n = [], prompt - 1
    while n + k < length:
        found.append(int(kept[n - 1]))
        n += found[-1] + 1
    return found
