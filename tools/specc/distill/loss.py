"""The loss of a drafter whose head is frozen: cross entropy with what the target gives each token.

The head is rows of the target's own, so nothing but the gradient of what feeds it is needed: loss and gradient are
computed together, a few rows at a time, and no logits are kept. A bias of low rank may learn beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK = 128
"""Rows at once: logits of a chunk should stay in the caches."""


class Bias(NamedTuple):
    """What is added to logits: memory f32[N, r] times rows f32[Vd, r], both of which learn."""

    memory: Tensor
    rows: Tensor


@dataclass(frozen=True, eq=False)
class Head:
    """Rows of the target's head [Vd, H] for the draft vocabulary `ids` i64[Vd], ascending."""

    rows: Tensor
    ids: Tensor

    @classmethod
    def of(cls, head: Tensor, ids: Tensor, dtype: torch.dtype) -> Head:
        """Rows `ids` of the target's head [V, H], to be multiplied in `dtype`."""
        return cls(head[ids].to(dtype), ids.to(head.device))

    def teach(self, final: Tensor) -> Tensor:
        """What the target gives the tokens of the draft vocabulary [N, Vd], from what feeds its head [N, H].

        Its probabilities among those tokens alone: of the others a drafter cannot say anything.
        """
        parts = [
            torch.softmax(part.to(self.rows.dtype) @ self.rows.T, -1) for part in _parts(final)
        ]
        return torch.cat(parts)

    def first(self, hidden: Tensor, bias: Bias | None = None) -> Tensor:
        """The token i64[N] that a drafter says first, as the target's id, from what feeds the head [N, H]."""
        parts = []
        for begin in range(0, len(hidden), CHUNK):
            logits = hidden[begin : begin + CHUNK].to(self.rows.dtype) @ self.rows.T
            if bias is not None:
                logits = logits + bias.memory[begin : begin + CHUNK] @ bias.rows.T
            parts.append(torch.argmax(logits, -1))
        return self.ids[torch.cat(parts)] if parts else self.ids[:0]


def _parts(x: Tensor) -> list[Tensor]:
    return [x[i : i + CHUNK] for i in range(0, len(x), CHUNK)]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The part i64[C] of a draft vocabulary that one batch is scored on: rows [C, H] of the head, and bias f32[C].

    `wanted` [N, C] are the target's probabilities. Tokens that the target may say in this batch are all there; of the
    others a random sample stands for all, its logits raised by the log of how many each stands for (sampled softmax,
    arXiv 1412.2007). With most of the vocabulary left out a step costs a good deal less.
    """

    part: Tensor
    rows: Tensor
    bias: Tensor
    wanted: Tensor

    @classmethod
    def of(cls, head: Head, wanted: Tensor, count: int) -> Candidates:
        """`count` candidates, half of them sampled; all of the vocabulary where it is no larger."""
        size = len(head.ids)
        if count >= size:
            every = torch.arange(size, device=wanted.device)
            return cls(every, head.rows, torch.zeros(size, device=wanted.device), wanted)
        sure = count // 2
        order = wanted.amax(0).argsort(descending=True)
        rest = order[sure:]
        drawn = rest[torch.randperm(len(rest), device=rest.device)[: count - sure]]
        bias = torch.zeros(count, device=wanted.device)
        bias[sure:] = math.log(len(rest) / len(drawn))
        kept = torch.cat([order[:sure], drawn])
        some = wanted[:, kept]
        return cls(kept, head.rows[kept], bias, some / some.sum(-1, keepdim=True))


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, memory: Tensor, more: Tensor, of: Candidates, index: Tensor, weight: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        gradients = tuple(torch.zeros_like(x, dtype=torch.float32) for x in (hidden, memory, more))
        total, overlap = torch.zeros((), device=hidden.device), torch.empty_like(weight)
        for begin in range(0, len(hidden), CHUNK):
            part = slice(begin, begin + CHUNK)
            logits = (hidden[part].to(of.rows.dtype) @ of.rows.T).float().add_(of.bias)
            if memory.shape[1]:
                logits.addmm_(memory[part], more.T)
            target = of.wanted[index[part]].float()
            inner = (logits * target).sum(-1)
            most = logits.amax(-1, keepdim=True)
            exponentials = logits.sub_(most).exp_()
            mass = exponentials.sum(-1, keepdim=True)
            total += ((mass.log() + most).squeeze(-1) - inner).mul(weight[part]).sum()
            difference = exponentials.div_(mass).sub_(target)
            overlap[part] = 1 - difference.abs().sum(-1) / 2
            difference.mul_(weight[part][:, None])
            gradients[0][part] = difference.to(of.rows.dtype) @ of.rows
            if memory.shape[1]:
                gradients[1][part] = difference @ more
                gradients[2].addmm_(difference.T, memory[part])
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(overlap)
        return total, overlap

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        return *(g * outputs[0] for g in ctx.saved_tensors), None, None, None


def soft_cross_entropy(
    hidden: Tensor, of: Candidates, index: Tensor, weight: Tensor, bias: Bias | None = None
) -> tuple[Tensor, Tensor]:
    """Sum over rows of weight f32[N] times the cross entropy of the head on hidden [N, H] with of.wanted[index].

    And 1 - half of the distance |p - q| of each row, f32[N]: how often a draft drawn from p would be kept.
    """
    if bias is None:
        bias = Bias(hidden.new_zeros(len(hidden), 0), hidden.new_zeros(len(of.part), 0))
    else:
        bias = Bias(bias.memory, bias.rows[of.part])
    loss, overlap = _FrozenHead.apply(hidden, *bias, of, index, weight)  # type: ignore[no-untyped-call]
    return loss, overlap
