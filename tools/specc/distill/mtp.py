"""An MTP layer for a target that has none: DeepSeek-V3's (arXiv 2412.19437), trained unrolled to be fed back.

It reads the state that feeds the target's head and the next token, both after norms, and shares embedding and head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specc.distill.batches import Batch
from specc.distill.chain import Chain, ChainStudent
from specc.distill.export import Made, layer_keys, speculators
from specc.distill.layer import Layer, Linear, Norm, Sizes
from specc.distill.loss import Head
from specc.distill.target import Teacher, begin_norm, sizes_of

_NAME = "mtp_layers.0"
_NAMES = {
    "input_proj": "input_proj", "token_norm": "token_layernorm", "feature_norm": "hidden_layernorm",
    "norm": "final_layernorm",
}  # fmt: skip
"""Where a speculators checkpoint has what stands beside the decoder layer."""


class Mtp(Chain):
    """The parameters."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes, self.dtype = sizes, dtype
        self.token_norm = Norm(sizes.hidden, sizes.norm_eps)
        self.feature_norm = Norm(sizes.hidden, sizes.norm_eps)
        self.input_proj = Linear(2 * sizes.hidden, sizes.hidden, dtype)
        self.decoder = Layer(sizes, dtype, qk_norm=True)
        self.norm = Norm(sizes.hidden, sizes.norm_eps)

    def layer(self) -> Layer:
        """`decoder`."""
        return self.decoder

    def last(self) -> Norm:
        """`norm`."""
        return self.norm

    def feature(self, batch: Batch) -> Tensor:
        """The state that feeds the target's head."""
        return batch.final.float()

    def enter(self, feature: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """[token; feature], each after its norm, through one matrix; then as any decoder layer."""
        pair = torch.cat([self.token_norm(token), self.feature_norm(feature)], -1)
        x = self.input_proj(pair).float()
        return self.decoder.input_layernorm(x), x


class MtpStudent(ChainStudent):
    """MTP while it learns."""

    module: Mtp

    def exported(self, teacher: Teacher, k: int, taps: Sequence[int], *, full_head: bool) -> Made:
        """A speculators checkpoint. The whole head is meant where there is none, by any engine."""
        del taps, full_head
        tensors = {}
        for name, parameter in self.module.named_parameters():
            part, _, rest = name.partition(".")
            tensors[f"{_NAME}.{rest if part == 'decoder' else f'{_NAMES[part]}.{rest}'}"] = (
                parameter.detach()
            )
        layers = layer_keys(self.module.sizes, teacher.facts.rows, 1, "qwen3")
        return Made(
            "mtp", speculators("mtp", teacher, layers, k, num_nextn_predict_layers=1), tensors
        )


def mtp_student(teacher: Teacher, intermediate: int, depths: int) -> MtpStudent:
    """A new layer for `teacher`. It may say any token: the format has no draft vocabulary."""
    dtype = teacher.dtype
    module = Mtp(sizes_of(teacher, intermediate), dtype)
    begin_norm(module.norm, teacher)
    module.to(teacher.device)
    ids = torch.arange(teacher.facts.vocab_size, device=teacher.device)
    return MtpStudent(module, teacher.embedding, Head.of(teacher.head, ids, dtype), depths)
