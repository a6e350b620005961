"""Which tree is drafted, written from the papers: EAGLE-2 (arXiv 2406.16858, section 4) and Medusa's (2401.10774).

Nodes are paths of tokens. Probabilities come from eager code on a checkpoint's raw files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from tests.ir.importers.drafters import reference_eagle
from tests.ir.importers.drafters.reference import (
    Raw,
    causal,
    embedding_of,
    head_of,
    hidden_states,
)

Nodes = tuple[int, ...]
Likely = Callable[[Nodes], Tensor]
"""A path -> log probabilities f32[V] of the token after it."""


def eagle2(likely: Likely, depth: int, width: int, total: int) -> set[Nodes]:
    """Expansion phase: of each layer's top `width` nodes, the top `width` tokens. Reranking phase: the top `total`."""
    layer: list[tuple[Nodes, float]] = [((), 0.0)]
    grown: list[tuple[Nodes, float]] = []
    for _ in range(depth):
        children = []
        for path, value in layer:
            top = likely(path).topk(width)
            pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            children += [((*path, token), value + share) for token, share in pairs]
        grown += children
        layer = sorted(children, key=lambda node: -node[1])[:width]
    return {path for path, _ in sorted(grown, key=lambda node: -node[1])[:total]}


def places(likely: Sequence[Tensor], choices: Sequence[Nodes]) -> set[Nodes]:
    """Medusa: a choice (2, 0) is the third best token of the first head, then the best of the second."""
    best = [row.argsort(descending=True) for row in likely]
    return {tuple(int(best[d][rank]) for d, rank in enumerate(c)) for c in choices}


def medusa(raw: Raw, model: PreTrainedModel, committed: list[int], heads: int) -> list[Tensor]:
    """Log probabilities f32[V] of each head."""
    x = hidden_states(model, committed[:-1])[-1][-1]
    found = []
    for head in range(heads):
        y, block = x, 0
        while f"{head}.{block}.linear.weight" in raw.tensors:
            y = y + functional.silu(raw.linear(y, f"{head}.{block}.linear"))
            block += 1
        found.append((raw.tensors.get(f"{head}.{block}.weight", head_of(model)) @ y).log_softmax(0))
    return found


def eagle1(raw: Raw, model: PreTrainedModel, committed: list[int]) -> Likely:
    """The text and a path, run from the beginning."""
    table = raw.tensors.get("embed_tokens.weight", embedding_of(model))
    true = hidden_states(model, committed[:-1])[-1]

    def likely(path: Nodes) -> Tensor:
        features, tokens = true, list(committed[1:])
        for following in (*path, None):
            x = raw.linear(torch.cat([table[tokens], features], -1), "fc")
            positions = torch.arange(len(tokens))
            for i in range(raw.config["num_hidden_layers"]):
                x = reference_eagle._plain_layer(
                    raw, x, f"layers.{i}", positions, causal(len(tokens))
                )
            if following is not None:
                features, tokens = torch.cat([features, x[-1:]]), [*tokens, following]
        return (head_of(model) @ x[-1]).log_softmax(0)

    return likely


def eagle3(raw: Raw, model: PreTrainedModel, committed: list[int]) -> Likely:
    """The same; tokens that the drafter does not have are impossible."""
    table = raw.tensors.get("embed_tokens.weight", embedding_of(model))
    true = reference_eagle._fused(raw, reference_eagle._taps(raw, model, committed[:-1]))

    def likely(path: Nodes) -> Tensor:
        features, tokens = true, list(committed[1:])
        for following in (*path, None):
            at, seen = torch.arange(len(tokens)), causal(len(tokens))
            last = reference_eagle._stack(raw, table[tokens], features, at, seen)[-1:]
            normed = raw.rms(last, "norm.weight")
            if following is not None:
                fed = normed if raw.config.get("norm_output") else last
                features, tokens = torch.cat([features, fed]), [*tokens, following]
        scores = raw.linear(normed, "lm_head")[0].log_softmax(0)
        every = torch.full((len(table),), -torch.inf)
        every[raw.target_ids(torch.arange(len(scores)))] = scores
        return every

    return likely


def drafted(
    checkpoint: Path, model: PreTrainedModel, committed: list[int], depth: int, width: int, total: int
) -> set[Nodes]:  # fmt: skip
    """What EAGLE-2 verifies after `committed`, for a checkpoint of any kind that this file knows."""
    raw = Raw.read(checkpoint)
    with torch.no_grad():
        if "0.0.linear.weight" in raw.tensors:
            rows = medusa(raw, model, committed, depth)
            return eagle2(lambda path: rows[len(path)], depth, width, total)
        kind = eagle3 if "norm.weight" in raw.tensors else eagle1
        return eagle2(kind(raw, model, committed), depth, width, total)
