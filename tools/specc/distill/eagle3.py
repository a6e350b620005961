"""EAGLE-3: taps of the target fused into a feature, and one layer that reads it beside the next token.

The norms of EAGLE-3.1 (one before fc for each tap, the recycled feature and the residual after a norm) keep the scale
of what is fed back the same at every depth. What a token is enters through the values of attention alone, so there are
as many of them as of queries, whatever the target has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from specc.distill.batches import Batch
from specc.distill.chain import Chain, ChainStudent
from specc.distill.export import Made, layer_keys, speculators, vocabulary_tables
from specc.distill.layer import Layer, Linear, Norm, Sizes
from specc.distill.loss import Head
from specc.distill.target import Teacher, begin_norm, sizes_of


class Eagle3(Chain):
    """The parameters, under the names of a speculators checkpoint."""

    def __init__(self, sizes: Sizes, taps: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes, self.dtype = sizes, dtype
        self.fc_norm = nn.ModuleList(Norm(sizes.hidden, sizes.norm_eps) for _ in range(taps))
        self.fc = Linear(taps * sizes.hidden, sizes.hidden, dtype)
        self.layers = nn.ModuleList([Layer(sizes, dtype, paired=True)])
        self.norm = Norm(sizes.hidden, sizes.norm_eps)

    def layer(self) -> Layer:
        """The first layer, and the only one."""
        (layer,) = self.layers
        assert isinstance(layer, Layer)
        return layer

    def last(self) -> Norm:
        """`norm`."""
        return self.norm

    def feature(self, batch: Batch) -> Tensor:
        """The normed taps through `fc`."""
        taps = batch.taps.unbind(2)
        normed = [norm(x) for norm, x in zip(self.fc_norm, taps, strict=True)]
        fused: Tensor = self.fc(torch.cat(normed, -1))
        return fused.float()

    def enter(self, feature: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Attention reads both, each after its norm; the residual is the feature after its."""
        layer = self.layer()
        assert layer.hidden_norm is not None
        residual = layer.hidden_norm(feature)
        return torch.cat([layer.input_layernorm(token), residual], -1), residual


class Eagle3Student(ChainStudent):
    """EAGLE-3 while it learns."""

    module: Eagle3

    def exported(self, teacher: Teacher, k: int, taps: Sequence[int], *, full_head: bool) -> Made:
        """A speculators checkpoint. Its head is the target's: left out, unless another engine is to read it."""
        sizes, size = self.module.sizes, teacher.facts.rows
        tensors = {name: p.detach() for name, p in self.module.named_parameters()}
        tensors |= vocabulary_tables(self.head.ids, size)
        if full_head:
            tensors["lm_head.weight"] = teacher.head[self.head.ids]
        config = speculators(
            "eagle3", teacher, layer_keys(sizes, size, 1), k, draft_vocab_size=len(self.head.ids),
            eagle_aux_hidden_state_layer_ids=list(taps), fc_norm=True, norm_before_fc=False,
            norm_before_residual=True, norm_output=True, target_hidden_size=None, embed_requires_grad=False,
            lm_head_of_target=not full_head,
        )  # fmt: skip
        return Made("eagle3", config, tensors)


def eagle3_student(
    teacher: Teacher, ids: Tensor, taps: int, intermediate: int, depths: int
) -> Eagle3Student:
    """A new drafter for `teacher`, whose norm before the head begins like the target's, since the head is."""
    sizes = sizes_of(teacher, intermediate)
    dtype = teacher.dtype
    module = Eagle3(replace(sizes, kv_heads=sizes.heads), taps, dtype)
    begin_norm(module.norm, teacher)
    module.to(teacher.device)
    head = Head.of(teacher.head, ids, dtype)
    return Eagle3Student(module, teacher.embedding, head, depths)
