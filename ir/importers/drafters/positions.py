"""Rotary positions as a drafter was trained with them, from whichever keys its configuration uses."""

from __future__ import annotations

from typing import Any

import torch

from specc.errors import ModelError
from specc.ir.importers.drafters.files import Config
from specc.ir.importers.drafters.spec import Rope
from specc.ir.weights import Weight

_KINDS = ("default", "linear", "llama3", "yarn")
_KEYS = frozenset((
    "rope_type", "type", "rope_theta", "factor", "partial_rotary_factor", "original_max_position_embeddings",
    "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor",
    "truncate", "mrope_section", "mrope_interleaved",
))  # fmt: skip


def rope(config: Config, head_dim: int, *, interleaved: bool = False) -> tuple[Rope, Weight]:
    """The contract and the frequencies f32[dim / 2] for heads of `head_dim`.

    Keys: `rope_parameters` (which wins: a class default may stand beside it), or `rope_theta` and `rope_scaling`.
    Where no key names a base it is 10000, transformers' default, and never the target's: SafeAILab's files leave it
    out and were trained with that. Sections of axes (mrope) make no difference in text, whose axes agree.
    Raises ModelError (SPECC-E0278).
    """
    parameters: dict[str, Any] = {
        "rope_theta": config.get("rope_theta", 10000.0),
        **config.section("rope_scaling").values,
        **config.section("rope_parameters").values,
    }
    kind = str(parameters.get("rope_type", parameters.pop("type", "default")))
    if unknown := sorted(set(parameters) - _KEYS):
        # Among them what differs between kinds of layers.
        raise _bad(config, f"has keys that specc does not read: {', '.join(unknown)}", unknown[0])
    if kind not in _KINDS:
        raise _bad(config, f"({kind}) is not supported", kind)
    said = Config(
        {"partial_rotary_factor": config.get("partial_rotary_factor"), **parameters}, config.where
    )
    partial, theta = said.number("partial_rotary_factor", 1.0), said.number("rope_theta")
    if not 0 < partial <= 1:
        raise said.bad("partial_rotary_factor", "a share above 0 and at most 1")
    frequencies, scale = _frequencies(
        config, kind, {**parameters, "rope_type": kind}, head_dim, partial
    )
    described = Rope(theta, kind, 2 * len(frequencies), scale, interleaved)
    return described, Weight.of(frequencies)


def latent_rope(config: Config) -> tuple[Rope, Weight]:
    """The same of latent attention, which turns a part of its heads, in pairs unless a key says halves."""
    return rope(
        config, config.integer("qk_rope_head_dim"), interleaved=config.flag("rope_interleave", True)
    )


def _bad(config: Config, what: str, found: str) -> ModelError:
    return ModelError(
        "SPECC-E0278", f"the drafter's rope {what}", where=config.where, expected=" or ".join(_KINDS),
        found=found, cure="use another drafter: its rope depends on the length of a call, or is unknown to specc",
    )  # fmt: skip


def _frequencies(
    config: Config, kind: str, parameters: dict[str, Any], head_dim: int, partial: float
) -> tuple[torch.Tensor, float]:
    """The formulas of transformers, which is what trainers use."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind == "default":
        dim = int(head_dim * partial)
        return 1.0 / float(parameters["rope_theta"]) ** (torch.arange(0, dim, 2).float() / dim), 1.0
    length = config.integer("max_position_embeddings", 2048)
    try:
        described = LlamaConfig(
            head_dim=head_dim, hidden_size=head_dim, num_attention_heads=1, max_position_embeddings=length,
            rope_parameters={**parameters, "partial_rotary_factor": partial},
        )  # fmt: skip
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](described, torch.device("cpu"))
        return frequencies, float(scale)
    except Exception as error:  # keys that are missing or no numbers
        key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
        raise config.bad(key, f"what transformers needs for {kind}") from error
