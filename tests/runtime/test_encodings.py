"""Kernels on packed weights of every encoding: the bits of the eager definition, whoever computes and beside whom."""

import numpy as np
import pytest
import torch

from specc.ir import Encoding
from specc.ir.dialect import ops
from specc.ir.encodings import ENCODINGS
from tests.runtime.kernels.driver import KernelError

QUANTISED = [e for e in ENCODINGS if e.quantised]
ROWS = [*range(1, 33), 64, 97, 110]


def bits(array):
    return array.tobytes()


def matrix(rng, n, k):
    """Weights of very different sizes, a group of zeros and a column of them among them."""
    w = rng.standard_normal((n, k), dtype=np.float32) * np.exp(rng.standard_normal((n, 1)) * 2)
    w[2, : k // 2] = 0
    w[n - 1] = 0
    return torch.from_numpy(w.astype(np.float32))


def activations(rng, rows, k):
    """Rows with outliers, one of zeros, one of values too small to matter."""
    x = rng.standard_normal((rows, k), dtype=np.float32)
    x[::3, ::37] *= 50
    x[5], x[6] = 0, 1e-38
    return x


def variants(models):
    """Every build, with each of the kernels in it that run here."""
    for model in models.values():
        count = int(model.run("use_integer_kernels", np.array([-1]))[0])
        for index in range(count):
            if model.run("use_integer_kernels", np.array([index]))[1]:
                yield model
        model.run("use_integer_kernels", np.array([-1]))


@pytest.mark.parametrize("encoding", QUANTISED, ids=str)
@pytest.mark.parametrize(("n", "k"), [(16, 128), (50, 384), (2000, 256)])  # the last is for threads
def test_integer_products_have_the_bits_of_the_definition(models, rng, encoding, n, k):
    w, x = matrix(rng, n, k), activations(rng, max(ROWS), k)
    packed, bias = encoding.encode(w), rng.standard_normal(n, dtype=np.float32)
    want = ops.linear.default(
        torch.from_numpy(x), packed, torch.from_numpy(bias), n, encoding.name
    ).numpy()
    for model in variants(models):
        for threads in (1, 2, 3, 4):
            model.use_threads(threads)
            for rows in ROWS if threads == 1 else (1, 4, 7, 110):
                got = model.run("specc.linear", x[:rows], packed, bias, attrs=[n, encoding.number])
                assert bits(got) == bits(want[:rows]), (rows, threads)
        model.use_threads(1)


def test_activations_are_rounded_to_even(models):
    """Halves between integers: with a scale of 1 they are met exactly."""
    x = np.zeros((1, 32), np.float32)
    x[0, :8] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]
    encoding = Encoding.parse("q8g32")
    packed = encoding.encode(torch.eye(32))
    want = [127, 0, 2, 2, 0, -2, -2, 126]
    one = float(encoding.decode(packed, 32, 32)[0, 0])
    for model in variants(models):
        got = model.run("specc.linear", x, packed, attrs=[32, encoding.number])
        np.testing.assert_allclose(got[0, :8] / one, want, rtol=1e-6)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_rows_do_not_touch_each_other(models, rng, encoding):
    n, k = 100, 256
    packed, x = encoding.encode(matrix(rng, n, k)), activations(rng, 32, k)
    attrs = [n, encoding.number]
    for model in variants(models):
        clean = model.run("specc.linear", x, packed, attrs=attrs)
        for rows in range(2, 33):
            dirty = x[:rows].copy()
            bad = [rows // 2, rows - 1]
            dirty[bad[0], 3], dirty[bad[1], 200] = np.nan, np.inf
            got = model.run("specc.linear", dirty, packed, attrs=attrs)
            good = [r for r in range(rows) if r not in bad]
            assert bits(got[good]) == bits(clean[good]), rows
            assert np.isnan(got[bad[0]]).all()
            if encoding.quantised:
                assert np.isnan(got[bad[1]]).all()


@pytest.mark.parametrize(("n", "k"), [(16, 1), (100, 65), (1500, 300)])
def test_bf16_weights_are_widened_and_nothing_else(models, rng, n, k):
    """The bits of f32 weights with the same values, for any rows, threads and build."""
    x, w = rng.standard_normal((100, k), dtype=np.float32), matrix(rng, n, k).bfloat16()
    f32, bf16 = Encoding.parse("f32"), Encoding.parse("bf16")
    for model in models.values():
        want = model.run("specc.linear", x, f32.encode(w.float()), attrs=[n, 0])
        for threads in (1, 2, 3, 4):
            model.use_threads(threads)
            for rows in (*range(1, 33), 97, 100):
                got = model.run("specc.linear", x[:rows], bf16.encode(w.float()), attrs=[n, 1])
                assert bits(got) == bits(want[:rows]), (rows, threads)
        model.use_threads(1)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_embedding_rows_are_what_is_stored(model, rng, encoding):
    packed = encoding.encode(matrix(rng, 50, 256))
    tokens = np.array([0, 49, 2, 17, 17])
    want = encoding.decode(packed, 50, 256)[torch.from_numpy(tokens)].numpy()
    got = model.run("specc.embedding", tokens, packed, attrs=[50, 256, encoding.number])
    np.testing.assert_array_equal(got, want)
    assert np.signbit(got).tolist() == np.signbit(want).tolist()


def test_whole_range_of_integers_and_scales(models, rng):
    """What GGUF files may hold: -128, scales that are negative, huge, or below the normal f16."""
    n, k = 32, 128
    for name in ("q8g32", "q4g32", "q4mg32", "q8"):
        encoding = Encoding.parse(name)
        low, high, kind = (-128, 128, np.int8) if encoding.bits == 8 else (0, 16, np.uint8)
        q = torch.from_numpy(rng.integers(low, high, (n, k)).astype(kind))
        q[0], q[1] = low, high - 1
        groups = k // (encoding.group or k)
        d = torch.tensor([6e-8, -0.5, 60000.0, 3e-6]).half().repeat(n * groups).view(-1)
        d = d[: n * groups].view(n, groups)
        packed = encoding.from_blocks(q, d, -d if encoding.minimum else None)
        x = rng.standard_normal((8, k), dtype=np.float32)
        x[0] = np.sign(x[0])  # integers of 127 throughout
        want = ops.linear.default(torch.from_numpy(x), packed, None, n, name).numpy()
        for model in variants(models):
            got = model.run("specc.linear", x, packed, attrs=[n, encoding.number])
            assert bits(got) == bits(want)
            rows = model.run("specc.embedding", np.arange(n), packed, attrs=[n, k, encoding.number])
            np.testing.assert_array_equal(rows, encoding.decode(packed, n, k).numpy())


def test_what_does_not_fit_is_refused(model, rng):
    encoding = Encoding.parse("q4g64")
    packed, x = encoding.encode(matrix(rng, 32, 128)), activations(rng, 8, 128)
    for bad_x, bad_w, n, number in [
        (x, packed, 48, encoding.number),
        (x, packed, 32, Encoding.parse("q4g32").number),
        (x, packed, 32, len(ENCODINGS)),
        (x, packed, 32, -1),
        (x[:, :96].copy(), packed, 32, encoding.number),
        (x, packed.view(torch.uint8)[:, :-64].contiguous(), 32, encoding.number),
        (x.astype(float), packed, 32, encoding.number),
    ]:
        with pytest.raises(KernelError, match=r"linear: .*\[.*, |linear: x is|no weight encoding"):
            model.run("specc.linear", bad_x, bad_w, attrs=[n, number])


def test_a_steady_state_allocates_nothing(model, rng):
    encoding = Encoding.parse("q4mg32")
    packed, x = encoding.encode(matrix(rng, 64, 128)), activations(rng, 8, 128)
    seen = []
    for _ in range(5):
        for rows in (1, 3, 8):
            model.run("specc.linear", x[:rows], packed, attrs=[64, encoding.number])
        seen.append(model.run("allocations").item())
    assert seen[1] == seen[-1]
