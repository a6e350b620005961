"""The dialect against independent references: torch, transformers' eager code, arithmetic."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma_attention
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as sink_attention

from specc.ir.dialect import gumbel, ops, splitmix64

Shape = tuple[int, int, int]
SHAPES = [(4, 4, 8), (4, 2, 8), (6, 1, 4)]


def _qkv(heads: int, kv: int, width: int, rows: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(heads)
    q, k, v = (torch.randn(1, h, rows, width, generator=draw) for h in (heads, kv, kv))
    return q, k, v


def _mask(rows: int, window: int) -> Tensor:
    gap = torch.arange(rows)[:, None] - torch.arange(rows)
    return (gap >= 0) & (gap < (window or rows))


def _cached(q: Tensor, k: Tensor, v: Tensor, first: int, *rest: object) -> Tensor:
    """Rows `first` and later on caches that hold the rows before from row 3 on, and NaN elsewhere."""
    caches = [torch.full((x.shape[1], 16, x.shape[3]), torch.nan) for x in (k, v)]
    for begin, end in ((0, first), (first, q.shape[2])):
        at = torch.arange(begin, end)
        for cache, x in zip(caches, (k, v), strict=True):
            ops.cache_write(cache, x[0, :, at].transpose(0, 1), at + 3)
    rows = q[0, :, first:].transpose(0, 1)
    result: Tensor = ops.cached_attention(rows, *caches, at, at + 3, None, *rest)
    return result


@pytest.mark.parametrize("window", [0, 1, 4, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_torchs(shape: Shape, window: int) -> None:
    q, k, v = _qkv(*shape)
    want = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=_mask(9, window), scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(ops.attention(q, k, v, None, 0.3, window, 0.0, 0), want)
    for first in (0, 3, 8):
        got = _cached(q, k, v, first, 0.3, window, 0.0, None)
        torch.testing.assert_close(got, want[0, first:])


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_softcap_is_gemmas(shape: Shape, window: int) -> None:
    q, k, v = _qkv(*shape)
    module = SimpleNamespace(num_key_value_groups=shape[0] // shape[1], training=False)
    mask = torch.where(_mask(9, window), 0.0, -torch.inf)[None, None]
    want, _ = gemma_attention(module, q, k, v, mask, scaling=0.7, softcap=2.0)
    torch.testing.assert_close(ops.attention(q, k, v, None, 0.7, window, 2.0, 0), want)
    torch.testing.assert_close(_cached(q, k, v, 5, 0.7, window, 2.0, None), want[0, 5:])


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_sinks_are_gpt_osss(shape: Shape, window: int) -> None:
    q, k, v = _qkv(*shape)
    sinks = torch.linspace(-1, 2, shape[0])
    module = SimpleNamespace(num_key_value_groups=shape[0] // shape[1], training=False, sinks=sinks)
    mask = torch.where(_mask(9, window), 0.0, -torch.inf)[None, None]
    want, _ = sink_attention(module, q, k, v, mask, scaling=0.7)
    torch.testing.assert_close(ops.attention(q, k, v, sinks, 0.7, window, 0.0, 0), want)
    torch.testing.assert_close(_cached(q, k, v, 5, 0.7, window, 0.0, sinks), want[0, 5:])


@pytest.mark.parametrize("window", [0, 3])
def test_a_row_has_the_same_bits_whatever_the_rows_beside_and_beyond_it(window: int) -> None:
    q, k, v = _qkv(4, 2, 8)
    alone = torch.cat(
        [
            _cached(q[:, :, :n], k[:, :, :n], v[:, :, :n], n - 1, 0.3, window, 0.0, None)
            for n in range(1, 10)
        ]
    )
    assert torch.equal(_cached(q, k, v, 0, 0.3, window, 0.0, None), alone)
    for x in (k, v):  # rows of the same call that a row does not see
        x[:, :, 6:] = torch.nan
    assert torch.equal(_cached(q, k, v, 0, 0.3, window, 0.0, None)[:6], alone[:6])
    assert torch.equal(ops.attention(q, k, v, None, 0.3, window, 0.0, 0)[0, :6], alone[:6])


def _tree(window: int, parents: list[int]) -> tuple[Tensor, list[list[int]]]:
    """Rows of two texts' token trees on poisoned caches, and the cache rows that each should see.

    Text 0 has cache rows 0 to 15, of which 0 to 4 are committed, text 1 has 16 on, with none.
    """
    q, k, v = _qkv(4, 2, 8, rows=9)
    caches = [torch.full((2, 32, 8), torch.nan) for _ in range(2)]
    roots = {0: (5, 5), 5: (0, 16)}  # row of the call -> position and cache row of a root
    rows = [5, 6, 7, 8, 9, 16, 17, 18, 19]
    seen: list[list[int]] = []
    for t, parent in enumerate(parents):
        position, row = roots.get(t, (0, rows[t]))
        seen.append([*range(row - position, row + 1)] if t in roots else [*seen[parent], row])
    for cache, x in zip(caches, (k, v), strict=True):
        cache[:, :5] = x[0, :, :5] * 2
        ops.cache_write(cache, x[0].transpose(0, 1), torch.tensor(rows))
    at = torch.tensor([len(s) - 1 for s in seen])
    arguments = (at, torch.tensor(rows), torch.tensor(parents), 0.3, window, 0.0, None)
    return ops.cached_attention(q[0].transpose(0, 1), *caches, *arguments), seen


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize(
    "parents", [[-1, 0, 0, 1, 2, -1, 5, 5, 7], [-1, 0, 1, 2, 3, -1, 5, 6, 7], [-1, 0, 0, 0, 0, -1, 5, 5, 5]]
)  # fmt: skip
def test_a_path_of_a_tree_has_the_bits_of_a_chain(parents: list[int], window: int) -> None:
    """Each row again as the last of a text that is its path alone, in consecutive cache rows."""
    got, seen = _tree(window, parents)
    q, k, v = _qkv(4, 2, 8, rows=9)
    rows = [5, 6, 7, 8, 9, 16, 17, 18, 19]
    for t, path in enumerate(seen):
        content = [
            torch.stack([x[0, :, rows.index(r)] if r in rows else x[0, :, r] * 2 for r in path], 1)
            for x in (k, v)
        ]
        at = torch.tensor([len(path) - 1])
        alone = ops.cached_attention(
            q[0, :, t][None], *content, at, at, None, 0.3, window, 0.0, None
        )
        assert torch.equal(got[t], alone[0])


def test_a_block_may_see_all_of_itself() -> None:
    """A block drafter's rows: visibility comes from the arguments, whatever RoPE was told."""
    q, k, v = _qkv(4, 2, 8)
    want = torch.nn.functional.scaled_dot_product_attention(
        q[:, :, 4:], k, v, scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    last = torch.full((5,), 8)
    caches = (k[0], v[0])
    rows = q[0, :, 4:].transpose(0, 1)
    got = ops.cached_attention(rows, *caches, last, last, None, 0.3, 0, 0.0, None)
    torch.testing.assert_close(got, want[0])


def test_masks_say_who_is_seen() -> None:
    """A text from cache row 2 on, three rows committed; the call writes two and repeats the last."""
    positions, rows = torch.tensor([3, 4, 4]), torch.tensor([5, 6, 6])
    old, new = ops.masks(positions, rows, None, None, 0, 9)
    assert [r.nonzero().flatten().tolist() for r in old == 0] == [[2, 3, 4]] * 3
    assert [r.nonzero().flatten().tolist() for r in new == 0] == [[0], [0, 1], [0, 1]]
    old, new = ops.masks(positions, rows, None, None, 2, 9)
    assert [r.nonzero().flatten().tolist() for r in old == 0] == [[4], [], []]
    assert [r.nonzero().flatten().tolist() for r in new == 0] == [[0], [0, 1], [0, 1]]
    branches = ops.masks(
        torch.tensor([3, 4, 4]), torch.tensor([5, 6, 7]), torch.tensor([-1, 0, 0]), None, 0, 9
    )
    assert [r.nonzero().flatten().tolist() for r in branches[1] == 0] == [[0], [0, 1], [0, 2]]
    last = (torch.tensor([5, 5, 5]), torch.tensor([7, 7, 7]))
    block = ops.masks(*last, None, torch.tensor([5, 6, 7]), 0, 9)
    assert [r.nonzero().flatten().tolist() for r in block[0] == 0] == [[2, 3, 4]] * 3
    assert [r.nonzero().flatten().tolist() for r in block[1] == 0] == [[0, 1, 2]] * 3


def test_rows_that_cannot_be() -> None:
    q, cache = torch.ones(2, 1, 4), torch.ones(1, 8, 4)
    for positions, rows, parents in [
        ([3, 1], [2, 3], None), ([-1, 0], [2, 3], None), ([0, 1], [2, 3], [-1, 1]),
        ([0, 1], [2, 3], [-2, 0]),
    ]:  # fmt: skip
        above = None if parents is None else torch.tensor(parents)
        where = (torch.tensor(positions), torch.tensor(rows), above)
        with pytest.raises(ValueError, match=r"row [01]: position"):
            ops.cached_attention(q, cache, cache, *where, 1.0, 0, 0.0, None)


def test_rows_move_together() -> None:
    cache = torch.arange(6.0)[None, :, None].repeat(2, 1, 3)
    ops.cache_move(cache, torch.tensor([2, 3, 1, 5]), torch.tensor([1, 2, 3, 5]))
    assert cache[:, :, 0].tolist() == [[0, 2, 3, 1, 4, 5]] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_caches_round_once_and_widen(dtype: torch.dtype) -> None:
    q, k, v = _qkv(4, 2, 8)
    at = torch.arange(9)
    caches = [torch.zeros(2, 9, 8, dtype=dtype) for _ in range(2)]
    for cache, x in zip(caches, (k, v), strict=True):
        ops.cache_write(cache, x[0].transpose(0, 1), at)
        assert torch.equal(cache, x[0].to(dtype))
    rows = q[0].transpose(0, 1)
    where = (at, at, None, 0.3, 0, 0.0, None)
    wide = [cache.float() for cache in caches]
    got = ops.cached_attention(rows, *caches, *where)
    assert got.dtype == torch.float32
    assert torch.equal(got, ops.cached_attention(rows, *wide, *where))


CASES: dict[str, tuple[object, ...]] = {
    "attention": (*_qkv(4, 2, 8), None, 0.3, 0, 0.0, 0),
    "cached_attention": (
        torch.ones(2, 4, 8), torch.ones(2, 5, 8), torch.ones(2, 5, 6), torch.tensor([1, 2]),
        torch.tensor([2, 4]), torch.tensor([-1, 0]), 1.0, 0, 0.0, None,
    ),
    "cache_write": (torch.zeros(2, 5, 8), torch.ones(3, 2, 8), torch.tensor([1, 2, 4])),
    "cache_write_shard": (torch.zeros(2, 3, 8), torch.ones(3, 2, 8), torch.tensor([1, 2, 4]), 2),
    "masked_attention": (
        torch.ones(2, 4, 8), torch.ones(2, 5, 8), torch.ones(2, 5, 6), torch.ones(2, 2, 8),
        torch.ones(2, 2, 6), torch.zeros(2, 5), torch.zeros(2, 2), 1.0, 0.0, None,
    ),
    "cache_move": (torch.randn(2, 5, 8), torch.tensor([4, 3]), torch.tensor([3, 1])),
    "cache_copy": (torch.ones(2, 3), torch.zeros(4, 3)),
    "positions": (torch.tensor([3, 5]), 2, -1),
    "rows": (torch.tensor([3, 4, 0, 1]), torch.tensor([0, 16])),
    "row": (torch.ones(3, 2, 2), torch.tensor([1])),
    "pad_rows": (torch.ones(3, 2), 5),
    "first_rows": (torch.ones(3, 2), 2),
    "masks": (torch.tensor([1, 2]), torch.tensor([2, 3]), torch.tensor([-1, 0]), None, 0, 6),
    "argmax": (torch.randn(3, 7), 5),
    "accept": (
        torch.tensor([1, 0, 2]), torch.ones(3, 7), torch.tensor([4]), torch.tensor([0.5]).double(),
        torch.tensor([9]), 5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fake_and_eager_agree(name: str) -> None:
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(ops, name).default, CASES[name], test_utils=checks)


def test_small_operations() -> None:
    one = torch.tensor([1])
    assert ops.positions(one, 4, -3).tolist() == [0, 0, 0, 1]
    at = ops.positions(torch.tensor([4, 9]), 2, -1)
    assert at.tolist() == [3, 4, 8, 9]
    assert ops.rows(at, torch.tensor([0, 16])).tolist() == [3, 4, 24, 25]
    rows = torch.arange(6.0).reshape(3, 2)
    assert [ops.row(rows, torch.tensor([i])).tolist() for i in (-1, 1, 9)] == [
        [[0, 1]],
        [[2, 3]],
        [[4, 5]],
    ]
    assert ops.argmax(torch.tensor([[1.0, 2, 2, 9], [0, 0, 0, 9]]), 3).tolist() == [1, 0]


def _choices(logits: Tensor, length: int, heat: float, seed: int, vocab: int) -> list[int]:
    """The definition: argmax of logits, or of logits / temperature + noise."""
    return [
        max(
            range(vocab),
            key=lambda v: (
                float(scores[v]) / heat + float(gumbel(seed, length + 1 + r, vocab)[v])
                if heat
                else float(scores[v])
            ),
        )
        for r, scores in enumerate(logits)
    ]


@pytest.mark.parametrize("heat", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("vocab", [2, 3, 5])
def test_accept_is_the_longest_prefix_of_the_targets_choices(vocab: int, heat: float) -> None:
    """Drafts of K <= 3 against the definition; the noise does not depend on the drafts."""
    draw = torch.Generator().manual_seed(vocab)
    for k, seed in itertools.product(range(4), (0, -1)):
        logits = torch.randn(k + 1, vocab + 1, generator=draw) * 2
        want = _choices(logits, 7, heat, seed, vocab)
        drafted = list(itertools.product(range(vocab), repeat=k))
        for drafts in drafted[:: max(1, len(drafted) // 30)]:
            tokens, accepted = ops.accept(
                torch.tensor([0, *drafts]),
                logits,
                torch.tensor([7]),
                torch.tensor([heat]).double(),
                torch.tensor([seed]),
                vocab,
            )
            a = next((i for i, d in enumerate(drafts) if d != want[i]), k)
            assert accepted.tolist() == [a]
            assert tokens[: a + 1].tolist() == want[: a + 1]


def test_accept_says_when_a_logit_that_counts_is_nan() -> None:
    logits = torch.eye(3, 4)
    arguments = (torch.tensor([5]), torch.zeros(1).double(), torch.tensor([0]), 3)
    for nan, drafts, want in [
        ((2, 0), [0, 1], -1),
        ((2, 0), [0, 0], 1),
        ((0, 3), [0, 1], 2),
        ((0, 0), [0, 1], -1),
    ]:
        spoiled = logits.clone()
        spoiled[nan] = torch.nan
        _, accepted = ops.accept(torch.tensor([9, *drafts]), spoiled, *arguments)
        assert accepted.tolist() == [want]


def _unmix(y: int) -> int:
    """The inverse of splitmix64. As there is one, different inputs have different hashes."""
    mask = (1 << 64) - 1
    y ^= (y >> 31) ^ (y >> 62)
    y = (y * pow(0x94D049BB133111EB, -1, 1 << 64)) & mask
    y ^= (y >> 27) ^ (y >> 54)
    y = (y * pow(0xBF58476D1CE4E5B9, -1, 1 << 64)) & mask
    y ^= (y >> 30) ^ (y >> 60)
    return (y - 0x9E3779B97F4A7C15) & mask


def test_the_hash_is_a_permutation() -> None:
    for x in (0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF):
        assert _unmix(splitmix64(x)) == x
    assert (
        splitmix64(0) == 0xE220A8397B1DCDAF
    )  # published first output of the generator seeded with 0


def test_noise_comes_from_distinct_hash_inputs() -> None:
    inputs = [
        splitmix64(splitmix64(seed) ^ position) ^ v
        for seed in range(20)
        for position in range(100)
        for v in range(50)
    ]
    assert len(set(inputs)) == len(inputs)


def test_noise_is_gumbels() -> None:
    """Mean, variance and the quantiles of -log(-log(u))."""
    noise = torch.cat([gumbel(3, position, 200) for position in range(200)])
    assert abs(float(noise.mean()) - 0.5772) < 0.02
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.05
    uniform = torch.exp(-torch.exp(-noise)).sort().values
    distance = (uniform - (torch.arange(len(uniform)) + 0.5) / len(uniform)).abs().max()
    assert float(distance) < 1.95 / math.sqrt(len(uniform))  # Kolmogorov, 0.1% point


@pytest.mark.parametrize("heat", [0.7, 1.5])
def test_the_law_is_softmax(heat: float) -> None:
    """Chi-square of 20000 seeds: argmax(logits / temperature + G) is drawn from the softmax."""
    logits = torch.tensor([[0.5, -1.0, 1.3, 0.0]])
    noise = torch.stack([gumbel(seed, 11, 4) for seed in range(20000)])
    counts = torch.bincount((logits[0].double() / heat + noise).argmax(-1), minlength=4)
    expected = torch.softmax(logits[0].double() / heat, -1) * 20000
    assert (
        float(((counts - expected) ** 2 / expected).sum()) < 11.34
    )  # 1% point at 3 degrees of freedom
    for seed in range(50):  # the operation uses this noise
        tokens, _ = ops.accept(
            torch.tensor([0]),
            logits,
            torch.tensor([10]),
            torch.tensor([heat]).double(),
            torch.tensor([seed]),
            4,
        )
        assert int(tokens) == int((logits[0].double() / heat + noise[seed]).argmax())
