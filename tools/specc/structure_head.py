"""Two trained layers over the vectors of mtp:structure, and whether they tell places apart better than none.

A place of a text is worth copying from if what followed it there is what the model says now. The vectors' cosines rank
places; the layers are trained so that those of places worth copying come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specc.errors import ModelError
from specc.passes.keep_structure import Basis, Head

NESTED = (32, 128)
"""Columns of what the layers make that are compared in short and in longer texts (structure.cpp): each is trained."""

SHARPNESS = 10.0
"""Of the softmax over cosines, by which the engine weighs places (structure.cpp)."""

EVERY = 6
"""Of so many stretches one is held out, and one says when to stop."""

STEPS, PATIENCE, RATE, DECAY, DROPOUT = 240, 40, 3e-3, 0.05, 0.5

MOST_OTHERS = 24
"""Places, about, that each is compared with in training; a frequent token has many."""

SEED = 0


@dataclass(frozen=True, eq=False)
class Stretch:
    """A text and what the target made of it: `features` [N, F], `tokens` i64[N], `chosen` i64[N], its next choices."""

    features: Tensor
    tokens: Tensor
    chosen: Tensor


@dataclass(frozen=True)
class Measured:
    """On `places` of texts that were held out: the share where the best match goes on as the model does."""

    places: int
    without: float
    with_head: float


def fit_head(stretches: Sequence[Stretch], basis: Basis) -> tuple[Head, Measured]:
    """The layers, trained on most of `stretches`, and what they are worth on some that they never met.

    The same text gives the same layers. Raises ModelError (SPECC-E0239) where they are no better than none.
    """
    taught, stop, held = (
        [s for i, s in enumerate(stretches) if min(EVERY - 1 - i % EVERY, 2) == part]
        for part in (2, 1, 0)
    )
    head, found = None, Measured(0, 0.0, 0.0)
    if held:
        pairs, others = _Pairs(taught, basis), _Pairs(stop, basis)
        if pairs.places and others.places:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(SEED)
                head = _trained(pairs, others)
            found = _measured(head, held, basis)
    if head is None or found.with_head <= found.without:
        raise ModelError(
            "SPECC-E0239", "two trained layers find no better places for mtp:structure than none do",
            expected=f"more than {found.without:.3f} of held-out places to go on as the model does",
            found=f"{found.with_head:.3f} of {found.places}",
            cure="leave out --structure-head, or bring more text with --calibration",
        )  # fmt: skip
    return head, found


def _measured(head: Head, held: Sequence[Stretch], basis: Basis) -> Measured:
    plain = [share(s, projected(s, basis)) for s in held]
    better = [share(s, head(projected(s, basis))) for s in held]
    places = max(1, sum(count for _, count in plain))
    return Measured(places, *(sum(right for right, _ in way) / places for way in (plain, better)))


def projected(stretch: Stretch, basis: Basis) -> Tensor:
    """Vectors f32[N, D] of a text."""
    return torch.nn.functional.linear(stretch.features.float(), basis.weight, basis.bias)


def share(stretch: Stretch, rows: Tensor) -> tuple[int, int]:
    """Of the places of a text that have one to copy from, how many have the right one first; and how many there are.

    As the engine finds it: places p < n with the same token, by the cosine of rows p - 1 and n - 1 in as many columns
    as are compared in a text that ends at n, of equals the later.
    """
    tokens, right, count = stretch.tokens, 0, 0
    for n in range(2, len(tokens)):
        places = 1 + (tokens[1:n] == tokens[n]).nonzero()[:, 0]
        if len(places) == 0:
            continue
        columns = 32 if n < 256 else 128 if n < 1024 else 256
        then, now = rows[places - 1, :columns], rows[n - 1, :columns]
        similar = torch.cosine_similarity(then, now[None], dim=-1)
        best = places[len(places) - 1 - int(similar.flip(0).argmax())]
        right += int(tokens[best + 1] == stretch.chosen[n])
        count += 1
    return right, count


class _Pairs:
    """Pairs of places with the same token, and whether the second goes on as the model says at the first."""

    def __init__(self, stretches: Sequence[Stretch], basis: Basis) -> None:
        self.z = torch.cat([projected(s, basis) for s in stretches])
        tokens = torch.cat([s.tokens for s in stretches])
        chosen = torch.cat([s.chosen for s in stretches])
        starts = torch.tensor([0, *(len(s.tokens) for s in stretches)]).cumsum(0)
        # A place needs one before it, for its row, and one after it, for what followed, in the same text.
        inner = torch.ones(len(tokens), dtype=torch.bool)
        inner[starts[:-1]] = inner[starts[1:] - 1] = False
        pairs, draw = [], torch.Generator().manual_seed(SEED)
        for token in sorted(set(tokens.tolist())):
            alike = ((tokens == token) & inner).nonzero()[:, 0]
            now, then = torch.meshgrid(alike, alike, indexing="ij")
            some = torch.rand(now.shape, generator=draw) * len(alike) < MOST_OTHERS
            some &= now != then
            pairs.append(torch.stack([now[some], then[some]]))
        now, then = torch.cat(pairs, 1)
        good = tokens[then + 1] == chosen[now]
        # Only where some are right and some are not is there anything to learn.
        sums = [torch.zeros(len(tokens)).index_add(0, now, g.float()) for g in (good, ~good)]
        self.teaching = (sums[0] > 0) & (sums[1] > 0)
        kept = self.teaching[now]
        self.now, self.then, self.good = now[kept], then[kept], good[kept]

    @property
    def places(self) -> int:
        """That teach something."""
        return int(self.teaching.sum())

    def loss(self, rows: Tensor) -> Tensor:
        """How far from all is the weight that the right places have, by the cosines of `rows` [N, E]."""
        parts = []
        for columns in {min(c, rows.shape[1]) for c in NESTED}:
            h = torch.nn.functional.normalize(rows[:, :columns], dim=-1)
            cosine = (h[self.now - 1] * h[self.then - 1]).sum(-1)
            weight = torch.exp(SHARPNESS * (cosine - 1))
            every, right = (
                torch.zeros(len(rows)).index_add(0, self.now, w)[self.teaching]
                for w in (weight, weight * self.good)
            )
            parts.append(-(right / every).log().mean())
        return torch.stack(parts).sum()


def _trained(pairs: _Pairs, others: _Pairs) -> Head:
    """The weights with the least loss on `others`.

    They begin as the vectors' first columns, in which loud ones are softened: silu(x) - silu(-x) is x.
    """
    scale = pairs.z.std(0).clamp_min(1e-6)
    width = min(NESTED[-1], len(scale))
    through = torch.zeros(width, len(scale))
    through[:, :width] = torch.diag(scale[:width].sqrt())
    ones = torch.eye(width)
    weights = [torch.cat([through, -through]), torch.zeros(2 * width), torch.cat([ones, -ones], 1)]
    for weight in weights:
        weight.requires_grad_(True)
    head = Head(*weights)
    optimiser = torch.optim.AdamW(weights, RATE, weight_decay=DECAY)
    best, least, since = [w.detach().clone() for w in weights], float("inf"), 0
    for _ in range(STEPS):
        loss = pairs.loss(head(torch.nn.functional.dropout(pairs.z / scale, DROPOUT)))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        with torch.no_grad():
            found = float(others.loss(head(others.z / scale)))
        since += 1
        if found < least:
            best, least, since = [w.detach().clone() for w in weights], found, 0
        if since == PATIENCE:
            break
    first, bias, second = best
    return Head((first / scale).contiguous(), bias, second)
