"""Medusa (arXiv 2401.10774): heads on the state that feeds the target's head, head j for the token j + 2 places on.

Each is a residual block before the target's own head, which is not trained, so that a checkpoint stays small.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from specc.distill.batches import Batch
from specc.distill.chain import Lesson
from specc.distill.export import Made
from specc.distill.layer import Linear
from specc.distill.loss import Head
from specc.distill.target import Teacher


class _Block(nn.Module):
    """x + silu(linear(x)), which begins as x."""

    def __init__(self, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = Linear(hidden, hidden, dtype, gain=0.0)
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.silu(self.linear(x).float() + self.bias)


class Medusa(nn.Module):
    """The heads."""

    def __init__(self, hidden: int, heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.heads = nn.ModuleList(_Block(hidden, dtype) for _ in range(heads))

    def forward(self, final: Tensor) -> list[Tensor]:
        """What feeds the target's head for each place, of f32[..., H]."""
        return [head(final.float()) for head in self.heads]


class MedusaStudent:
    """Medusa with the target's head, frozen."""

    def __init__(
        self, module: Medusa, head: Head, *, decay: float = 0.8, candidates: int = 2048
    ) -> None:
        self.module, self.head, self.decay, self.candidates = module, head, decay, candidates

    def loss(self, batch: Batch) -> tuple[Tensor, list[float]]:
        """Cross entropy with the target's distribution at each head's place."""
        lesson = Lesson.of(batch, self.head, self.candidates)
        rows = torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand(
            batch.tokens.shape
        )
        total, right = torch.zeros((), device=rows.device), []
        for j, hidden in enumerate(self.module(batch.final)):
            score = lesson.score(hidden, rows, batch.learnable(j), j + 1)
            total = total + self.decay**j * score.loss
            right.append(score.right)
        return total, right

    @torch.no_grad()
    def drafts(self, batch: Batch, count: int) -> Tensor:
        """As evaluation asks for."""
        hidden = self.module(batch.final)[:count]
        return torch.stack([self.head.first(x.flatten(0, 1)).view_as(batch.tokens) for x in hidden])

    def exported(self, teacher: Teacher, k: int, taps: Sequence[int], *, full_head: bool) -> Made:
        """FasterDecoding's checkpoint, where a head without a matrix of its own uses the target's."""
        del k, taps
        tensors: dict[str, Tensor] = {}
        for j, head in enumerate(self.module.heads):
            assert isinstance(head, _Block)
            tensors |= {
                f"{j}.0.linear.weight": head.linear.weight.detach(),
                f"{j}.0.linear.bias": head.bias.detach(),
            }
            if full_head:
                tensors[f"{j}.1.weight"] = teacher.head[: teacher.facts.vocab_size]
        config = {
            "medusa_num_heads": len(self.module.heads), "medusa_num_layers": 1,
            "base_model_name_or_path": teacher.facts.name,
        }  # fmt: skip
        return Made("medusa", config, tensors)


def medusa_student(teacher: Teacher, heads: int) -> MedusaStudent:
    """`heads` new heads for `teacher`."""
    dtype = teacher.dtype
    module = Medusa(teacher.facts.hidden_size, heads, dtype).to(teacher.device)
    ids = torch.arange(teacher.facts.vocab_size, device=teacher.device)
    return MedusaStudent(module, Head.of(teacher.head, ids, dtype))
