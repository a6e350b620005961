"""DSpark (arXiv 2607.05147): DFlash's block, a head that reads the token before, and one that foretells acceptance.

The rows of a block are filled at once, each for itself; what one of them says next to another is the business of a
Markov head: a bias of low rank over the vocabulary, by the token before. While it learns, that token is the text's own.
The confidence head learns how often a draft drawn from the drafter would be kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specc.distill.batches import Batch
from specc.distill.chain import Lesson
from specc.distill.dflash import Blocks, DFlash, DFlashStudent, new_module
from specc.distill.loss import Bias, Head
from specc.distill.target import Teacher

RANK = 16
"""The hidden size over the rank of the Markov head, about: the paper's models of 4,096 have 256."""


class _Markov(nn.Module):
    """The vanilla head: W2 W1[x]. It begins without a say."""

    def __init__(self, tokens: int, drafts: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(tokens, rank)
        self.markov_w2 = nn.Linear(rank, drafts, bias=False)
        nn.init.zeros_(self.markov_w2.weight)


class _Confidence(nn.Module):
    """Reads a row and the embedding of the token before."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, 1)


class DSpark(DFlash):
    """The parameters, under the names of a speculators checkpoint; `add_heads` makes it whole."""

    markov_head: _Markov
    confidence_head: _Confidence

    def add_heads(self, tokens: int, drafts: int) -> DSpark:
        """Heads for `tokens` of the target and `drafts` of the draft vocabulary."""
        rank = max(8, self.sizes.hidden // RANK)
        self.markov_head = _Markov(tokens, drafts, rank)
        self.confidence_head = _Confidence(self.sizes.hidden + rank)
        return self

    def memory(self, before: Tensor) -> Tensor:
        """W1 of the tokens i64[...] before, f32[..., r]."""
        out: Tensor = self.markov_head.markov_w1(before)
        return out

    def bias(self, memory: Tensor) -> Bias:
        """The bias that `memory` means."""
        return Bias(memory, self.markov_head.markov_w2.weight)


class DSparkStudent(DFlashStudent):
    """DSpark while it learns."""

    method = "dspark"
    module: DSpark

    def row_loss(
        self, lesson: Lesson, batch: Batch, hidden: Tensor, anchors: Tensor, learn: Tensor, k: int
    ) -> tuple[Tensor, float]:
        """As the base class, and how far the confidence is from the overlap of the two distributions."""
        memory = self.module.memory(batch.ahead(k).gather(1, anchors))
        score = lesson.score(hidden, anchors, learn, k, self.module.bias(memory))
        if not len(score.overlap):
            return score.loss, score.right
        # (What a row says does not change for the sake of foretelling whether it is kept.)
        read = torch.cat([hidden, memory], -1)[learn].detach()
        sure = self.module.confidence_head.proj(read).squeeze(-1)
        return score.loss + functional.binary_cross_entropy_with_logits(
            sure, score.overlap
        ), score.right

    def said(self, hidden: Tensor, anchor: Tensor) -> Tensor:
        """One row after the other: each reads what the one before it said."""
        before, found = anchor, []
        for k in range(hidden.shape[2]):
            bias = self.module.bias(self.module.memory(before).flatten(0, 1))
            before = self.head.first(hidden[:, :, k].flatten(0, 1), bias).view(anchor.shape)
            found.append(before)
        return torch.stack(found, -1)

    def keys(self) -> dict[str, Any]:
        """Both heads, as speculators names them."""
        return {
            "markov_rank": self.module.markov_head.markov_w1.embedding_dim, "markov_head_type": "vanilla",
            "enable_confidence_head": True, "confidence_head_with_markov": True,
        }  # fmt: skip


def dspark_student(teacher: Teacher, ids: Tensor, blocks: Blocks) -> DSparkStudent:
    """A new drafter for `teacher`, which says the tokens `ids`."""
    module = new_module(DSpark, teacher, blocks).add_heads(teacher.facts.rows, len(ids))
    return DSparkStudent(
        module.to(teacher.device), teacher.embedding, Head.of(teacher.head, ids, teacher.dtype)
    )
