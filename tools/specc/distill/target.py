"""The target as a teacher: hidden states of whole texts, from the weights that `compile` reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specc.distill.layer import Norm, Sizes
from specc.errors import ModelError
from specc.ir.importers.drafters import Target
from specc.ir.importers.source import ImportedModel, load_model
from specc.locate import locate

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_PLAIN_NORMS = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "granite", "olmo2")
"""Architectures whose last norm is x / rms(x) * weight."""


UNSURE = 0.3
"""Of that norm, with which a drafter begins: one that knows nothing yet should not be sure of it."""


@dataclass(frozen=True, eq=False)
class Teacher:
    """A target that can be asked for its hidden states, computed in `dtype`. `embedding` and `head` f32[rows, H]."""

    imported: ImportedModel
    facts: Target
    model: PreTrainedModel
    device: torch.device
    dtype: torch.dtype
    embedding: Tensor
    head: Tensor

    @torch.no_grad()
    def hidden(self, ids: Tensor, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Hidden states of ids i64[B, T]: those of the taps [B, T, A, H], and the one that feeds the head [B, T, H].

        Tap j is what enters layer j. Rows see only what is before them, so texts may be padded at their end.
        """
        body: Any = self.model.base_model
        given = {"input_ids": ids.to(self.device), "use_cache": False}
        states = body(**given, output_hidden_states=True).hidden_states
        return torch.stack([states[j] for j in taps], 2), states[-1]


DTYPES = {"auto": None, "f32": torch.float32, "bf16": torch.bfloat16}
"""By name; `auto` is what this machine multiplies fastest."""


def load_teacher(spec: str, dtype: str = "auto") -> Teacher:
    """The target that `spec` names, with its layers in one of DTYPES.

    Raises ModelError as `load_model`; SPECC-E0281 for a target that no trained drafter can be read for.
    """
    imported = load_model(spec)
    path = locate(spec)
    if path.suffix == ".pt2":
        raise _no_teacher(imported, "a .pt2, whose hidden states cannot be asked for", "its folder")
    facts = Target.of(imported.program)
    if facts.head_bias:
        raise _no_teacher(imported, "a head with a bias", "a target whose head only multiplies")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = _filled(path)
    model.requires_grad_(False)
    model.train(False)
    chosen = DTYPES[dtype] or fast_dtype(device)
    model.to(device=device, dtype=chosen)
    embedding, head = facts.embedding.load().to(device), facts.head.load().to(device)
    return Teacher(imported, facts, model, device, chosen, embedding, head)


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device multiplies it faster than float32."""
    if device.type == "cuda":
        return torch.bfloat16
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return torch.bfloat16 if " avx512_bf16" in flags or " amx_bf16" in flags else torch.float32


def sizes_of(teacher: Teacher, intermediate: int) -> Sizes:
    """The sizes of a draft layer for this target: its own, but for the width of the MLP."""
    config: Any = teacher.model.config.get_text_config()
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    dim = int(getattr(config, "head_dim", None) or teacher.facts.hidden_size // heads)
    rope = getattr(config, "rope_parameters", None) or {}
    theta = float(rope.get("rope_theta", 10000.0))
    eps = float(getattr(config, "rms_norm_eps", 1e-6))
    return Sizes(teacher.facts.hidden_size, intermediate, heads, kv_heads, dim, theta, eps)


def begin_norm(norm: Norm, teacher: Teacher) -> None:
    """Let the norm before a drafter's head begin like the target's, since the head is the target's too."""
    theirs: Any = getattr(teacher.model.base_model, "norm", None)
    weight = getattr(theirs, "weight", None)
    plain = "RMSNorm" in type(theirs).__name__ and teacher.facts.architecture in _PLAIN_NORMS
    with torch.no_grad():
        if plain and isinstance(weight, Tensor):
            norm.weight.copy_(weight)
        norm.weight.mul_(UNSURE)


def _filled(path: Path) -> PreTrainedModel:
    from specc.ir.importers.folder import load_folder
    from specc.ir.importers.gguf import filled_model

    return filled_model(path) if path.suffix == ".gguf" else load_folder(path)


def _no_teacher(imported: ImportedModel, found: str, expected: str) -> ModelError:
    return ModelError(
        "SPECC-E0281", "no drafter can be distilled from this target", where=imported.program.name,
        expected=expected, found=found, cure="use --method suffix, which needs no training",
    )  # fmt: skip
