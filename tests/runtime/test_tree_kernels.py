"""The entries on token trees: what the dialect says they are, for any machine and number of threads."""

import numpy as np
import pytest
import torch

from specc.ir.dialect import ops
from tests.runtime.kernels.driver import KernelError


def tensors(*arrays):
    return [torch.from_numpy(a) for a in arrays]


def candidates(model, logits, nodes, scores, positions, temperature, seed, count, valid):
    scalars = np.array([float(temperature)]), np.array([seed])
    inputs = (logits, nodes, scores, positions, *scalars)
    return model.run("specc.candidates", *inputs, outputs=3, attrs=[count, valid])


def same(got, want):
    """Integers exactly, scores to within the rounding of float sums."""
    for mine, theirs in zip(got, want, strict=True):
        if mine.dtype == np.float64:
            np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(mine, theirs.numpy())


@pytest.mark.parametrize("temperature", [0, 1e-3, 0.7, 1, 30, 1e-310])
def test_candidates_follow_the_dialect(models, rng, temperature):
    for trial in range(6):
        logits = rng.standard_normal((5, 700), dtype=np.float32) * np.float32(
            rng.choice([0.1, 3, 30])
        )
        logits[:, 40::7] = logits[:, 40:41]  # ties
        logits[1, 5:400], logits[2, 9:] = (
            -np.inf,
            np.nan,
        )  # a drafter with few tokens; one that is broken
        nodes, positions = np.arange(5) + 3, rng.integers(0, 10**6, 5)
        scores, seed = -rng.random(5) * 9, int(rng.integers(-(2**63), 2**63 - 1))
        count = [1, 3, 8, 9, 8, 64][trial]
        heat, key = torch.tensor([float(temperature)], dtype=torch.float64), torch.tensor([seed])
        want = ops.candidates(*tensors(logits, nodes, scores, positions), heat, key, count, 690)
        found = set()
        for model in models.values():
            for threads in (1, 3):
                model.use_threads(threads)
                args = (logits, nodes, scores, positions, temperature, seed, count, 690)
                got = candidates(model, *args)
                same(got, want)
                found.add(b"".join(x.tobytes() for x in got))
        assert len(found) == 1


def test_candidates_over_a_real_vocabulary(model, rng):
    logits = rng.standard_normal((2, 49152), dtype=np.float32) * 3
    one, scores = np.array([0, 0]), np.zeros(2)
    for temperature in (0, 0.8):
        heat = torch.tensor([float(temperature)], dtype=torch.float64)
        want = ops.candidates(*tensors(logits, one, scores, one), heat, torch.tensor([4]), 8, 49152)
        same(candidates(model, logits, one, scores, one, temperature, 4, 8, 49152), want)


def test_crossing_ranking_and_pruning(model, rng):
    tokens, shares = np.arange(4) + 7, -np.sort(rng.random(4))
    nodes, scores = np.array([1, 3, 2]), -rng.random(3)
    args = (tokens, shares, nodes, scores)
    crossed = model.run("specc.cross", *args, outputs=3)
    same(crossed, ops.cross(*tensors(*args)))
    ranked = model.run("specc.best", crossed[2], outputs=2, attrs=[5, 4])
    same(ranked, ops.best(torch.from_numpy(crossed[2]), 5, 4))
    for _ in range(20):
        size = int(rng.integers(2, 40))
        parents = np.array([-1, *[rng.integers(0, t) for t in range(1, size)]])
        values = np.zeros(size)
        for t in range(1, size):  # with many ties
            values[t] = values[parents[t]] - rng.integers(0, 3) / 2
        many = rng.integers(0, 99, size)
        count = int(rng.integers(1, size))
        got = model.run("specc.prune_tree", many, parents, values, outputs=3, attrs=[count])
        same(got, ops.prune_tree(*tensors(many, parents, values), count))


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_accepted_paths_follow_the_dialect(models, rng, temperature):
    lengths = set()
    for _ in range(60):
        size, depth = 14, 3
        parents = np.array([-1, *[rng.integers(0, t) for t in range(1, size)]])
        tokens = rng.integers(0, 3, size)
        logits = rng.standard_normal((size, 5), dtype=np.float32)
        length, seed = int(rng.integers(0, 99)), int(rng.integers(0, 99))
        scalars = np.array([length]), np.array([float(temperature)]), np.array([seed])
        want = ops.accept_tree(*tensors(tokens, parents, logits, *scalars), depth, 3)
        lengths.add(int(want[1]))
        for model in models.values():
            inputs = (tokens, parents, logits, *scalars)
            same(model.run("specc.accept_tree", *inputs, outputs=3, attrs=[depth, 3]), want)
    assert lengths == {0, 1, 2, 3}


def test_accepting_and_nan(model):
    tokens, parents = np.array([0, 1, 2, 1]), np.array([-1, 0, 0, 2])
    logits = np.zeros((4, 3), np.float32)
    logits[0, 2] = 1
    scalars = np.array([0]), np.array([0.0]), np.array([0])

    def run(depth=2, above=parents):
        return model.run(
            "specc.accept_tree", tokens, above, logits, *scalars, outputs=3, attrs=[depth, 3]
        )

    logits[1, 0] = np.nan  # not on the path
    chosen, accepted, nodes = run()
    assert (chosen.tolist(), accepted.item(), nodes.tolist()) == ([2, 0, 0], 1, [0, 2, 2])
    logits[2, 0] = np.nan
    chosen, accepted, nodes = run()
    assert (chosen.tolist(), accepted.item(), nodes.tolist()) == ([0, 0, 0], -1, [0, 1, 2])
    for wrong in ([0, 0, 0, 2], [-1, 0, -1, 2], [-1, 0, 2, 2]):
        with pytest.raises(KernelError, match="has parent"):
            run(above=np.array(wrong))
    with pytest.raises(KernelError, match="a depth of 4"):
        run(depth=4)


def test_rows_and_refusals(model, rng):
    x = rng.standard_normal((5, 3), dtype=np.float32)
    index = np.array([4, 0, 4])
    np.testing.assert_array_equal(model.run("specc.take", x, index), x[index])
    assert model.run("specc.take", index, np.array([1])).tolist() == [0]
    assert model.run("specc.roots", index).tolist() == [-1, -1, -1]
    for wrong in (-1, 5):
        with pytest.raises(KernelError, match="row"):
            model.run("specc.take", x, np.array([wrong]))
    with pytest.raises(KernelError, match="a NaN"):
        model.run("specc.best", np.array([0.0, np.nan]), outputs=2, attrs=[1, 1])
    above, values = np.array([-1, 0, 1]), np.array([0.0, -2.0, -1.0])
    with pytest.raises(KernelError, match="better score than its parent"):
        model.run("specc.prune_tree", above, above, values, outputs=3, attrs=[1])
    at, one = np.array([0]), np.zeros(1)
    with pytest.raises(KernelError, match="4 of 3"):
        candidates(model, x[:1], at, one, at, 0, 0, 4, 3)


def test_a_long_call_of_roots_needs_no_room_for_paths(model, rng):
    """Rows of a prefill have parents too where a model knows trees."""
    k = rng.standard_normal((1, 700, 16), dtype=np.float32)
    q, at = rng.standard_normal((600, 1, 16), dtype=np.float32), np.arange(600)
    scalars = np.array([0.25]), np.array([0.0])

    def run(parents, told):
        return model.run(
            "specc.cached_attention", q, k, k, at, at, parents, *scalars, attrs=[0, told]
        )

    assert run(np.full(600, -1), 1).tobytes() == run(at, 0).tobytes()
