"""The model that an artifact was compiled from, in eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from specc import flags
from specc.progress import Progress
from specc.runtime import Manifest

if TYPE_CHECKING:
    import torch

    Eager = Callable[[torch.Tensor], torch.Tensor]
    """tokens i64[T] -> logits f32[T, V]."""


def load_original(manifest: Manifest, model: str | None, progress: Progress) -> Eager:
    """The model as a function, from `model` or where the manifest says. Its tokens must be the artifact's."""
    source = model or manifest.source_model
    if source is None:
        raise flags.conflict(
            "the artifact does not say which model it was compiled from",
            "name it with --model MODEL, or compare the arms alone with `verify --no-eager`",
        )
    with progress.phase(f"load {source}"):
        from specc.ir.importers.source import load_model

        imported = load_model(source, max_model_len=manifest.model.max_model_len)
    if imported.eager is None:
        raise flags.conflict(
            f"{source} has no eager form", "compare the arms alone with `verify --no-eager`"
        )
    vocabulary = imported.program.model.vocab_size
    if vocabulary != manifest.model.vocab_size:
        raise flags.bad_value(
            "--model", f"a model of {manifest.model.vocab_size} tokens", f"{source}: {vocabulary}"
        )
    return imported.eager
