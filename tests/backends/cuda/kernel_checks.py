"""Specc's Triton kernels, by Triton's interpreter, against the dialect's own implementations. A program of its own:

TRITON_INTERPRET=1 python -m tests.backends.cuda.kernel_checks
"""

from __future__ import annotations

from typing import Any

import torch

import specc.ir  # noqa: F401 - defines the dialect
from specc.backends.cuda import kernels, packed, trees  # noqa: F401 - they define more
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


def quantised(random: torch.Generator) -> None:
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
        given = cuda.attention(q, k, v, *seen, None, scale, window, softcap, sinks)
        assert given.dtype == computed
        wanted = ops.cached_attention(q.float(), k, v, *seen, None, scale, window, softcap, sinks)
        close(given.float(), wanted, ROUNDING[computed])
        # A row alone has the bits that it has among others.
        one = cuda.attention(
            q[3:4], k, v, seen[0][3:4], seen[1][3:4], None, scale, window, softcap, sinks
        )
        assert torch.equal(one[0], given[3])


def token_trees(random: torch.Generator) -> None:
    """A node sees its path as a text would be seen: to the last bit."""
    k, v = (torch.randn(2, 160, 16, generator=random) for _ in range(2))
    parents = torch.tensor([-1, 0, 0, 1, 2, 4, 4])
    depths = torch.tensor([0, 1, 1, 2, 2, 3, 3])
    rows, positions = 70 + torch.arange(7), 62 + depths  # the text begins at row 8
    q = torch.randn(7, 4, 16, generator=random)
    for window in (0, 5):
        given = cuda.attention(q, k, v, positions, rows, parents, 0.25, window, 0.0, None)
        wanted = ops.cached_attention(q, k, v, positions, rows, parents, 0.25, window, 0.0, None)
        close(given, wanted)
        path = torch.tensor([0, 2, 4, 6])
        as_text = [cache.clone() for cache in (k, v)]
        for cache in as_text:
            cache[:, 70:74] = cache[:, rows[path]]
        one = cuda.attention(
            q[6:], *as_text, torch.tensor([65]), torch.tensor([73]), None, 0.25, window, 0.0, None
        )
        assert torch.equal(one[0], given[6])
    moved = [k.clone(), k.clone()]
    target = torch.tensor([70, 71, 72, 73])
    cuda.cache_write(moved[0], cuda.pick_rows(k, rows[path]), target)
    ops.cache_move(moved[1], rows[path], target)
    assert torch.equal(*moved)

    seed, length = torch.tensor([9]), torch.tensor([40])
    for heat in (0.0, 0.9):
        temperature = torch.tensor([heat], dtype=torch.float64)
        logits = torch.randn(3, 9000, generator=random)
        logits[1] = (logits[1] * 2).round()  # ties
        logits[2, 7:] = -torch.inf
        logits[0, 3] = torch.nan
        nodes, at = torch.tensor([4, 5, 7]), torch.tensor([40, 41, 41])
        scores = torch.randn(3, generator=random, dtype=torch.float64)
        found = cuda.candidates(logits, nodes, scores, at, temperature, seed, 5, 8999)
        wanted = ops.candidates(logits, nodes, scores, at, temperature, seed, 5, 8999)
        assert [t.tolist() for t in found[:2]] == [t.tolist() for t in wanted[:2]]
        torch.testing.assert_close(found[2], wanted[2])
        # The path that the target goes, from a tree that has it.
        tokens, logits = torch.zeros(7, dtype=torch.int64), torch.randn(7, 300, generator=random)
        for node, above in enumerate(parents.tolist()):
            said = ops.accept_tree(tokens[:1], parents[:1], logits[above : above + 1], length - 1 + depths[node],
                                   temperature, seed, 0, 290)[0] if above >= 0 else tokens  # fmt: skip
            tokens[node] = said[0] if node in (0, 2, 4, 6) else 299
        for broken in (False, True):
            if broken:
                logits[4, 3] = torch.nan
            given = cuda.accept_tree(tokens, parents, logits, length, temperature, seed, 3, 290)
            told = ops.accept_tree(tokens, parents, logits, length, temperature, seed, 3, 290)
            assert int(told[1]) == (-1 if broken else 3)
            count = int(told[1]) + 1
            assert given[1].tolist() == told[1].tolist()
            assert given[0][:count].tolist() == told[0][:count].tolist()
            assert given[2].tolist() == told[2].tolist()
    scores = torch.tensor([0.0, -1, -2, -1, -3, -2, -4, -3], dtype=torch.float64)
    above = torch.tensor([-1, 0, 0, 1, 1, 3, 2, 5])
    assert [t.tolist() for t in cuda.best(scores, 3, 2)] == [
        t.tolist() for t in ops.best(scores, 3, 2)
    ]
    for count in (3, 5):
        kept = cuda.prune_tree(10 + torch.arange(8), above, scores, count)
        wanted = ops.prune_tree(10 + torch.arange(8), above, scores, count)
        assert [t.tolist() for t in kept] == [t.tolist() for t in wanted]


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
    for check in (linear, quantised, caches, token_trees, rows, verdicts):
        check(torch.Generator().manual_seed(1))
        print(check.__name__, "ok")
