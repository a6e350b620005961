"""Mixture-of-experts layers in a form whose sizes are T and numbers only, through transformers' experts registry.

Transformers' own forms loop over the experts that were hit (sizes depend on data) or flatten rows and choices (sizes of
2T). Here every row gathers the weights of its k experts and multiplies; a row's result depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

NAME = "specc"


def register() -> None:
    """Make `experts_implementation="specc"` known to transformers. Idempotent."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, _experts)


@contextmanager
def selected(model: nn.Module) -> Iterator[None]:
    """Within this context each experts module of `model` takes the form above; it reads that from its configuration."""
    configs: list[Any] = [m.config for m in model.modules() if hasattr(m, "_is_expert_parallel")]
    before = [config._experts_implementation for config in configs]
    for config in configs:
        config._experts_implementation = NAME
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._experts_implementation = name


def _experts(self: Any, hidden_states: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """hidden_states [T, H], index i64[T, k], weights [T, k] -> [T, H]. `self` is transformers' experts module."""
    name = "gate_up_proj" if self.has_gate else "up_proj"
    rows = hidden_states[:, None, :].expand(-1, index.shape[1], -1)
    inner = _linear(self, name, rows, index)
    inner = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
    outer = _linear(self, "down_proj", inner, index)
    if self.has_post_expert_norm:
        outer = self.post_expert_norm(outer)
    return (outer * weights[..., None]).sum(1).to(hidden_states.dtype)


def _linear(self: Any, name: str, x: Tensor, index: Tensor) -> Tensor:
    """X [T, k, I] times each choice's own matrix -> [T, k, O].

    A product and a sum, not a matmul: a batched matmul flattens rows and choices into one dimension of k * T.
    """
    matrix: Tensor = getattr(self, name)[index]
    weighted = x[..., None] * matrix if self.is_transposed else x[:, :, None, :] * matrix
    result = weighted.sum(-2 if self.is_transposed else -1)
    return result + getattr(self, f"{name}_bias")[index] if self.has_bias else result
