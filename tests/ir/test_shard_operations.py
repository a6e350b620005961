"""Attention whose caches are inputs, and shards of caches, against the operations that know neither."""

import pytest
import torch

from specc.ir.dialect import HIDDEN, ops

ROWS, LENGTH = 3, 12
POSITIONS = torch.tensor([5, 6, 7])
AT = POSITIONS + 2  # the text begins at cache row 2


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])])
def test_masked_attention_is_cached_attention(
    window: int, softcap: float, sinks: torch.Tensor | None
) -> None:
    q, k, v = drawn(ROWS, 4, 8), drawn(2, LENGTH, 8), drawn(2, LENGTH, 6)
    k_new, v_new = drawn(ROWS, 2, 8), drawn(ROWS, 2, 6)
    old, new = ops.masks.default(POSITIONS, AT, None, None, window, LENGTH)
    found = ops.masked_attention.default(q, k, v, k_new, v_new, old, new, 0.3, softcap, sinks)
    for cache, x in ((k, k_new), (v, v_new)):
        ops.cache_write.default(cache, x, AT)
    want = ops.cached_attention.default(q, k, v, POSITIONS, AT, None, 0.3, window, softcap, sinks)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("window", [0, 3])
def test_masks_of_shards_are_columns_of_the_whole(count: int, window: int) -> None:
    old, new = ops.masks.default(POSITIONS, AT, None, None, window, LENGTH)
    size = LENGTH // count
    shards = [
        ops.masks.default(POSITIONS, AT, None, None, window, size, i * size) for i in range(count)
    ]
    torch.testing.assert_close(torch.cat([s[0] for s in shards], 1), old)
    torch.testing.assert_close(shards[0][1], new)
    assert all(bool((s[1] == HIDDEN).all()) for s in shards[1:]), "new rows are seen once"


@pytest.mark.parametrize("count", [2, 4])
def test_shards_are_written_like_the_whole(count: int) -> None:
    cache, x = drawn(2, LENGTH, 4), drawn(5, 2, 4)
    rows = torch.tensor([1, 2, 3, 6, 11])
    size = LENGTH // count
    shards = [cache[:, i * size : (i + 1) * size].clone() for i in range(count)]
    for i, shard in enumerate(shards):
        ops.cache_write_shard.default(shard, x, rows, i * size)
    ops.cache_write.default(cache, x, rows)
    torch.testing.assert_close(torch.cat(shards, 1), cache)
