"""Better rounding of matrices to an encoding than to the nearest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from specc.ir import Encoding, Packing, Weight

_SHARES = [1.0 - 0.02 * i for i in range(16)]
"""Of a group's range: scales that are tried."""


def least_squares(weight: Weight, encoding: Encoding) -> Weight:
    """`weight` packed with the scales, of some smaller than the range asks for, whose squared error is least.

    Cutting the extremes off a little makes all other values of a group finer (as in GPTQ's and AWQ's clipping).
    """
    rows, columns = weight.type.at()
    type_ = encoding.type(rows, columns)
    packed = weight.derive(
        f"pack.{encoding}.mse", type_, lambda matrix: _pack(matrix.float(), encoding)
    )
    return replace(packed, packing=Packing(encoding, rows, columns))


def _pack(matrix: Tensor, encoding: Encoding) -> Tensor:
    n, k = matrix.shape
    groups = matrix.view(n, -1, encoding.group or k)
    error = torch.full(groups.shape[:2], torch.inf)
    best: tuple[Tensor, ...] = ()
    for share in _SHARES:
        for candidate in _candidates(groups, encoding, share):
            found = (_value(encoding, *candidate) - groups).square().sum(-1)
            better = found < error
            error = torch.where(better, found, error)
            best = tuple(
                torch.where(better.view(*better.shape, *[1] * (new.ndim - 2)), new, old)
                for new, old in zip(candidate, best or candidate, strict=True)
            )
    q, d, m = best
    return encoding.from_blocks(q.view(n, k), d, m if encoding.minimum else None)


def _candidates(
    groups: Tensor, encoding: Encoding, share: float
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Integers, scales, minima for groups whose range is cut to `share` of it."""
    most, least = groups.amax(-1), groups.amin(-1)
    middle, none = (most + least) / 2, torch.zeros_like(most).half()
    if encoding.minimum:
        d = ((most - least) * share / 15).half()
        m = (middle - (most - least) * share / 2).half()
        q = torch.round((groups - m.float()[..., None]) / _divisor(d)).clamp(0, 15)
        return [(q.to(torch.uint8), d, m)]
    extreme = torch.where(most > -least, most, least) * share
    if encoding.bits == 8:
        d = (extreme.abs() / 127).half()
        return [(torch.round(groups / _divisor(d)).clamp(-127, 127).to(torch.int8), d, none)]
    found = []
    for levels in (-8, 7):  # the extreme value at either end of -8..7
        d = (extreme / levels).half()
        q = torch.round(groups / _divisor(d)).clamp(-8, 7) + 8
        found.append((q.to(torch.uint8), d, none))
    return found


def _value(encoding: Encoding, q: Tensor, d: Tensor, m: Tensor) -> Tensor:
    offset = 8 if encoding.bits == 4 and not encoding.minimum else 0
    return (q.float() - offset) * d.float()[..., None] + m.float()[..., None]


def _divisor(d: Tensor) -> Tensor:
    """Nothing is divided by zero, which stands for a group of zeros."""
    return torch.where(d == 0, 1, d.float())[..., None]


ROUNDINGS: Mapping[str, Callable[[Weight, Encoding], Weight]] = {
    "nearest": lambda weight, encoding: weight.encoded(encoding),
    "mse": least_squares,
}
"""By name, as in `--quant-rounding`."""
