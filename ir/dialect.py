"""The specc dialect: the few operations that ATen lacks, each fake and eager.

Shapes: T rows, Hq/Hkv query/key-value heads, D head width, R rows of a cache, V vocabulary, K drafts.
A row of a call has a `position` in its text, from 0 on, and a `row` of the caches, where its keys and
values lie. A text lies in consecutive cache rows from its first on, so several texts share a cache of
slots * S rows. Reference implementations are plain and slow on purpose: backends are tested against
them.
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
    k, v = k[:, first:].contiguous(), v[:, first:].contiguous()
    grouped = q.reshape(k.shape[0], -1, q.shape[1])
    scores = (grouped @ k.transpose(1, 2)).flatten(0, 1) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.float()
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[:, None]], -1)
    weights = torch.softmax(scores, -1)[:, : k.shape[1]]
    weighted: Tensor = weights.to(v.dtype).reshape(*grouped.shape[:2], -1) @ v
    return weighted.flatten(0, 1)


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


@operation("cache_write(Tensor(a!) cache, Tensor x, Tensor rows) -> ()", lambda c, x, r: None)
def _cache_write(cache: Tensor, x: Tensor, rows: Tensor) -> None:
    """Set `rows` [T] of cache [Hkv, R, D] to x [T, Hkv, D], rounded to nearest even in its dtype."""
    cache.index_copy_(1, rows, x.transpose(0, 1).to(cache.dtype).contiguous())


@operation("cache_move(Tensor(a!) cache, Tensor source, Tensor target) -> ()", lambda c, s, t: None)
def _cache_move(cache: Tensor, source: Tensor, target: Tensor) -> None:
    """Rows target[i] of cache [Hkv, R, D] := rows source[i] as they were before, i in [0, N).

    Commits the path of a token tree: its rows move together. A row with source[i] == target[i] stays;
    otherwise targets differ from each other.
    """
    cache.index_copy_(1, target, cache.index_select(1, source))


def seen_rows(positions: Tensor, rows: Tensor, parents: Tensor | None) -> list[list[int]]:
    """The cache rows that each row of a call sees, in the order of its sums.

    A root (all are, without `parents`) sees its text up to itself: cache rows row - position to row.
    Another row sees what parents[t], an earlier row of the call, sees, and then itself: so its list is
    as long, and its sums run in the same order, as if its ancestors stood in consecutive cache rows.
    """
    seen: list[list[int]] = []
    above = [-1] * len(rows) if parents is None else parents.tolist()
    for t, (position, row, parent) in enumerate(
        zip(positions.tolist(), rows.tolist(), above, strict=True)
    ):
        if not 0 <= position <= row or not -1 <= parent < t:
            raise ValueError(f"row {t}: position {position}, cache row {row}, parent {parent}")
        seen.append([*range(row - position, row + 1)] if parent < 0 else [*seen[parent], row])
    return seen


@operation(
    "cached_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor positions, Tensor rows, "
    "Tensor? parents, float scale, int window, float softcap, Tensor? sinks) -> Tensor",
    lambda q, k, v, positions, rows, parents, scale, window, softcap, sinks: q.new_empty(
        q.shape[0], q.shape[1], v.shape[2]
    ),
)
def _cached_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, positions: Tensor, rows: Tensor,
    parents: Tensor | None, scale: float, window: int, softcap: float, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """Row t of q [T, Hq, D] sees `seen_rows`[t] of caches [Hkv, R, D] -> [T, Hq, Dv].

    With a window only the last `window` of them. `positions` only says how many rows there are: a
    block whose rows all see one another passes position and cache row of its last for each. Caches of
    half precision are widened first.
    """
    attended = []
    for row, seen in zip(q, seen_rows(positions, rows, parents), strict=True):
        at = _place(seen)
        k, v = (cache[:, at].to(q.dtype) for cache in (k_cache, v_cache))
        attended.append(_attend(row, k, v, sinks, scale, window, softcap))
    return torch.stack(attended)


def _place(seen: list[int]) -> slice | Tensor:
    """What takes these cache rows: a slice where they follow each other, which is no copy."""
    following = range(seen[0], seen[0] + len(seen))
    return slice(following.start, following.stop) if seen == [*following] else torch.tensor(seen)


@operation(
    "positions(Tensor start, int count, int offset) -> Tensor",
    lambda start, count, offset: start.new_empty(start.shape[0] * count),
)
def _positions(start: Tensor, count: int, offset: int) -> Tensor:
    """From start [B]: `count` positions start + offset, ... for each; negatives become 0."""
    return (start[:, None] + offset + torch.arange(count)).clamp_min(0).reshape(-1)


@operation("rows(Tensor positions, Tensor first) -> Tensor", lambda p, f: torch.empty_like(p))
def _rows(positions: Tensor, first: Tensor) -> Tensor:
    """Cache rows [T] of positions [T] in texts that begin at rows first [B], T / B rows of each."""
    return (positions.reshape(first.shape[0], -1) + first[:, None]).reshape(-1)


@operation(
    "pad_rows(Tensor x, int count) -> Tensor", lambda x, count: x.new_empty(count, *x.shape[1:])
)
def _pad_rows(x: Tensor, count: int) -> Tensor:
    """X [T, ...] and its last row again up to `count` rows [count, ...]; 1 <= T <= count.

    For devices whose calls have one number of rows. A repeated row computes and writes what the row
    itself does, so it changes nothing.
    """
    if not 1 <= x.shape[0] <= count:
        raise ValueError(f"{x.shape[0]} rows cannot become {count}")
    return torch.cat([x, x[-1:].expand(count - x.shape[0], *x.shape[1:])])


@operation(
    "first_rows(Tensor x, int count) -> Tensor",
    lambda x, count: x.new_empty(count, *x.shape[1:]),
)
def _first_rows(x: Tensor, count: int) -> Tensor:
    """The first `count` rows [count, ...] of x [T, ...]; 1 <= count <= T."""
    if not 1 <= count <= x.shape[0]:
        raise ValueError(f"there are no first {count} of {x.shape[0]} rows")
    return x[:count].clone()


HIDDEN = -1e30
"""What is added to the score of a row that is not seen: zero after softmax, as long as scores are f32."""


@operation(
    "masks(Tensor positions, Tensor rows, Tensor? parents, Tensor? written, int window, int length, int first=0) -> "
    "(Tensor, Tensor)",
    lambda positions, rows, parents, written, window, length, first=0: (
        positions.new_empty(positions.shape[0], length, dtype=torch.float32),
        positions.new_empty(positions.shape[0], positions.shape[0], dtype=torch.float32),
    ),
)
def _masks(
    positions: Tensor, rows: Tensor, parents: Tensor | None, written: Tensor | None, window: int,
    length: int, first: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What to add to scores, 0 where `seen_rows` sees (with a window, the last of it), else -1e30.

    f32[T, length] for cache rows that this call does not write, from row `first` on, and f32[T, T] for those that it
    does, `written` or else `rows`: they are seen by the shard of the cache that begins at 0 alone. A row that the
    call has twice (`pad_rows`) is seen once, where it is first. (`written` are other rows where a block's rows all
    see up to its last.)
    """
    old = torch.full((len(rows), length), HIDDEN)
    new = torch.full((len(rows), len(rows)), HIDDEN)
    own: dict[int, int] = {}
    for t, row in enumerate((rows if written is None else written).tolist()):
        own.setdefault(row, t)
    for t, seen in enumerate(seen_rows(positions, rows, parents)):
        for row in seen[-window:] if window > 0 else seen:
            if row in own:
                new[t, own[row]] = 0 if first == 0 else HIDDEN
            elif first <= row < first + length:
                old[t, row - first] = 0
    return old, new


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

    tokens [K+1]: root and drafts; logits [K+1, V], or of more rows, which are not looked at;
    length [1]: the root's position. The choice at row r is the argmax of logits, or of
    logits / temperature + gumbel(seed, length + 1 + r) (target sampling with position-keyed noise).
    Returns tokens [K+1], of which the first accepted + 1 are new, and accepted [1]; accepted is -1
    if a logit that counts is NaN.
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
