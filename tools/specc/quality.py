"""What weights in fewer bits cost: an artifact and its original model on the same text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specc import output
from specc.runtime import Artifact, Manifest, Session

if TYPE_CHECKING:
    import torch

    from specc.original import Eager

WINDOW = 512
"""Tokens that are read from nothing; all but the first are predicted."""


@dataclass(frozen=True)
class Quality:
    """Means over `tokens` predictions.

    `loss` and `original_loss`: nats for a token, of artifact and original. `divergence`: nats, KL of the artifact's
    distribution from the original's. `agreement`: share of positions where both have the same first choice.
    """

    tokens: int
    loss: float
    original_loss: float
    divergence: float
    agreement: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)

    @property
    def original_perplexity(self) -> float:
        return math.exp(self.original_loss)


def measure_quality(artifact: Artifact, eager: Eager, ids: Sequence[int]) -> Quality:
    """Both models over the text `ids`, of 2 tokens or more, window by window."""
    import torch

    window = min(WINDOW, artifact.manifest.model.max_model_len)
    vocabulary = artifact.manifest.model.vocab_size
    sums, count = torch.zeros(4, dtype=torch.float64), 0
    for start in range(0, len(ids), window):
        part = ids[start : start + window]
        if len(part) < 2:
            break
        with artifact.session() as session:
            ours = _logits(session, artifact, part)[:, :vocabulary]
        with torch.no_grad():
            theirs = eager(torch.tensor(part, dtype=torch.int64))[:, :vocabulary].float()
        wanted = torch.tensor(part[1:])[:, None]
        left, right = (torch.log_softmax(x[:-1].double(), -1) for x in (ours, theirs))
        sums += torch.stack([
            -left.gather(1, wanted).sum(), -right.gather(1, wanted).sum(),
            (right.exp() * (right - left)).sum(),
            (left.argmax(-1) == right.argmax(-1)).double().sum(),
        ])  # fmt: skip
        count += len(wanted)
    loss, original, divergence, agreement = (float(x) / count for x in sums)
    return Quality(count, loss, original, divergence, agreement)


def payload(found: Quality, manifest: Manifest) -> dict[str, object]:
    """For JSON."""
    return {
        "approximations": manifest.approximations,
        "tokens": found.tokens,
        "perplexity": found.perplexity,
        "original_perplexity": found.original_perplexity,
        "ratio": found.perplexity / found.original_perplexity,
        "kl_divergence": found.divergence,
        "agreement": found.agreement,
    }


def render(found: Quality, manifest: Manifest) -> str:
    """For people."""
    rows = [
        ("weights", ", ".join(manifest.approximations) or "float32"),
        ("tokens predicted", str(found.tokens)),
        ("perplexity", f"{found.perplexity:.4f}"),
        ("of the original, in float32", f"{found.original_perplexity:.4f}"),
        ("ratio", f"{found.perplexity / found.original_perplexity:.4f}"),
        ("KL divergence", f"{found.divergence:.2e} nats a token"),
        ("same first choice", f"{found.agreement:.2%}"),
    ]
    return output.table(rows, indent="")


def _logits(session: Session, artifact: Artifact, ids: Sequence[int]) -> torch.Tensor:
    """f32[T, V] of a text from its beginning, by the widest verify, then by plain decoding: the bits are the same."""
    import torch

    rows, begin, manifest = [], 0, artifact.manifest
    widest = max(manifest.rounds, key=lambda played: played.nodes)
    while begin < len(ids):
        wide = begin + widest.nodes < len(ids)
        k, count = (widest.k, widest.nodes + 1) if wide else (0, 1)
        inputs = manifest.verify_inputs(k, ids[begin : begin + count], begin)
        view = session.run(f"verify_{k}", inputs)
        rows.append(torch.frombuffer(view, dtype=torch.float32).view(count, -1))
        begin += count
    return torch.cat(rows)
