"""Specc's Triton kernels, by Triton's interpreter, against the dialect's own implementations. A program of its own:

TRITON_INTERPRET=1 python -m tests.backends.cuda.kernel_checks
"""

from __future__ import annotations

from typing import Any

import torch

import specc.ir  # noqa: F401 - defines the dialect
from specc.backends.cuda import kernels as _  # noqa: F401
from specc.backends.cuda import packed as __  # noqa: F401
from specc.ir.encodings import ENCODINGS
from tests.backends.cuda.interpreted import bfloat16, fused

ops, cuda = torch.ops.specc, torch.ops.specc_cuda


def close(given: torch.Tensor, wanted: torch.Tensor, least: float = 2e-5) -> None:
    torch.testing.assert_close(given, wanted, rtol=least, atol=least)


ROUNDING = {torch.float32: 2e-5, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""What a result of these types may be off by, as a share of it."""


def linear(random: torch.Generator) -> None:
    cases = (
        (1, 33, 70, True, torch.float32), (19, 40, 64, False, torch.float32), (3, 33, 70, True, torch.bfloat16),
        (2, 40, 130, False, torch.float16),
    )  # fmt: skip
    for rows, columns, depth, biased, dtype in cases:
        x, w, bias = (
            torch.randn(*shape, generator=random).to(dtype)
            for shape in ((rows, depth), (columns, depth), (columns,))
        )
        wanted = x.float() @ w.float().T + (bias.float() if biased else 0)
        given = cuda.linear(x, w, bias if biased else None, True)
        assert given.dtype == torch.float32
        close(given, wanted)  # halves are multiplied exactly, and summed in f32
        rounded = cuda.linear(x, w, bias if biased else None, False)
        assert rounded.dtype == dtype
        assert torch.equal(rounded, given.to(dtype))


def packed(random: torch.Generator) -> None:
    """To the last bit: the order of sums is part of what a quantised product means."""
    for encoding in (e for e in ENCODINGS if e.quantised):
        for rows, columns, depth in ((3, 40, 128), (17, 16, 96)):
            if not encoding.fits(columns, depth):
                continue
            w = encoding.encode(torch.randn(columns, depth, generator=random))
            x = torch.randn(rows, depth, generator=random)
            x[0, :32], x[2, 40] = 0, torch.inf
            bias = torch.randn(columns, generator=random) if rows == 3 else None
            facts = (encoding.bits, encoding.group or depth, encoding.minimum)
            given = cuda.packed_linear(x, w, bias, columns, *facts)
            wanted = ops.linear(x, w, bias, columns, encoding.name)
            assert given[2].isnan().all()
            assert torch.equal(given.nan_to_num(), wanted.nan_to_num()), encoding
            tokens = torch.tensor([0, 15, columns - 1])
            found = cuda.packed_embedding(tokens, w, depth, *facts)
            assert torch.equal(found, ops.embedding(tokens, w, columns, depth, encoding.name))


def caches(random: torch.Generator) -> None:
    """Rows of two texts, the second of which begins at cache row 80; what nobody wrote is NaN."""
    options: tuple[tuple[Any, ...], ...] = (
        (torch.float32, torch.float32, 12, 12, 0.3, 0, 0.0, False),
        (torch.float32, torch.float16, 16, 16, 0.25, 5, 0.0, False),
        (torch.float32, torch.float32, 16, 8, 0.25, 0, 7.5, True),
        (torch.bfloat16, torch.bfloat16, 16, 16, 0.25, 0, 0.0, False),
    )
    for computed, dtype, width, width_v, scale, window, softcap, with_sinks in options:
        k, v = (torch.full((2, 160, w), torch.nan, dtype=dtype) for w in (width, width_v))
        rows = torch.cat([torch.arange(70), torch.arange(80, 90)])
        positions = torch.cat([torch.arange(70), torch.arange(10)])
        expected = [k.clone(), v.clone()]
        for cache, wanted in zip((k, v), expected, strict=True):
            x = torch.randn(80, 2, cache.shape[2], generator=random)
            cuda.cache_write(cache, x, rows)
            ops.cache_write(wanted, x, rows)
            assert torch.equal(cache.nan_to_num(), wanted.nan_to_num())
        picked = torch.tensor([0, 63, 64, 69, 70, 79])
        q = torch.randn(6, 4, width, generator=random).to(computed)
        sinks = torch.randn(4, generator=random) if with_sinks else None
        seen = (positions[picked], rows[picked])
        given = cuda.attention(q, k, v, *seen, scale, window, softcap, sinks)
        assert given.dtype == computed
        wanted = ops.cached_attention(q.float(), k, v, *seen, None, scale, window, softcap, sinks)
        close(given.float(), wanted, ROUNDING[computed])
        # A row alone has the bits that it has among others.
        one = cuda.attention(
            q[3:4], k, v, seen[0][3:4], seen[1][3:4], scale, window, softcap, sinks
        )
        assert torch.equal(one[0], given[3])


def rows(random: torch.Generator) -> None:
    x = torch.randn(5, 3, 7, generator=random)
    for index in (-2, 0, 4, 9):
        at = torch.tensor([index])
        assert torch.equal(cuda.row(x, at), ops.row(x, at))
    given, wanted = torch.full((8, 1030), 2.0), torch.full((8, 1030), 2.0)
    taps = torch.randn(5, 1030, generator=random)
    cuda.cache_copy(taps, given)
    ops.cache_copy(taps, wanted)
    assert torch.equal(given, wanted)


def verdicts(random: torch.Generator) -> None:
    seed = torch.tensor([-77])
    for case, heat in enumerate((0.0, 0.0, 0.0, 0.0, 0.7, 1.3)):
        logits = torch.randn(5, 1100, generator=random)
        logits[1] = logits[1].round()  # ties: the lowest id wins
        best = ops.argmax(logits, 1050)
        assert torch.equal(cuda.argmax(logits, 1050), best)
        length, temperature = torch.tensor([12 + case]), torch.tensor([heat], dtype=torch.float64)
        tokens = torch.cat([torch.tensor([3]), best[:4]])
        if heat > 0:  # drafts that sampling itself would keep, up to the third
            for k in range(1, 4):
                tokens[k] = ops.accept(tokens[:k], logits[:k], length, temperature, seed, 1050)[0][
                    k - 1
                ]
        elif case < 3:
            tokens[case + 2] = 1099
        if case == 2:
            logits[4, 5] = torch.nan  # after the row that decides, and so of no account
        if case == 3:
            logits[2, 5] = torch.nan
        wanted = ops.accept(tokens, logits, length, temperature, seed, 1050)
        given = cuda.accept(tokens, logits, length, temperature, seed, 1050)
        assert given[1].tolist() == wanted[1].tolist(), (case, given, wanted)
        count = int(wanted[1])
        assert count == (1, 2, 3, -1)[case] if heat == 0 else count >= 3
        assert given[0][: count + 1].tolist() == wanted[0][: count + 1].tolist()
        assert not given[0][count + 1 :].any()


if __name__ == "__main__":
    bfloat16()
    fused()
    for check in (linear, packed, caches, rows, verdicts):
        check(torch.Generator().manual_seed(1))
        print(check.__name__, "ok")
