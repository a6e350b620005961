"""Caches and attention: rows, texts, trees, threads, instruction sets and dtypes change no bit that they should not."""

import itertools

import numpy as np
import pytest

from tests.runtime.kernels.driver import KernelError


def normal(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def bits(array):
    return array.tobytes()


SHAPES = [
    # query heads, kv heads, key size, value size, window, softcap, sinks
    (9, 3, 64, 64, 0, 0.0, False),
    (4, 4, 32, 32, 0, 0.0, True),
    (4, 1, 128, 72, 13, 0.0, False),
    (6, 2, 20, 12, 300, 30.0, True),
    (2, 2, 7, 9, 0, 50.0, False),
    (40, 1, 64, 64, 0, 0.0, False),
]


def seen_rows(positions, rows, parents):
    """The definition in ir/dialect.py, again."""
    seen = []
    for t, (position, row) in enumerate(zip(positions, rows, strict=True)):
        root = parents is None or parents[t] < 0
        seen.append([*range(row - position, row + 1)] if root else [*seen[parents[t]], row])
    return seen


def attend(q, k, v, seen, scale, window, softcap, sinks):
    """The definition, in double precision."""
    q, k, v = (a.astype(float) for a in (q, k, v))
    out = np.zeros((*q.shape[:2], v.shape[2]))
    group = q.shape[1] // k.shape[0]
    for t, h in itertools.product(range(len(q)), range(q.shape[1])):
        rows = seen[t][-window:] if window else seen[t]
        s = k[h // group, rows] @ q[t, h] * scale
        if softcap:
            s = softcap * np.tanh(s / softcap)
        top = max(s.max(), sinks[h] if sinks is not None else -np.inf)
        e = np.exp(s - top)
        extra = np.exp(sinks[h] - top) if sinks is not None else 0
        out[t, h] = e @ v[h // group, rows] / (e.sum() + extra)
    return out


class Case:
    """Two texts in caches of 1200 rows: positions 500 to 519 from row 0 on, 250 to 269 from row 600 on."""

    def __init__(self, rng, shape, dtype=np.float32):
        hq, hkv, d, dv, self.window, self.softcap, sunk = shape
        self.q = normal(rng, 40, hq, d)
        self.k, self.v = (normal(rng, hkv, 1200, w).astype(dtype) for w in (d, dv))
        self.sinks = normal(rng, hq) if sunk else None
        self.positions = np.concatenate([np.arange(20) + 500, np.arange(20) + 250])
        self.rows = np.concatenate([np.arange(20) + 500, np.arange(20) + 850])
        self.tree = np.array([-1, *[rng.integers(0, t) for t in range(1, 20)]])
        self.tree = np.concatenate([self.tree, np.where(self.tree < 0, -1, self.tree + 20)])

    def poison(self, seen):
        """NaN in every cache row that nobody sees."""
        window = self.window or 1200
        dead = list({*range(1200)} - {r for rows in seen for r in rows[-window:]})
        self.k[:, dead] = self.v[:, dead] = np.nan

    def run(self, model, part, k=None, v=None, where=None, parents=None):
        k, v = (self.k if k is None else k), (self.v if v is None else v)
        positions, rows = where or (self.positions[part], self.rows[part])
        above = rows if parents is None else parents
        extra = () if self.sinks is None else (self.sinks,)
        scale = np.array([self.q.shape[2] ** -0.5])
        return model.run(
            "specc.cached_attention", self.q[part], k, v, positions, rows, above, scale,
            np.array([self.softcap]), *extra, attrs=[self.window, int(parents is not None)],
        )  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_one_result_whatever_the_machine_and_its_threads(models, rng, shape, kind):
    case = Case(rng, shape)
    parents = case.tree if kind == "tree" else None
    seen = seen_rows(case.positions, case.rows, parents)
    case.poison(seen)
    scale = case.q.shape[2] ** -0.5
    want = attend(case.q, case.k, case.v, seen, scale, case.window, case.softcap, case.sinks)
    results = set()
    for model in models.values():
        for threads in (1, 2, 3, 4):
            model.use_threads(threads)
            got = case.run(model, slice(0, 40), parents=parents)
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)
            results.add(bits(got))
    assert len(results) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_is_alone(model, rng, shape):
    """Any rows of any texts in one call, in any number: each row's bits are its own."""
    case = Case(rng, shape)
    case.poison(seen_rows(case.positions, case.rows, None))
    whole = case.run(model, slice(0, 40))
    for threads in (1, 2, 4):
        model.use_threads(threads)
        for lo, hi in [*((0, n) for n in range(1, 33)), (19, 21), (5, 38), (39, 40)]:
            assert bits(case.run(model, slice(lo, hi))) == bits(whole[lo:hi])
    mixed = rng.permutation(40)
    assert bits(case.run(model, mixed)) == bits(whole[mixed])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_path_of_a_tree_has_the_bits_of_a_chain(model, rng, shape):
    case = Case(rng, shape)
    seen = seen_rows(case.positions, case.rows, case.tree)
    got = case.run(model, slice(0, 40), parents=case.tree)
    for t in range(0, 40, 3):
        k, v = (np.ascontiguousarray(x[:, seen[t]]) for x in (case.k, case.v))
        last = np.array([len(seen[t]) - 1])
        alone = case.run(model, slice(t, t + 1), k, v, (last, last))
        assert bits(alone) == bits(got[t : t + 1])


def test_more_texts_than_fit_a_block(models, rng):
    """Eight texts of three rows each are eight calls."""
    case = Case(rng, SHAPES[0])
    starts = np.arange(8) * 140
    positions = (np.arange(3) + np.arange(8)[:, None] * 17).reshape(-1)
    rows = positions + starts.repeat(3)
    results = set()
    for model in models.values():
        for threads in (1, 3):
            model.use_threads(threads)
            together = case.run(model, slice(0, 24), where=(positions, rows))
            results.add(bits(together))
            for text in range(8):
                part = slice(3 * text, 3 * text + 3)
                own = (positions[part], rows[part] - starts[text])
                moved = [np.ascontiguousarray(x[:, starts[text] :]) for x in (case.k, case.v)]
                assert bits(case.run(model, part, *moved, own)) == bits(together[part])
    assert len(results) == 1


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_caches_of_half_precision_are_widened(models, rng, shape):
    case = Case(rng, shape, np.float16)
    case.poison(seen_rows(case.positions, case.rows, case.tree))
    results = set()
    for model in models.values():
        halves = case.run(model, slice(0, 40), parents=case.tree)
        wide = case.run(
            model,
            slice(0, 40),
            case.k.astype(np.float32),
            case.v.astype(np.float32),
            parents=case.tree,
        )
        assert bits(halves) == bits(wide)
        results.add(bits(halves))
    assert len(results) == 1


def test_halves_are_rounded_to_nearest_even(model):
    x = np.array(
        [1, 1 + 2**-11, 1 + 3 * 2**-11, -65519, 65520, 1e-8, 3e-8, np.nan, np.inf], np.float32
    )
    cache = np.zeros((1, 2, 9), np.float16)
    model.run("specc.cache_write", cache, x.reshape(1, 1, 9), np.array([1]), outputs=0)
    assert not cache[0, 0].any()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(cache[0, 1], x.astype(np.float16))


def test_ends_and_refusals(model, rng):
    k, v, q = normal(rng, 1, 700, 16), normal(rng, 1, 700, 16), normal(rng, 3, 2, 16)
    at = np.array([0, 699, 350])  # rows need not be in order
    args = (np.array([0.25]), np.array([0.0]))

    def run(positions, rows, parents=None):
        above = rows if parents is None else parents
        attrs = [0, int(parents is not None)]
        return model.run(
            "specc.cached_attention", q, k, v, positions, rows, above, *args, attrs=attrs
        )

    np.testing.assert_array_equal(run(at, at)[0], np.repeat(v[:, 0], 2, axis=0))
    for wrong in (-1, 700):
        spoiled = np.array([0, 1, wrong])
        with pytest.raises(KernelError, match="outside the cache"):
            run(at, spoiled)
    with pytest.raises(KernelError, match="position 350 cannot lie in cache row 349"):
        run(at, np.array([0, 699, 349]))
    for parents in ([-1, 1, 0], [-1, 0, -2]):
        with pytest.raises(KernelError, match="has parent"):
            run(at, at, np.array(parents))


def test_a_nan_stays_in_its_row(model, rng):
    case = Case(rng, SHAPES[0])
    clean = case.run(model, slice(0, 40))
    case.q[7] = np.nan
    spoiled = case.run(model, slice(0, 40))
    assert np.isnan(spoiled[7]).all()
    others = [t for t in range(40) if t != 7]
    assert bits(spoiled[others]) == bits(clean[others])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_move_together(model, rng, dtype):
    cache = normal(rng, 3, 10, 5).astype(dtype)
    want = cache.copy()
    source, target = np.array([4, 5, 2, 9]), np.array([3, 4, 5, 9])
    want[:, target] = cache[:, source]
    model.run("specc.cache_move", cache, source, target, outputs=0)
    assert bits(cache) == bits(want)
    with pytest.raises(KernelError, match="outside the cache"):
        model.run("specc.cache_move", cache, source, target + 1, outputs=0)


def test_rows_of_texts(model):
    at = model.run("specc.positions", np.array([4, 0]), attrs=[2, -1])
    assert at.tolist() == [3, 4, 0, 0]
    assert model.run("specc.rows", at, np.array([0, 16])).tolist() == [3, 4, 16, 16]
