"""Trained drafters as files of public formats, which specc's own importers read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from specc.distill.layer import Sizes
from specc.distill.target import Teacher

RECIPE = "distill.json"
"""Beside config.json and the weights: for which target a drafter was made, how, and what it was measured to give."""


@dataclass(frozen=True, eq=False)
class Made:
    """A drafter to be written: its keys of config.json, and its tensors by their names there."""

    method: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


class Exporting(Protocol):
    """A student that can be written to files. What is exported of its parameters are views of them."""

    @property
    def module(self) -> torch.nn.Module:
        """The parameters."""
        ...

    def exported(self, teacher: Teacher, k: int, taps: tuple[int, ...], *, full_head: bool) -> Made:
        """What a checkpoint holds."""
        ...


def write_drafter(folder: Path, made: Made, recipe: Mapping[str, Any]) -> None:
    """Write config.json, model.safetensors (matrices and norms in f16) and the recipe into `folder`."""
    content = {
        name: (t.half() if t.is_floating_point() else t).detach().cpu().contiguous()
        for name, t in made.tensors.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(content, folder / "model.safetensors", {"format": "pt"})
    for name, values in (("config.json", made.config), (RECIPE, recipe)):
        (folder / name).write_text(json.dumps(values, indent=1) + "\n")


def as_stored(module: torch.nn.Module) -> None:
    """Round the parameters of `module` to what an exported file holds."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.half())


def layer_keys(sizes: Sizes, vocabulary: int, layers: int, kind: str = "llama") -> dict[str, Any]:
    """What a configuration says of draft layers."""
    return {
        "model_type": kind, "hidden_size": sizes.hidden, "intermediate_size": sizes.intermediate,
        "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head_dim,
        "num_hidden_layers": layers, "rms_norm_eps": sizes.norm_eps, "rope_theta": sizes.theta,
        "hidden_act": "silu", "vocab_size": vocabulary, "attention_bias": False, "mlp_bias": False,
        "max_position_embeddings": 1 << 17, "tie_word_embeddings": False,
    }  # fmt: skip


def speculators(
    kind: str, teacher: Teacher, layers: Mapping[str, Any], k: int, **own: Any
) -> dict[str, Any]:
    """A configuration as vllm-project/speculators writes it."""
    classes = {"eagle3": "Eagle3Speculator", "dflash": "DFlashSpeculator", "dspark": "DSparkSpeculator",
               "mtp": "MTPDraftModel"}  # fmt: skip
    proposal = {
        "proposal_type": "greedy", "speculative_tokens": k, "verifier_accept_k": 1, "accept_tolerance": 0.0,
    }  # fmt: skip
    verifier = {"name_or_path": teacher.facts.name, "architectures": [type(teacher.model).__name__]}
    return {
        "architectures": [classes[kind]], "speculators_model_type": kind, "speculators_version": "0.5.0",
        "speculators_config": {
            "algorithm": kind, "default_proposal_method": "greedy", "proposal_methods": [proposal],
            "verifier": verifier,
        },
        "transformer_layer_config": dict(layers), **own,
    }  # fmt: skip


def vocabulary_tables(ids: Tensor, size: int) -> dict[str, Tensor]:
    """`d2t` as offsets and `t2d`, for the draft vocabulary `ids` out of `size` tokens."""
    known = torch.zeros(size, dtype=torch.bool)
    known[ids.cpu()] = True
    return {"d2t": ids.cpu() - torch.arange(len(ids)), "t2d": known}
