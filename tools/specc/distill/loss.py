"""The loss of a drafter whose head is frozen: cross entropy with what the target gives each token.

The head is rows of the target's own, so nothing but the gradient of what feeds it is needed: loss and gradient are
computed together, a few rows at a time, and no logits are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK = 128
"""Rows at once: logits of a chunk should stay in the caches."""


@dataclass(frozen=True, eq=False)
class Head:
    """Rows of the target's head [Vd, H] for the draft vocabulary `ids` i64[Vd], ascending."""

    rows: Tensor
    ids: Tensor

    def teach(self, final: Tensor) -> Tensor:
        """What the target gives the tokens of the draft vocabulary [N, Vd], from what feeds its head [N, H].

        Its probabilities among those tokens alone: of the others a drafter cannot say anything.
        """
        parts = [
            torch.softmax(part.to(self.rows.dtype) @ self.rows.T, -1) for part in _parts(final)
        ]
        return torch.cat(parts)

    def first(self, hidden: Tensor) -> Tensor:
        """The token i64[N] that a drafter says first, as the target's id, from what feeds the head [N, H]."""
        parts = [
            torch.argmax(part.to(self.rows.dtype) @ self.rows.T, -1) for part in _parts(hidden)
        ]
        return self.ids[torch.cat(parts)] if parts else self.ids[:0]


def _parts(x: Tensor) -> list[Tensor]:
    return [x[i : i + CHUNK] for i in range(0, len(x), CHUNK)]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The part of a draft vocabulary that one batch is scored on: rows [C, H] of the head, and bias f32[C].

    `wanted` [N, C] are the target's probabilities. Tokens that the target may say in this batch are all there; of the
    others a random sample stands for all, its logits raised by the log of how many each stands for (sampled softmax,
    arXiv 1412.2007). With most of the vocabulary left out a step costs a good deal less.
    """

    rows: Tensor
    bias: Tensor
    wanted: Tensor

    @classmethod
    def of(cls, head: Head, wanted: Tensor, count: int) -> Candidates:
        """`count` candidates, half of them sampled; all of the vocabulary where it is no larger."""
        size = len(head.ids)
        if count >= size:
            return cls(head.rows, torch.zeros(size, device=wanted.device), wanted)
        sure = count // 2
        order = wanted.amax(0).argsort(descending=True)
        rest = order[sure:]
        drawn = rest[torch.randperm(len(rest), device=rest.device)[: count - sure]]
        bias = torch.zeros(count, device=wanted.device)
        bias[sure:] = math.log(len(rest) / len(drawn))
        kept = torch.cat([order[:sure], drawn])
        some = wanted[:, kept]
        return cls(head.rows[kept], bias, some / some.sum(-1, keepdim=True))


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, of: Candidates, index: Tensor, weight: Tensor
    ) -> Tensor:  # fmt: skip
        gradient = torch.empty_like(hidden, dtype=torch.float32)
        total = torch.zeros((), device=hidden.device)
        for begin in range(0, len(hidden), CHUNK):
            part = slice(begin, begin + CHUNK)
            logits = (hidden[part].to(of.rows.dtype) @ of.rows.T).float().add_(of.bias)
            target, scale = of.wanted[index[part]].float(), weight[part]
            inner = (logits * target).sum(-1)
            most = logits.amax(-1, keepdim=True)
            exponentials = logits.sub_(most).exp_()
            mass = exponentials.sum(-1, keepdim=True)
            total += ((mass.log() + most).squeeze(-1) - inner).mul(scale).sum()
            difference = exponentials.div_(mass).sub_(target).mul_(scale[:, None])
            gradient[part] = difference.to(of.rows.dtype) @ of.rows
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * outputs[0], None, None, None


def soft_cross_entropy(hidden: Tensor, of: Candidates, index: Tensor, weight: Tensor) -> Tensor:
    """Sum over rows of weight f32[N] times the cross entropy of the head on hidden [N, H] with of.wanted[index]."""
    loss: Tensor = _FrozenHead.apply(hidden, of, index, weight)  # type: ignore[no-untyped-call]
    return loss
