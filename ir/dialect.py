"""The specc dialect: the few operations that ATen lacks, each fake and eager.

Shapes: T rows, Hq/Hkv query/key-value heads, D head width, S positions, V vocabulary, K drafts.
All positions are absolute. Reference implementations are plain and slow on purpose:
backends are tested against them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_library = torch.library.Library("specc", "DEF")  # type: ignore[no-untyped-call]


def operation(schema: str, fake: Callable[..., object]) -> Callable[[Callable[..., object]], None]:
    """Define `specc::` + `schema`; the decorated function is its eager implementation on every device."""
    name = schema.split("(")[0]
    _library.define(schema)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"specc::{name}", fake, lib=_library)

    def register(eager: Callable[..., object]) -> None:
        _library.impl(name, eager, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

    return register


def _attend(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scale: float, window: int, softcap: float
) -> Tensor:
    """One query q [Hq, D] at the last row of k [Hkv, n, D], v [Hkv, n, Dv] -> [Hq, Dv].

    Row by row, so that a result cannot depend on rows it does not see, NaN or not, nor on how many
    share the call.
    """
    first = max(0, k.shape[1] - window) if window > 0 else 0
    group = q.shape[0] // k.shape[0]
    k, v = (x[:, first:].repeat_interleave(group, 0) for x in (k, v))
    scores = torch.einsum("hd,hsd->hs", q, k) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.float()
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[:, None]], -1)
    weights = torch.softmax(scores, -1)[:, : k.shape[1]]
    return torch.einsum("hs,hsd->hd", weights.to(v.dtype), v)


@operation(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? sinks, float scale, int window, "
    "float softcap, int layer) -> Tensor",
    lambda q, k, v, sinks, scale, window, softcap, layer: q.new_empty(
        q.shape[0], q.shape[2], q.shape[1], v.shape[3]
    ),
)
def _attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scale: float, window: int,
    softcap: float, layer: int,
) -> Tensor:  # fmt: skip
    """Causal, before there is state. q [1, Hq, T, D], k, v [1, Hkv, T, D] -> [1, T, Hq, Dv]."""
    rows = [
        _attend(q[0, :, t], k[0, :, : t + 1], v[0, :, : t + 1], sinks, scale, window, softcap)
        for t in range(q.shape[2])
    ]
    return torch.stack(rows)[None]


@operation(
    "mask(int window, int chunk) -> Tensor",
    lambda window, chunk: torch.empty((), dtype=torch.int64),
)
def _mask(window: int, chunk: int) -> Tensor:
    """Stands for a mask while a model is traced; importers read its numbers, then drop it.

    Like `masked_by`, no program may hold it (rule 11 of `ir.check`).
    """
    return torch.tensor(window)


@operation("masked_by(Tensor x, Tensor mask) -> Tensor", lambda x, mask: torch.empty_like(x))
def _masked_by(x: Tensor, mask: Tensor) -> Tensor:
    """Says which mask gave the attention output x [1, T, Hq, Dv]; importers drop it."""
    return x.clone()


@operation(
    "cache_write(Tensor(a!) cache, Tensor rows, Tensor positions) -> ()", lambda c, r, p: None
)
def _cache_write(cache: Tensor, rows: Tensor, positions: Tensor) -> None:
    """Set cache [Hkv, S, D] at `positions` [T] to rows [T, Hkv, D]."""
    cache.index_copy_(1, positions, rows.transpose(0, 1).contiguous())


@operation(
    "cached_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor positions, float scale, "
    "int window, float softcap, Tensor? sinks) -> Tensor",
    lambda q, k, v, positions, scale, window, softcap, sinks: q.new_empty(
        q.shape[0], q.shape[1], v.shape[2]
    ),
)
def _cached_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, positions: Tensor, scale: float, window: int,
    softcap: float, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """Row t of q [T, Hq, D] sees rows up to positions[t] of caches [Hkv, S, D] -> [T, Hq, Dv]."""
    rows = [
        _attend(row, k_cache[:, :end], v_cache[:, :end], sinks, scale, window, softcap)
        for row, end in zip(q, (positions + 1).tolist(), strict=True)
    ]
    return torch.stack(rows)


@operation(
    "positions(Tensor start, int count, int offset) -> Tensor",
    lambda start, count, offset: start.new_empty(count),
)
def _positions(start: Tensor, count: int, offset: int) -> Tensor:
    """From start [1]: [count] positions start + offset, ...; negatives become 0."""
    return (start + offset + torch.arange(count)).clamp_min(0)


@operation("row(Tensor x, Tensor index) -> Tensor", lambda x, index: x.new_empty(1, *x.shape[1:]))
def _row(x: Tensor, index: Tensor) -> Tensor:
    """Row index [1] of x [T, ...] -> [1, ...]; the index is clamped to the rows."""
    return x.index_select(0, index.clamp(0, x.shape[0] - 1))


@operation(
    "argmax(Tensor logits, int vocab_size) -> Tensor",
    lambda logits, vocab_size: logits.new_empty(logits.shape[0], dtype=torch.int64),
)
def _argmax(logits: Tensor, vocab_size: int) -> Tensor:
    """For logits [T, V] the best id below vocab_size [T]; the lowest id wins a tie."""
    best = logits[:, :vocab_size].max(-1, keepdim=True).values
    return (logits[:, :vocab_size] == best).to(torch.int8).argmax(-1)


@operation("cache_copy(Tensor x, Tensor(a!) state) -> ()", lambda x, state: None)
def _cache_copy(x: Tensor, state: Tensor) -> None:
    """Rows 0..T-1 of state [R, H] := x [T, H]."""
    state[: x.shape[0]].copy_(x)


_MASK = (1 << 64) - 1


def splitmix64(x: int) -> int:
    """One step of the SplitMix64 generator (Steele, Lea, Flood 2014) as a hash of 64 bits."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def gumbel(seed: int, position: int, vocab_size: int) -> Tensor:
    """Noise f64[vocab_size] of a token: a function of (seed, absolute position, id) alone."""
    base = splitmix64(splitmix64(seed & _MASK) ^ position)
    # 52 bits, since 53 and a half could round to 1, and its noise to infinity.
    uniform = [((splitmix64(base ^ v) >> 12) + 0.5) * 2.0**-52 for v in range(vocab_size)]
    return -torch.log(-torch.log(torch.tensor(uniform, dtype=torch.float64)))


@operation(
    "accept(Tensor tokens, Tensor logits, Tensor length, Tensor temperature, Tensor seed, "
    "int vocab_size) -> (Tensor, Tensor)",
    lambda tokens, logits, length, temperature, seed, vocab_size: (
        torch.empty_like(tokens),
        length.new_empty(1),
    ),
)
def _accept(
    tokens: Tensor, logits: Tensor, length: Tensor, temperature: Tensor, seed: Tensor,
    vocab_size: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Longest prefix of drafts that equals the target's own choices.

    tokens [K+1]: root and drafts; logits [K+1, V]; length [1]: the root's position. The choice at
    row r is the argmax of logits, or of logits / temperature + gumbel(seed, length + 1 + r) (target
    sampling with position-keyed noise). Returns tokens [K+1], of which the first accepted + 1 are
    new, and accepted [1]; accepted is -1 if a logit that counts is NaN.
    """
    chosen = torch.zeros_like(tokens)
    rows, heat = tokens.shape[0], float(temperature)
    for row in range(rows):
        scores = logits[row, :vocab_size]
        if bool(scores.isnan().any()):
            return chosen, torch.tensor([-1])
        if heat > 0:
            noise = gumbel(int(seed), int(length) + 1 + row, vocab_size)
            scores = scores.double() / heat + noise
        chosen[row] = int((scores == scores.max()).to(torch.int8).argmax())
        if row + 1 == rows or chosen[row] != tokens[row + 1]:
            return chosen, torch.tensor([row])
    raise AssertionError("unreachable: the last row always returns")


ops = torch.ops.specc
"""The operations, as `ops.attention.default` and so on."""
