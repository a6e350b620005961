"""Specc's Triton kernels, by Triton's interpreter, against the dialect's own implementations. A program of its own:

TRITON_INTERPRET=1 python -m tests.backends.cuda.kernel_checks
"""

from __future__ import annotations

from typing import Any

import torch

import specc.ir  # noqa: F401 - defines the dialect
from specc.backends.cuda import kernels as _  # noqa: F401

ops, cuda = torch.ops.specc, torch.ops.specc_cuda


def close(given: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(given, wanted, rtol=2e-5, atol=2e-5)


def linear(random: torch.Generator) -> None:
    for rows, columns, depth, biased in ((1, 33, 70, True), (19, 40, 64, False)):
        x = torch.randn(rows, depth, generator=random)
        w, bias = (
            torch.randn(columns, depth, generator=random),
            torch.randn(columns, generator=random),
        )
        given = cuda.linear(x, w, bias if biased else None)
        close(given, torch.nn.functional.linear(x, w, bias if biased else None))


def caches(random: torch.Generator) -> None:
    """Rows of two texts, the second of which begins at cache row 80; what nobody wrote is NaN."""
    options: tuple[tuple[Any, ...], ...] = (
        (torch.float32, 12, 12, 0.3, 0, 0.0, False),
        (torch.float16, 16, 16, 0.25, 5, 0.0, False),
        (torch.float32, 16, 8, 0.25, 0, 7.5, True),
    )
    for dtype, width, width_v, scale, window, softcap, with_sinks in options:
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
        q = torch.randn(6, 4, width, generator=random)
        sinks = torch.randn(4, generator=random) if with_sinks else None
        seen = (positions[picked], rows[picked])
        given = cuda.attention(q, k, v, *seen, scale, window, softcap, sinks)
        close(given, ops.cached_attention(q, k, v, *seen, None, scale, window, softcap, sinks))
        # A row alone has the bits that it has among others.
        one = cuda.attention(
            q[3:4], k, v, seen[0][3:4], seen[1][3:4], scale, window, softcap, sinks
        )
        assert torch.equal(one[0], given[3])


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
    for check in (linear, caches, verdicts):
        check(torch.Generator().manual_seed(1))
        print(check.__name__, "ok")
