"""The operations of the dialect for attention whose caches are inputs, and lie on several devices.

Shapes as in `dialect`: T rows, Hq/Hkv heads, D and Dv widths, S rows of the caches, or of a device's part of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specc.ir.dialect import operation


@operation(
    "masked_attention(Tensor q, Tensor k, Tensor v, Tensor k_new, Tensor v_new, Tensor old, Tensor new, "
    "float scale, float softcap, Tensor? sinks) -> Tensor",
    lambda q, k, v, k_new, v_new, old, new, scale, softcap, sinks: q.new_empty(
        q.shape[0], q.shape[1], v.shape[2]
    ),
)
def _masked_attention(
    q: Tensor, k: Tensor, v: Tensor, k_new: Tensor, v_new: Tensor, old: Tensor, new: Tensor,
    scale: float, softcap: float, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """`cached_attention` where who sees what is data: q [T, Hq, D], caches [Hkv, S, D], new rows [T, Hkv, D].

    `old` f32[T, S] and `new` f32[T, T], of `masks`, are added to scores of cached and new rows -> [T, Hq, Dv].
    """
    group = q.shape[1] // k.shape[0]
    keys, values = (
        torch.cat([cache.to(q.dtype), x.transpose(0, 1).to(q.dtype)], 1).repeat_interleave(group, 0)
        for cache, x in ((k, k_new), (v, v_new))
    )
    scores = torch.einsum("thd,hsd->hts", q, keys) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.float() + torch.cat([old, new], -1)
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[:, None, None].expand(*scores.shape[:2], 1)], -1)
    weights = torch.softmax(scores, -1)[..., : keys.shape[1]]
    return torch.einsum("hts,hsd->thd", weights.to(values.dtype), values).contiguous()


@operation(
    "cache_write_shard(Tensor(a!) cache, Tensor x, Tensor rows, int first) -> ()",
    lambda cache, x, rows, first: None,
)
def _cache_write_shard(cache: Tensor, x: Tensor, rows: Tensor, first: int) -> None:
    """`cache_write` of those `rows` [T] that lie in this shard, cache [Hkv, S, D]: from `first` to `first` + S - 1."""
    mine = (rows >= first) & (rows < first + cache.shape[1])
    torch.ops.specc.cache_write.default(cache, x[mine], rows[mine] - first)
