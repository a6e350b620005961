"""Rotary frequencies that depend on the length of a call, made constant while a model is traced.

Two of transformers' rope types look at the largest position of each call: `longrope` takes one of two sets of factors,
`dynamic` recomputes its base. A compiled program serves every length with one graph, so the choice is made here, from
the longest sequence that will be asked for, and recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

from torch import Tensor, nn

from specc.errors import ModelError


@dataclass(frozen=True)
class RopeChoice:
    """What was chosen: `text` for the provenance (empty if nothing was), for `limit` positions (0: no limit)."""

    text: str = ""
    limit: int = 0


@contextmanager
def frozen(model: nn.Module, max_model_len: int | None) -> Iterator[RopeChoice]:
    """Within this context no rotary module of `model` looks at the length of a call.

    `max_model_len` None stands for all that the model claims (longrope) or its original length (dynamic).
    The model is as before on leaving. Raises ModelError (SPECC-E0205) for a length that `dynamic` cannot serve.
    """
    choice, saved = RopeChoice(), []
    for path, module in model.named_modules():
        for layer_type, kind in _kinds(module):
            if kind != "longrope" and "dynamic" not in kind:
                continue
            name = f"{layer_type}_inv_freq" if layer_type else "inv_freq"
            frequencies, choice = _frequencies(module, path, layer_type, kind, name, max_model_len)
            saved.append((module, name, getattr(module, name), module.__dict__.get("forward")))
            setattr(module, name, frequencies)
            module.forward = MethodType(inspect.unwrap(type(module).forward), module)
    try:
        yield choice
    finally:
        for module, name, buffer, forward in saved:
            setattr(module, name, buffer)
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.forward = forward


def _kinds(module: nn.Module) -> Iterator[tuple[str, str]]:
    """(layer type or "", rope type) of each set of frequencies that `module` keeps."""
    kind = getattr(module, "rope_type", None)
    if isinstance(kind, str):
        yield "", kind
    elif isinstance(kind, dict):
        yield from kind.items()


def _frequencies(
    module: Any, path: str, layer_type: str, kind: str, name: str, max_model_len: int | None
) -> tuple[Tensor, RopeChoice]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = module.config
    start: Tensor = getattr(module, name.replace("inv_freq", "original_inv_freq"))
    claimed = int(config.max_position_embeddings)
    if "dynamic" in kind:
        if max_model_len is not None and max_model_len > claimed:
            raise ModelError(
                "SPECC-E0205",
                "dynamic NTK rope changes its frequencies beyond the model's original length",
                where=path,
                expected=f"at most {claimed} positions",
                found=f"--max-model-len {max_model_len}",
                cure=f"pass --max-model-len {claimed}, or a rope_scaling of another type",
            )
        return start, RopeChoice(f"dynamic: original frequencies, up to {claimed}", claimed)
    parameters = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
    original = int(parameters["original_max_position_embeddings"])
    if (max_model_len or claimed) <= original:
        return start, RopeChoice(f"longrope: short factors, up to {original}", original)
    extra = {"layer_type": layer_type} if layer_type else {}
    long, _ = ROPE_INIT_FUNCTIONS[kind](config, start.device, seq_len=original + 1, **extra)
    return long, RopeChoice(f"longrope: long factors, beyond {original}")
