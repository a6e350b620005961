"""The operations on trees, on trees small enough to follow by hand, and against every path one by one."""

import itertools
import math

import pytest
import torch

from specc.ir.dialect import gumbel, ops

HEAT = torch.zeros(1, dtype=torch.float64)
SEED = torch.tensor([5])


def test_candidates_are_the_likeliest_tokens() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 99.0], [0.0, math.nan, -math.inf, 1.0, 99.0]])
    nodes, at = torch.tensor([4, 7]), torch.tensor([2, 2])
    scores = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    tokens, parents, found = ops.candidates(logits, nodes, scores, at, HEAT, SEED, 3, 4)
    assert tokens.tolist() == [1, 3, 2, 3, 0, 1]  # the lowest id wins a tie; NaN counts as -inf
    assert parents.tolist() == [4, 4, 4, 7, 7, 7]
    first = sum(math.exp(x) for x in (1, 3, 2, 3))
    second = 1 + math.e
    want = [
        *(-1 + x - math.log(first) for x in (3, 3, 2)), -2 + 1 - math.log(second), -2 - math.log(second), -math.inf,
    ]  # fmt: skip
    assert found.tolist() == pytest.approx(want, rel=1e-12)


def test_candidates_are_ranked_with_the_noise_of_the_next_position() -> None:
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(1, 40, generator=draw)
    zero, heat = torch.zeros(1, dtype=torch.float64), torch.tensor([0.7], dtype=torch.float64)
    at = torch.tensor([12])
    tokens, _, found = ops.candidates(logits, at, zero, at, heat, SEED, 5, 40)
    noisy = logits[0].double() / 0.7 + gumbel(5, 13, 40)
    assert tokens.tolist() == noisy.argsort(descending=True)[:5].tolist()
    # The first of them is what accept says at that position.
    chosen, _ = ops.accept(torch.tensor([0]), logits, at, heat, SEED, 40)
    assert tokens[0] == chosen[0]
    assert found.exp().sum().item() == pytest.approx(1)


@pytest.mark.parametrize("worst", [math.inf, -math.inf])
def test_where_nothing_can_be_told_nothing_is_likely(worst: float) -> None:
    logits = torch.tensor([[worst, worst, -math.inf]])
    one = torch.tensor([0])
    tokens, _, found = ops.candidates(logits, one, HEAT, one, HEAT, SEED, 2, 3)
    assert (tokens.tolist(), found.tolist()) == ([0, 1], [-math.inf, -math.inf])


def test_crossing_and_ranking() -> None:
    shares = torch.tensor([-1.0, -3.0], dtype=torch.float64)
    scores = torch.tensor([0.0, -2.0], dtype=torch.float64)
    tokens, parents, found = ops.cross(torch.tensor([8, 9]), shares, torch.tensor([1, 2]), scores)
    assert (tokens.tolist(), parents.tolist()) == ([8, 9, 8, 9], [1, 1, 2, 2])
    assert found.tolist() == [-1, -3, -3, -5]
    index, group = ops.best(found, 3, 2)
    assert (index.tolist(), group.tolist()) == ([0, 1, 2], [0, 0, 1])


def test_the_best_nodes_stay_a_tree() -> None:
    tokens = torch.tensor([3, 10, 11, 20, 21, 22, 23])
    parents = torch.tensor([-1, 0, 0, 1, 1, 2, 2])
    scores = torch.tensor([0.0, -1.0, -2.0, -1.5, -9.0, -2.0, -3.0], dtype=torch.float64)
    kept, above, depths = ops.prune_tree(tokens, parents, scores, 4)
    assert kept.tolist() == [3, 10, 11, 20, 22]
    assert above.tolist() == [-1, 0, 0, 1, 2]
    assert depths.tolist() == [0, 1, 1, 2, 2]


TOKENS = torch.tensor([0, 1, 2, 1, 0, 2])
PARENTS = torch.tensor([-1, 0, 0, 1, 1, 2])


@pytest.mark.parametrize("heat", [0.0, 1.3])
def test_the_accepted_path_is_what_one_row_after_another_says(heat: float) -> None:
    """For all choices of three tokens at the root and two nodes."""
    temperature = torch.tensor([heat], dtype=torch.float64)
    for said in itertools.product(range(3), repeat=3):
        logits = torch.full((6, 3), -1000.0)
        for node, token in zip((0, 1, 2), said, strict=True):
            logits[node, token] = 1000.0
        logits[3:, 0] = 1000.0
        length = torch.tensor([4])
        path, node = [], 0
        while True:
            path.append(node)
            token = int(logits[node].argmax())
            below = [i for i in range(6) if PARENTS[i] == node and TOKENS[i] == token]
            if not below:
                break
            node = below[0]
        tokens, accepted, nodes = ops.accept_tree(
            TOKENS, PARENTS, logits, length, temperature, SEED, 2, 3
        )
        assert int(accepted) == len(path) - 1
        assert tokens[: len(path)].tolist() == [int(logits[n].argmax()) for n in path]
        assert nodes.tolist() == [*path, *range(len(path), 3)]


def test_only_rows_that_count_may_spoil_it() -> None:
    logits = torch.zeros(6, 3)
    logits[0, 2] = 1
    logits[1, 0] = math.nan
    length = torch.tensor([0])
    _, accepted, nodes = ops.accept_tree(TOKENS, PARENTS, logits, length, HEAT, SEED, 2, 3)
    assert (int(accepted), nodes.tolist()) == (1, [0, 2, 2])
    logits[2, 0] = math.nan
    _, accepted, nodes = ops.accept_tree(TOKENS, PARENTS, logits, length, HEAT, SEED, 2, 3)
    assert (int(accepted), nodes.tolist()) == (-1, [0, 1, 2])


def test_a_chain_is_a_tree() -> None:
    draw = torch.Generator().manual_seed(2)
    for heat in (HEAT, HEAT + 1):
        for _ in range(20):
            tokens, length = torch.randint(0, 3, (4,), generator=draw), torch.tensor([9])
            logits = torch.randn(4, 3, generator=draw)
            want, accepted = ops.accept(tokens, logits, length, heat, SEED, 3)
            parents = torch.arange(4) - 1
            got, also, nodes = ops.accept_tree(tokens, parents, logits, length, heat, SEED, 3, 3)
            assert (got.tolist(), int(also)) == (want.tolist(), int(accepted))
            assert nodes.tolist() == [0, 1, 2, 3]
