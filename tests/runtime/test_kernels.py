"""The model library's kernels, driven as the engine drives them: through ``specc_model_entry``."""

import subprocess

import numpy as np
import pytest
import torch

from specc.ir.dialect import ops
from tests.runtime.kernels import driver
from tests.runtime.noise import choose

ISAS, KernelError = driver.ISAS, driver.KernelError


def normal(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def pack(w):
    n, k = w.shape
    tiles = -(-n // 16)
    padded = np.zeros((tiles * 16, k), np.float32)
    padded[:n] = w
    return np.ascontiguousarray(padded.reshape(tiles, 16, k).transpose(0, 2, 1))


def bits(array):
    return array.tobytes()


def test_only_the_entry_is_exported(libraries):
    for isa in driver.NATIVE:
        command = ["nm", "-D", "--defined-only", libraries / f"{isa}.so"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert [line.split()[-1] for line in listed.splitlines()] == ["specc_model_entry"]


def test_table(model):
    assert model.table.abi == 1
    assert model.table.isa.decode() in ISAS
    assert {
        "specc.positions",
        "specc.rows",
        "specc.cat",
        "specc.row",
        "specc.argmax",
        "specc.accept",
        "specc.cache_copy",
        "specc.cache_move",
    } <= set(model.entries)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("function", "bound"), [*enumerate([1.0] + [0.51] * 6)])
def test_vector_functions(models, isa, function, bound):
    apart = 997 if isa in driver.NATIVE else 9973  # emulators are slow
    assert 0 <= models[isa].largest_error(function, apart) <= bound


# linear, embedding


SHAPES = [(16, 1), (40, 7), (96, 64), (100, 65), (33, 576), (1500, 300)]  # the last is for threads


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_linear_is_one_chain_of_fused_adds(models, rng, n, k):
    w, x, bias = normal(rng, n, k), normal(rng, 100, k), normal(rng, n)
    packed = pack(w)
    seen = set()
    chain = np.zeros((100, n), np.float32)
    for i in range(k):  # products of floats are exact in double
        chain = (chain + x[:, i : i + 1].astype(float) * w[:, i]).astype(np.float32)
    want = chain + bias
    for model in models.values():
        for threads in (1, 2, 3, 4):
            model.use_threads(threads)
            results = {}
            for rows in [*range(1, 33), 64, 97, 100]:
                got = model.run("specc.linear", x[:rows], packed, bias, attrs=[n, 0])
                np.testing.assert_array_equal(got, want[:rows])
                results[rows] = got
            seen.add(bits(results[100]))
            assert all(bits(got) == bits(results[100][:rows]) for rows, got in results.items())
    assert len(seen) == 1  # threads and ISA change nothing
    exact = torch.nn.functional.linear(
        *(torch.from_numpy(a).double() for a in (x, w, bias))
    ).numpy()
    np.testing.assert_allclose(results[100], exact, rtol=0, atol=2e-6 * k)


def test_linear_takes_leading_dimensions_and_strides(model, rng):
    w, x = normal(rng, 32, 24), normal(rng, 2, 6, 24)
    flat = model.run("specc.linear", x.reshape(12, 24), pack(w), attrs=[32, 0])
    assert bits(model.run("specc.linear", x, pack(w), attrs=[32, 0])) == bits(flat)
    assert bits(model.run("specc.linear", x[0, 0], pack(w), attrs=[32, 0])) == bits(flat[0])
    assert bits(model.run("every_second", x.reshape(12, 24), pack(w))) == bits(flat[::2])


def test_linear_rows_do_not_touch_each_other(model, rng):
    w, x = normal(rng, 64, 48), normal(rng, 8, 48)
    clean = model.run("specc.linear", x, pack(w), attrs=[64, 0])
    x[3] = np.nan
    dirty = model.run("specc.linear", x, pack(w), attrs=[64, 0])
    keep = [0, 1, 2, 4, 5, 6, 7]
    assert bits(clean[keep]) == bits(dirty[keep])
    assert np.isnan(dirty[3]).all()


def test_linear_refuses(model, rng):
    x, w = normal(rng, 2, 8), pack(normal(rng, 16, 8))
    for bad_x, bad_w, n in [
        (x[:, :4].copy(), w, 16),
        (x, w, 17),
        (x, w, 0),
        (x.astype(float), w, 16),
        (x, w[0], 16),
    ]:
        with pytest.raises(KernelError, match=r"linear: "):
            model.run("specc.linear", bad_x, bad_w, attrs=[n, 0])


def test_embedding(model, rng):
    w = normal(rng, 50, 12)
    tokens = np.array([0, 49, 17, 17])
    assert bits(model.run("specc.embedding", tokens, pack(w), attrs=[50, 12, 0])) == bits(w[tokens])
    for wrong in (-1, 50):
        with pytest.raises(KernelError, match=f"token id {wrong} "):
            model.run("specc.embedding", np.array([1, wrong]), pack(w), attrs=[50, 12, 0])


# cache and attention


def test_cache_write(model, rng):
    cache, rows = normal(rng, 3, 10, 5), normal(rng, 2, 3, 5)
    want = cache.copy()
    want[:, [7, 2]] = rows.transpose(1, 0, 2)
    model.run("specc.cache_write", cache, rows, np.array([7, 2]), outputs=0)
    assert bits(cache) == bits(want)
    for wrong in (-1, 10):
        with pytest.raises(KernelError, match="outside the cache"):
            model.run("specc.cache_write", cache, rows, np.array([3, wrong]), outputs=0)
    assert bits(cache) == bits(want)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_shard_takes_its_own_rows(model, rng, dtype):
    """Rows before and behind it are another's; a negative one is nobody's."""
    cache, rows = normal(rng, 3, 4, 5).astype(dtype), normal(rng, 4, 3, 5).astype(dtype)
    want = cache.copy()
    want[:, [3, 0]] = rows[1:3].transpose(1, 0, 2)
    model.run("specc.cache_write_shard", cache, rows, np.array([5, 9, 6, 10]), attrs=[6], outputs=0)
    assert bits(cache) == bits(want)
    with pytest.raises(KernelError, match="row -1 is outside"):
        model.run(
            "specc.cache_write_shard", cache, rows, np.array([6, -1, 7, 8]), attrs=[6], outputs=0
        )


# plan built-ins


def test_positions(model):
    assert model.run("specc.positions", np.array([5]), attrs=[4, 2]).tolist() == [7, 8, 9, 10]
    assert model.run("specc.positions", np.array([0]), attrs=[3, -2]).tolist() == [0, 0, 0]
    assert model.run("specc.positions", np.array([0]), attrs=[0, 0]).shape == (0,)


def test_pad_rows_repeats_the_last(model):
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert model.run("specc.pad_rows", x, attrs=[5]).tolist() == [
        [0, 1],
        [2, 3],
        [4, 5],
        [4, 5],
        [4, 5],
    ]
    assert model.run("specc.pad_rows", np.array([7, 9]), attrs=[2]).tolist() == [7, 9]
    for rows in (x, x[:0]):
        with pytest.raises(KernelError, match="cannot become"):
            model.run("specc.pad_rows", rows, attrs=[2])


def test_first_rows(model):
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert model.run("specc.first_rows", x, attrs=[2]).tolist() == [[0, 1], [2, 3]]
    assert model.run("specc.first_rows", np.array([7, 9]), attrs=[2]).tolist() == [7, 9]
    for count in (0, 4):
        with pytest.raises(KernelError, match=f"{count} of 3 rows"):
            model.run("specc.first_rows", x, attrs=[count])


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("tree", [False, True])
def test_masks_are_the_dialects(model, window, tree):
    positions, rows = np.array([3, 4, 5, 5]), np.array([7, 8, 9, 9])
    more = [np.array([-1, 0, 1, 1])] if tree else []
    found = model.run("specc.masks", positions, rows, *more, attrs=[window, 12], outputs=2)
    tensors = [torch.from_numpy(a) for a in (positions, rows, *more)]
    want = ops.masks(*tensors, *([] if tree else [None]), None, window, 12)
    assert [bits(a) for a in found] == [bits(b.numpy()) for b in want]


def test_masks_of_a_block_are_the_dialects(model):
    """Rows that all see up to the last, and write others than that."""
    last = [np.array([6, 6, 6]), np.array([8, 8, 8]), np.array([-1, -1, -1]), np.array([6, 7, 8])]
    for window in (0, 4):
        found = model.run("specc.masks", *last, attrs=[window, 12], outputs=2)
        want = ops.masks(*map(torch.from_numpy, last), window, 12)
        assert [bits(a) for a in found] == [bits(b.numpy()) for b in want]


@pytest.mark.parametrize("first", [0, 4, 8])
@pytest.mark.parametrize("window", [0, 3])
def test_masks_of_a_shard_are_the_dialects(model, window, first):
    positions, rows = np.array([7, 8, 8]), np.array([9, 10, 10])
    found = model.run("specc.masks", positions, rows, attrs=[window, 4, first], outputs=2)
    want = ops.masks(
        torch.from_numpy(positions), torch.from_numpy(rows), None, None, window, 4, first
    )
    assert [bits(a) for a in found] == [bits(b.numpy()) for b in want]


def test_rows_in_the_caches_own_type_are_written_as_they_are(model, rng):
    cache = rng.standard_normal((1, 6, 4)).astype(np.float16)
    x = rng.standard_normal((2, 1, 4)).astype(np.float16)
    want = cache.copy()
    want[0, [3, 1]] = x[:, 0]
    model.run("specc.cache_write", cache, x, np.array([3, 1]), outputs=0)
    assert bits(cache) == bits(want)


def test_masks_of_rows_that_cannot_be(model):
    for position, row in ((5, 4), (0, 12), (-1, 3)):
        with pytest.raises(KernelError, match="masks: row 0"):
            model.run(
                "specc.masks", np.array([position]), np.array([row]), attrs=[0, 12], outputs=2
            )


def test_cat_row_and_cache_copy(model, rng):
    a, b = normal(rng, 2, 3), normal(rng, 1, 3)
    assert bits(model.run("specc.cat", a, b, a)) == bits(np.concatenate([a, b, a]))
    assert model.run("specc.cat", np.array([1]), np.array([2, 3])).tolist() == [1, 2, 3]
    for index, row in [(0, 0), (1, 1), (9, 1), (-4, 0)]:
        assert bits(model.run("specc.row", a, np.array([index]))) == bits(a[row : row + 1])
    state = normal(rng, 4, 3)
    want = np.concatenate([a, state[2:]])
    model.run("specc.cache_copy", a, state, outputs=0)
    assert bits(state) == bits(want)
    for call in [("specc.cat", a, b[:, :2].copy()), ("specc.cache_copy", state, a)]:
        with pytest.raises(KernelError, match=call[0].removeprefix("specc.")):
            model.run(*call, outputs=int(call[0] == "specc.cat"))


def test_argmax(model, rng):
    x = normal(rng, 3, 200000)
    x[0, [70, 199999]] = 9
    x[1, 140000:] = 9
    x[2] = -np.inf
    for threads in (1, 3):
        model.use_threads(threads)
        greedy = [70, int(x[1, :140000].argmax()), 0]
        assert model.run("specc.argmax", x, attrs=[140000]).tolist() == greedy
        assert model.run("specc.argmax", x, attrs=[200000]).tolist() == [70, 140000, 0]


def accept(tokens, logits, length, temperature, seed, valid):
    """runtime/README.md's text, word for word."""
    y, accepted = [0] * len(tokens), 0
    for r in range(len(tokens)):
        if np.isnan(logits[r, :valid]).any():
            return [0] * len(tokens), -1
        y[r], accepted = choose(logits[r, :valid], temperature, seed, length + 1 + r), r
        if r + 1 == len(tokens) or tokens[r + 1] != y[r]:
            break
    return y, accepted


def run_accept(model, tokens, logits, length, temperature, seed, valid):
    scalars = np.array([length]), np.array([float(temperature)]), np.array([seed])
    y, accepted = model.run(
        "specc.accept", np.array(tokens), logits, *scalars, outputs=2, attrs=[valid]
    )
    return y.tolist(), accepted.item()


@pytest.mark.parametrize("temperature", [0, 1e-3, 0.3, 1, 5, 1e6, 1e-310])
def test_accept_follows_the_text(model, rng, temperature):
    for trial in range(12):
        seed, length = int(rng.integers(-(2**63), 2**63 - 1)), int(rng.integers(0, 10**6))
        logits = normal(rng, 5, 600) * np.float32(rng.choice([0.1, 3, 30]))
        logits[:, 40::7] = logits[:, 40:41]  # ties
        model.use_threads(1 + trial % 3)
        matches = trial % 5  # how many drafts are right
        tokens = [0] * 5
        for r in range(matches):
            tokens[r + 1] = choose(logits[r, :590], temperature, seed, length + 1 + r)
        want = accept(tokens, logits, length, temperature, seed, 590)
        assert run_accept(model, tokens, logits, length, temperature, seed, 590) == want
        assert want[1] >= matches


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_accept_looks_at_no_more_rows_than_there_are_tokens(model, rng, temperature):
    """Of a graph that all K share: rows beyond the drafts may say anything, even what is no number."""
    logits = rng.standard_normal((6, 40)).astype(np.float32)
    tokens = [3, *accept([3, 0, 0], logits[:3], 9, temperature, 5, 40)[0][:1], 0]
    want = accept(tokens, logits[:3], 9, temperature, 5, 40)
    assert want[1] == 1
    logits[3:] = np.nan
    assert run_accept(model, tokens, logits, 9, temperature, 5, 40) == want


def test_accept_over_a_real_vocabulary_is_the_same_for_any_threads(model, rng):
    logits = normal(rng, 1, 49152) * 3
    for temperature in (0.7, 1.5):
        want = choose(logits[0], temperature, 11, 43)
        for threads in (1, 2, 3):
            model.use_threads(threads)
            assert run_accept(model, [5], logits, 42, temperature, 11, 49152) == ([want], 0)


def test_accept_and_nan(model, rng):
    logits = normal(rng, 3, 40)
    first = int(logits[0].argmax())
    logits[1, 7] = np.nan
    for temperature in (0, 1.0):
        right = choose(logits[0], temperature, 0, 1)
        wrong = (right + 1) % 40
        assert run_accept(model, [0, right, 0], logits, 0, temperature, 0, 40)[1] == -1
        assert run_accept(model, [0, wrong, 0], logits, 0, temperature, 0, 40) == ([right, 0, 0], 0)
    logits[0, 39] = np.nan
    assert run_accept(model, [0, 0, 0], logits, 0, 0, 0, 40) == ([0, 0, 0], -1)
    assert (
        run_accept(model, [0, 39, 0], logits, 0, 0, 0, 39)[0][0] == first
    )  # beyond the vocabulary nothing counts
    with pytest.raises(KernelError, match="temperature"):
        run_accept(model, [0, 0, 0], logits, 0, -1, 0, 40)


def test_sampling_has_the_softmax_law(model):
    """Over 20000 positions the tokens' frequencies pass a chi-square test."""
    logits = np.array([[2.0, 0.0, -1.0, 1.0, 0.5, -3.0]], np.float32)
    for temperature in (0.5, 1.0, 2.0):
        counts = np.zeros(6)
        for position in range(20000):
            counts[run_accept(model, [0], logits, position, temperature, 99, 6)[0][0]] += 1
        p = np.exp(logits[0] / temperature)
        expected = p / p.sum() * 20000
        assert (
            (counts - expected) ** 2 / expected
        ).sum() < 25.7  # 5 degrees of freedom, one in ten thousand


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_tokens_do_not_depend_on_drafts(model, temperature):
    """All drafts of length 2 over 6 tokens: each leads to the same text as no drafting at all."""
    table = np.random.default_rng(3).standard_normal(
        (6, 6), dtype=np.float32
    )  # a model: logits given the last token

    def generate(drafts):
        text, length = [0], 0
        while len(text) < 12:
            tokens = [text[-1], *drafts]
            y, accepted = run_accept(model, tokens, table[tokens], length, temperature, 5, 6)
            text += y[: accepted + 1]
            length += accepted + 1
        return text[:12]

    plain = generate([])
    assert all(generate([a, b]) == plain for a in range(6) for b in range(6))


# the shim, through hand-written leaves


def test_leaf_matmuls(model, rng):
    a, b, bias = normal(rng, 70, 6), normal(rng, 70, 130), normal(rng, 130)
    for threads in (1, 3):
        model.use_threads(threads)
        product = model.run("mm", a, b)
        np.testing.assert_allclose(product, a.T.astype(float) @ b, rtol=0, atol=1e-4)
        assert bits(model.run("mm", a[:, :1].copy(), b)) == bits(product[:1])  # rows independent
        left = np.ascontiguousarray(a.T)
        np.testing.assert_allclose(
            model.run("addmm", bias, left, b), 2 * (left @ b) + 0.5 * bias, rtol=0, atol=1e-4
        )
        x, y = normal(rng, 5, 3, 20), normal(rng, 5, 20, 7)
        np.testing.assert_allclose(model.run("bmm", x, y), x @ y, rtol=0, atol=1e-5)


def test_leaf_views_copies_and_clones(model, rng):
    x, row = normal(rng, 4, 3), normal(rng, 1)
    changed, clone = model.run("shuffle", x, row, outputs=2)
    want = x.T.copy()
    want[0], want[1] = row, 0
    np.testing.assert_array_equal(changed, want)
    np.testing.assert_array_equal(clone, x.T)


def test_failures_name_the_leaf_or_the_cause(model, rng):
    with pytest.raises(KernelError, match="refuse: the leaf's own text"):
        model.run("refuse")
    with pytest.raises(KernelError, match="mm: the shapes do not fit"):
        model.run("mm", normal(rng, 3, 2), normal(rng, 4, 2))


def test_a_steady_state_allocates_nothing(model, rng):
    x, w = normal(rng, 4, 64), pack(normal(rng, 64, 64))
    q, k = normal(rng, 4, 2, 32), normal(rng, 1, 40, 32)
    seen = []
    for _ in range(5):
        model.run("specc.linear", x, w, attrs=[64, 0])
        where = [np.arange(4)] * 3
        model.run("specc.cached_attention", q, k, k, *where, np.ones(1), np.zeros(1), attrs=[0, 0])
        with pytest.raises(KernelError):
            model.run("mm", normal(rng, 3, 2), normal(rng, 4, 2))
        seen.append(model.run("allocations").item())
    assert seen[1] == seen[-1]
