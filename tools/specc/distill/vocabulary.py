"""The draft vocabulary: the tokens that the target says most."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specc.distill.features import Shard


def draft_vocabulary(shards: Sequence[Shard], size: int, vocabulary: int) -> Tensor:
    """The ids i64[size], ascending, of the tokens that answers hold most often.

    Then low ids, which tokenizers learn first. Held-out texts are not counted.
    """
    counts = torch.zeros(vocabulary, dtype=torch.int64)
    for shard in shards:
        tokens = shard.read("tokens", 0, shard.starts[-1]).long()
        spans = zip(shard.starts, shard.starts[1:], shard.prompts, shard.held, strict=False)
        for begin, end, prompt, held in spans:
            if not held:
                counts += torch.bincount(tokens[begin + prompt : end], minlength=vocabulary)
    order = torch.argsort(counts, descending=True, stable=True)
    return order[:size].sort().values
