"""Triton kernels for token trees: what `ir.tree_operations` says of them, with nothing left for the host to do.

Shapes: N drafts and a root are nodes, parents before children; F nodes of a level, M candidates, V the vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from specc.backends.cuda.kernels import BLOCK_V, choose_kernel, mixed

CHUNK = 4096
"""Of a vocabulary: one instance finds the best of so many, another of all that were found."""

BLOCK_M = 128


@triton.jit
def _best_of(values, alive, at, BEYOND: tl.constexpr):
    """The highest of `values` that are `alive`, and the lowest of the numbers `at` that it has."""
    highest = tl.max(tl.where(alive, values, float("-inf")), 0)
    return highest, tl.min(tl.where(alive & (values == highest), at, BEYOND), 0)


@triton.jit
def _candidates_kernel(
    logits, positions, temperature, seed, values, ids, sums, size, V: tl.constexpr, COUNT: tl.constexpr,
    CHUNKS: tl.constexpr, BV: tl.constexpr
):  # fmt: skip
    row, chunk = tl.program_id(0), tl.program_id(1)
    at = chunk * BV + tl.arange(0, BV)
    logit = tl.load(logits + row.to(tl.int64) * size + at, mask=at < V, other=float("-inf"))
    value = tl.where(logit == logit, logit, float("-inf")).to(tl.float64)
    heat = tl.load(temperature)
    if heat > 0:
        root = tl.load(seed + tl.arange(0, 1)).to(tl.uint64)
        position = (tl.load(positions + row + tl.arange(0, 1)) + 1).to(tl.uint64)
        bits = mixed(mixed(mixed(root) ^ position) ^ at.to(tl.uint64)) >> 12
        noise = -tl.log(-tl.log((bits.to(tl.float64) + 0.5) * 2.220446049250313e-16))
        value = tl.where(at < V, value / heat + noise, float("-inf"))
    place = (row * CHUNKS + chunk).to(tl.int64)
    most = tl.max(value, 0)
    safe = tl.where(most > float("-inf"), most, 0.0)
    tl.store(sums + place, tl.sum(tl.exp(value - safe), 0))
    alive = at < (chunk + 1) * BV
    for rank in range(COUNT):
        highest, best = _best_of(value, alive, at, V + BV)
        tl.store(values + place * COUNT + rank, highest)
        tl.store(ids + place * COUNT + rank, best.to(tl.int64))
        alive = alive & (at != best)


@triton.jit
def _merge_kernel(
    values, ids, sums, nodes, scores, temperature, tokens, parents, totals, COUNT: tl.constexpr,
    CHUNKS: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    at, chunk, rank = tl.arange(0, BK), tl.arange(0, BC), tl.arange(0, BK)
    found = (row * CHUNKS).to(tl.int64) * COUNT
    value = tl.load(values + found + at, mask=at < CHUNKS * COUNT, other=float("-inf"))
    # Of the whole vocabulary: each chunk's sum is scaled by its own best.
    firsts = tl.load(values + found + chunk * COUNT, mask=chunk < CHUNKS, other=float("-inf"))
    shares = tl.load(sums + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=0.0)
    most = tl.max(firsts, 0)
    known = (most > float("-inf")) & (most < float("inf"))
    safe = tl.where(known, most, 0.0)
    whole = tl.sum(tl.where(firsts > float("-inf"), shares * tl.exp(firsts - safe), 0.0), 0)
    alive = at < CHUNKS * COUNT
    top = tl.full((BK,), float("-inf"), dtype=tl.float64)
    for k in range(COUNT):
        highest, best = _best_of(value, alive, at, BK)
        tl.store(tokens + row * COUNT + k, tl.load(ids + found + best))
        tl.store(parents + row * COUNT + k, tl.load(nodes + row))
        top = tl.where(rank == k, highest, top)
        alive = alive & (at != best)
    if tl.load(temperature) > 0:
        whole = tl.sum(tl.exp(top - safe), 0)
    share = tl.where(known, top - (safe + tl.log(whole)), float("-inf"))
    tl.store(totals + row * COUNT + rank, tl.load(scores + row) + share, mask=rank < COUNT)


@triton_op("specc_cuda::candidates", mutates_args={})
def candidates(
    logits: Tensor, nodes: Tensor, scores: Tensor, positions: Tensor, temperature: Tensor, seed: Tensor,
    count: int, vocab_size: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`specc.candidates`; scores may differ from the dialect's in the last bits, and tokens do not."""
    logits = logits.contiguous()
    rows, size = logits.shape
    chunks = triton.cdiv(vocab_size, CHUNK)
    values, ids = scores.new_empty(rows, chunks, count), nodes.new_empty(rows, chunks, count)
    sums = scores.new_empty(rows, chunks)
    tokens, parents = nodes.new_empty(rows * count), nodes.new_empty(rows * count)
    totals = scores.new_empty(rows * count)
    wrap_triton(_candidates_kernel)[(rows, chunks)](
        logits, positions, temperature, seed, values, ids, sums, size, vocab_size, count, chunks, CHUNK
    )  # fmt: skip
    wrap_triton(_merge_kernel)[(rows,)](
        values, ids, sums, nodes, scores, temperature, tokens, parents, totals, count, chunks,
        triton.next_power_of_2(chunks), triton.next_power_of_2(chunks * count),
    )  # fmt: skip
    return tokens, parents, totals


@triton.jit
def _rank_kernel(scores, ranks, M: tl.constexpr, BM: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    mine = tl.load(scores + i, mask=i < M, other=float("-inf"))
    rank = tl.zeros((BM,), dtype=tl.int64)
    for j in range(M):
        other = tl.load(scores + j)
        rank += ((other > mine) | ((other == mine) & (j < i))).to(tl.int64)
    tl.store(ranks + i, rank, mask=i < M)


def _ranks(scores: Tensor) -> Tensor:
    """How many of scores f64[M] are better, or equal and earlier: i64[M]."""
    (count,) = scores.shape
    ranks = scores.new_empty(count, dtype=torch.int64)
    wrap_triton(_rank_kernel)[(triton.cdiv(count, BLOCK_M),)](scores, ranks, count, BLOCK_M)
    return ranks


@triton.jit
def _best_kernel(
    ranks, index, groups, EACH: tl.constexpr, M: tl.constexpr, COUNT: tl.constexpr, BM: tl.constexpr
):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    rank = tl.load(ranks + i, mask=i < M, other=COUNT)
    tl.store(index + rank, i.to(tl.int64), mask=rank < COUNT)
    tl.store(groups + rank, (i // EACH).to(tl.int64), mask=rank < COUNT)


@triton_op("specc_cuda::best", mutates_args={})
def best(scores: Tensor, count: int, each: int) -> tuple[Tensor, Tensor]:
    """`specc.best`: scores f64[M] -> two of i64[count]."""
    ranks = _ranks(scores)
    index, groups = ranks.new_empty(count), ranks.new_empty(count)
    size = scores.shape[0]
    wrap_triton(_best_kernel)[(triton.cdiv(size, BLOCK_M),)](
        ranks, index, groups, each, size, count, BLOCK_M
    )
    return index, groups


@triton.jit
def _prune_kernel(
    tokens, parents, ranks, kept, above, depths, M: tl.constexpr, COUNT: tl.constexpr, BM: tl.constexpr
):  # fmt: skip
    i = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    inside = i < M
    parent = tl.load(parents + i, mask=inside, other=-1)
    place = tl.zeros((BM,), dtype=tl.int64)
    under = tl.zeros((BM,), dtype=tl.int64)
    for j in range(M):
        stays = (tl.load(ranks + j) <= COUNT).to(tl.int64)
        place += tl.where(j < i, stays, 0)
        under += tl.where(j < parent, stays, 0)
    depth = tl.zeros((BM,), dtype=tl.int64)
    node = tl.where(inside, i, 0)
    while tl.max(node, 0) > 0:
        depth += (node > 0).to(tl.int64)
        node = tl.where(node > 0, tl.load(parents + node), 0)
    keep = inside & (tl.load(ranks + i, mask=inside, other=COUNT + 1) <= COUNT)
    tl.store(kept + place, tl.load(tokens + i, mask=inside, other=0), mask=keep)
    tl.store(above + place, tl.where(i > 0, under, -1), mask=keep)
    tl.store(depths + place, depth, mask=keep)


@triton_op("specc_cuda::prune_tree", mutates_args={})
def prune_tree(
    tokens: Tensor, parents: Tensor, scores: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`specc.prune_tree`: of M nodes -> tokens, parents and depths, three of i64[count + 1]."""
    ranks, size = _ranks(scores), scores.shape[0]
    kept, above, depths = (ranks.new_empty(count + 1) for _ in range(3))
    wrap_triton(_prune_kernel)[(triton.cdiv(size, BLOCK_M),)](
        tokens, parents, ranks, kept, above, depths, size, count, BLOCK_M
    )
    return kept, above, depths


@triton.jit
def _accept_tree_kernel(
    tokens, parents, chosen, result, accepted, nodes, DEPTH: tl.constexpr, NODES: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr
):  # fmt: skip
    n, step = tl.arange(0, BN), tl.arange(0, BD)
    token = tl.load(tokens + n, mask=n < NODES, other=-2)
    parent = tl.load(parents + n, mask=n < NODES, other=-2)
    said = tl.zeros((BD,), dtype=tl.int64)
    path = step.to(tl.int64)
    node = tl.sum(tl.zeros((BD,), dtype=tl.int64), 0)
    count, going, broken = node, node + 1, node
    for k in range(DEPTH + 1):
        mine = tl.load(chosen + node)
        here = (step == k) & (going > 0)
        said = tl.where(here, mine, said)
        path = tl.where(here, node, path)
        broken = tl.where((going > 0) & (mine < 0), 1, broken)
        child = tl.min(tl.where((parent == node) & (token == mine), n, BN), 0).to(tl.int64)
        going = tl.where((child < BN) & (k < DEPTH), going, 0)
        count += going
        node = tl.where(going > 0, child, node)
    tl.store(result + step, tl.where(broken > 0, 0, said), mask=step <= DEPTH)
    tl.store(nodes + step, tl.where(broken > 0, step, path), mask=step <= DEPTH)
    tl.store(accepted, tl.where(broken > 0, -1, count))


@triton_op("specc_cuda::accept_tree", mutates_args={})
def accept_tree(
    tokens: Tensor, parents: Tensor, logits: Tensor, length: Tensor, temperature: Tensor, seed: Tensor,
    depth: int, vocab_size: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`specc.accept_tree`: every node's choice first, then the path along them."""
    logits = logits.contiguous()
    rows, size = logits.shape
    chosen = torch.empty_like(tokens)
    result, nodes = tokens.new_empty(depth + 1), tokens.new_empty(depth + 1)
    accepted = tokens.new_empty(1)
    wrap_triton(choose_kernel)[(rows,)](
        logits, temperature, seed, length, parents, chosen, size, vocab_size, True, True, BLOCK_V
    )
    wrap_triton(_accept_tree_kernel)[(1,)](
        tokens, parents, chosen, result, accepted, nodes, depth, rows, triton.next_power_of_2(int(rows)),
        triton.next_power_of_2(depth + 1),
    )  # fmt: skip
    return result, accepted, nodes


@triton.jit
def _pick_rows_kernel(cache, rows, x, heads, cache_rows, WIDTH: tl.constexpr, BD: tl.constexpr):
    t, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BD)
    at = (head.to(tl.int64) * cache_rows + tl.load(rows + t)) * WIDTH + d
    value = tl.load(cache + at, mask=d < WIDTH)
    tl.store(x + (t.to(tl.int64) * heads + head) * WIDTH + d, value, mask=d < WIDTH)


@triton_op("specc_cuda::pick_rows", mutates_args={})
def pick_rows(cache: Tensor, rows: Tensor) -> Tensor:
    """Rows `rows` i64[T] of cache [H, R, D] -> [T, H, D], as `cache_write` takes them."""
    heads, cache_rows, width = cache.shape
    x = cache.new_empty(rows.shape[0], heads, width)
    wrap_triton(_pick_rows_kernel)[(rows.shape[0], heads)](
        cache, rows, x, heads, cache_rows, width, triton.next_power_of_2(width)
    )
    return x
