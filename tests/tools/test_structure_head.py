"""The trained layers of mtp:structure find the places that go on as the model does, where the vectors alone do not."""

from __future__ import annotations

import pytest
import torch

from specc.errors import ModelError
from specc.passes.keep_structure import Basis, Head
from specc.structure_head import Measured, Stretch, fit_head, share

WIDTH, LENGTH = 8, 60
TOLD = 7
"""The one number of a place that tells how the text goes on; all others are louder, and tell nothing."""


def _stretch(draw: torch.Generator, *, told: bool) -> Stretch:
    """Token 0 at every third place, followed by 1 or 2: the model says which, and the row before knows it."""
    features = 3 * torch.randn(LENGTH, WIDTH, generator=draw)
    ways = torch.randint(1, 3, (LENGTH,), generator=draw)
    tokens = torch.randint(3, 1000, (LENGTH,), generator=draw)
    tokens[2::3] = 0
    tokens[3::3] = ways[2:-1:3]
    chosen = torch.full((LENGTH,), -1)
    chosen[2::3] = ways[2::3]
    features[1::3, TOLD] = (2.0 * ways[2::3] - 3) if told else 0
    return Stretch(features, tokens, chosen)


def _stretches(*, told: bool) -> list[Stretch]:
    draw = torch.Generator().manual_seed(4)
    return [_stretch(draw, told=told) for _ in range(12)]


def _plain() -> list[Stretch]:
    """Texts whose loud numbers tell all, which the vectors' own cosines find without a mistake."""
    found = []
    for stretch in _stretches(told=True):
        features = torch.zeros(LENGTH, WIDTH)
        features[1::3, 0] = 2.0 * stretch.chosen[2::3] - 3
        found.append(Stretch(features + 1e-3, stretch.tokens, stretch.chosen))
    return found


BASIS = Basis(torch.eye(WIDTH), torch.zeros(WIDTH))
"""Keeps the numbers as they are."""


@pytest.fixture(scope="module")
def fitted() -> tuple[Head, Measured]:
    return fit_head(_stretches(told=True), BASIS)


def test_layers_find_what_tells_places_apart(fitted: tuple[Head, Measured]) -> None:
    """Half of the places have token 0, and half of those are right by chance; after the other half nothing is right."""
    head, found = fitted
    assert 0.15 < found.without < 0.35
    assert found.with_head > 0.4
    fresh = [_stretch(torch.Generator().manual_seed(5), told=True) for _ in range(2)]
    shares = [share(s, head(s.features)) for s in fresh]
    assert sum(r for r, _ in shares) / sum(n for _, n in shares) > 0.4


def test_the_same_text_gives_the_same_layers(fitted: tuple[Head, Measured]) -> None:
    one, _ = fitted
    torch.manual_seed(10)
    before = torch.get_rng_state()
    other, _ = fit_head(_stretches(told=True), BASIS)
    assert torch.equal(one.first, other.first)
    assert torch.equal(one.second, other.second)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "stretches",
    [_stretches(told=True)[:1], [], _plain()],
    ids=["nothing held out", "no text", "nothing to gain"],
)
def test_layers_that_are_no_better_are_refused(stretches: list[Stretch]) -> None:
    with pytest.raises(ModelError, match="SPECC-E0239"):
        fit_head(stretches, BASIS)
