"""DFlash (arXiv 2602.06036): a block of unknown tokens, filled in one pass over context rows made of the target's taps.

A block begins at its anchor, the last known token n, and has masks behind it. Its rows see what the target left for
the positions before n, and one another in both directions; row k gives the token at n + k + 1. While it learns, blocks
begin at many places of a text at once, each seeing what it will see when the engine drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from specc.distill.batches import Batch
from specc.distill.chain import Lesson
from specc.distill.export import Made, layer_keys, speculators, vocabulary_tables
from specc.distill.layer import Layer, Linear, Norm, Sizes, Turn, split
from specc.distill.loss import Head
from specc.distill.target import Teacher, begin_norm, sizes_of


class DFlash(nn.Module):
    """The parameters, under the names of a speculators checkpoint. `size` rows of a block, all of which draft."""

    def __init__(
        self, sizes: Sizes, taps: int, layers: int, size: int, mask: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.sizes, self.size, self.mask, self.dtype = sizes, size, mask, dtype
        self.fc = Linear(taps * sizes.hidden, sizes.hidden, dtype)
        self.hidden_norm = Norm(sizes.hidden, sizes.norm_eps)
        self.layers = nn.ModuleList(Layer(sizes, dtype, qk_norm=True) for _ in range(layers))
        self.norm = Norm(sizes.hidden, sizes.norm_eps)

    def forward(self, batch: Batch, embedding: Tensor, anchors: Tensor) -> Tensor:
        """What feeds the head, f32[B, M, size, H], for blocks that begin at the places `anchors` i64[B, M] of rows."""
        rows, count = anchors.shape
        context = self.hidden_norm(self.fc(batch.taps.flatten(2)))
        tokens = torch.full((rows, count, self.size), self.mask, device=anchors.device)
        tokens[..., 0] = batch.tokens.gather(1, anchors)
        x = embedding[tokens].float().flatten(1, 2)
        steps = torch.arange(self.size, device=anchors.device)
        at = (batch.positions.gather(1, anchors)[..., None] + steps).flatten(1)
        here, there = (
            Turn(self.sizes, at, self.dtype),
            Turn(self.sizes, batch.positions, self.dtype),
        )
        seen = self._seen(batch, anchors)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            read, attention = layer.input_layernorm(x), layer.self_attn
            query = attention.queries(read, here) * self.sizes.head_dim**-0.5
            own, known = (
                attention.keys_and_values(read, here),
                attention.keys_and_values(context, there),
            )
            x = layer.finish(attend_block(query, known, own, seen, self.size), x)
        return split(self.norm(x), 1, count)

    def _seen(self, batch: Batch, anchors: Tensor) -> Tensor:
        """What to add to scores of a block with context rows [B, 1, 1, M, 1, T]: 0 before its anchor in its text."""
        at = torch.arange(batch.tokens.shape[1], device=anchors.device)
        same = batch.text[:, None, :] == batch.text.gather(1, anchors)[..., None]
        open_rows = same & (at < anchors[..., None])
        mask = torch.zeros(open_rows.shape, dtype=self.dtype, device=anchors.device)
        return mask.masked_fill(~open_rows, -torch.inf)[:, None, None, :, None]


def attend_block(
    query: Tensor, known: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], seen: Tensor, size: int
) -> Tensor:
    """Attention of blocks [B, g, h, M * size, D] over the context [B, g, 1, T, D] and over their own rows."""
    heads, count, length = query.shape[2], query.shape[3] // size, known[0].shape[-2]
    key, value = (x.squeeze(2) for x in known)
    scores = split(query.flatten(2, 3) @ key.transpose(-1, -2), 2, heads)
    scores = split(scores, 3, count) + seen
    own_key, own_value = (split(x, 3, count) for x in own)
    inner = split(query, 3, count) @ own_key.transpose(-1, -2)
    weights = torch.softmax(torch.cat([scores, inner], -1).float(), -1).to(query.dtype)
    outer = weights[..., :length].flatten(3, 4).flatten(2, 3) @ value
    return split(outer, 2, heads) + (weights[..., length:] @ own_value).flatten(3, 4)


Module = TypeVar("Module", bound=DFlash)


class DFlashStudent:
    """DFlash with the target's embedding and rows of its head, both frozen."""

    method = "dflash"

    def __init__(
        self, module: DFlash, embedding: Tensor, head: Head, *, decay: float = 0.8, candidates: int = 2048,
        blocks: int = 64,
    ) -> None:  # fmt: skip
        self.module, self.embedding, self.head = module, embedding, head
        self.decay, self.candidates, self.blocks = decay, candidates, blocks

    def loss(self, batch: Batch) -> tuple[Tensor, list[float]]:
        """Cross entropy with the target's distribution at every row of blocks that begin at random places."""
        lesson = Lesson.of(batch, self.head, self.candidates)
        fit = batch.learnable(-1)
        dice = torch.rand(fit.shape, device=fit.device).masked_fill(~fit, -1.0)
        anchors = dice.topk(min(self.blocks, fit.shape[1]), -1).indices
        # Token n is known, and n + 1 is the target's own.
        hidden = self.module(batch, self.embedding, anchors)
        total, right = torch.zeros((), device=fit.device), []
        for k in range(self.module.size):
            learn = batch.learnable(k - 1).gather(1, anchors)
            loss, share = self.row_loss(lesson, batch, hidden[:, :, k], anchors, learn, k)
            total = total + self.decay**k * loss
            right.append(share)
        return total, right

    def row_loss(
        self, lesson: Lesson, batch: Batch, hidden: Tensor, anchors: Tensor, learn: Tensor, k: int
    ) -> tuple[Tensor, float]:  # fmt: skip
        """The loss of row k of blocks, from what feeds its head [B, M, H], and how often it was right."""
        del batch
        score = lesson.score(hidden, anchors, learn, k)
        return score.loss, score.right

    @torch.no_grad()
    def drafts(self, batch: Batch, count: int) -> Tensor:
        """As evaluation asks for: row i drafts with its anchor at i + 1. A row's last has none, and drafts nothing."""
        every = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        anchors = (every + 1).clamp(max=len(every) - 1).expand(batch.tokens.shape)
        found = []
        for begin in range(0, anchors.shape[1], 64):  # (all at once would fill the memory)
            part = anchors[:, begin : begin + 64]
            hidden = self.module(batch, self.embedding, part)[:, :, :count]
            found.append(self.said(hidden, batch.tokens.gather(1, part)))
        return torch.cat(found, 1).movedim(-1, 0)

    def said(self, hidden: Tensor, anchor: Tensor) -> Tensor:
        """Drafts i64[B, M, count] of blocks, from what feeds the head [B, M, count, H] and the anchors i64[B, M]."""
        del anchor
        return self.head.first(hidden.flatten(0, 2)).view(hidden.shape[:-1])

    def exported(self, teacher: Teacher, k: int, taps: Sequence[int], *, full_head: bool) -> Made:
        """A speculators checkpoint."""
        module, size = self.module, teacher.facts.rows
        tensors = {name: p.detach() for name, p in module.named_parameters()}
        tensors |= vocabulary_tables(self.head.ids, size)
        if full_head:
            tensors["lm_head.weight"] = teacher.head[self.head.ids]
        layers = layer_keys(module.sizes, size, len(module.layers), "qwen3")
        config = speculators(
            self.method, teacher, layers, k, draft_vocab_size=len(self.head.ids), block_size=module.size,
            aux_hidden_state_layer_ids=list(taps), mask_token_id=module.mask, sample_from_anchor=True,
            sliding_window_non_causal=False, target_hidden_size=None, lm_head_of_target=not full_head,
            **self.keys(),
        )  # fmt: skip
        return Made(self.method, config, tensors)

    def keys(self) -> dict[str, Any]:
        """What a configuration says of the heads."""
        return {}


@dataclass(frozen=True)
class Blocks:
    """How a drafter of blocks is built: `layers` layers, `size` rows of a block."""

    taps: int
    intermediate: int
    layers: int
    size: int


def new_module(kind: type[Module], teacher: Teacher, blocks: Blocks) -> Module:
    """A module for `teacher`. Its mask is the token that the target says least of all: the last one."""
    sizes = sizes_of(teacher, blocks.intermediate)
    module = kind(
        replace(sizes, kv_heads=sizes.heads), blocks.taps, blocks.layers, blocks.size,
        teacher.facts.vocab_size - 1, teacher.dtype,
    )  # fmt: skip
    begin_norm(module.norm, teacher)
    return module.to(teacher.device)


def dflash_student(teacher: Teacher, ids: Tensor, blocks: Blocks) -> DFlashStudent:
    """A new drafter for `teacher`, which says the tokens `ids`."""
    module = new_module(DFlash, teacher, blocks)
    return DFlashStudent(module, teacher.embedding, Head.of(teacher.head, ids, teacher.dtype))
