"""The decoder layer that drafters are made of, as torch trains it: RMS norms, grouped-query attention, gated MLP.

Names and shapes are those of checkpoints (ir/importers/drafters/spec.py). Matrices are multiplied in `dtype`, what is
added up stays f32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """Of a drafter and its layers. `theta` is the base of its rotary positions."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    theta: float = 10000.0
    norm_eps: float = 1e-6


class Norm(nn.Module):
    """x / rms(x) * weight, in f32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class Linear(nn.Module):
    """x @ weight.T in the type that `dtype` names, by default that of x."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * gain * inputs**-0.5)
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.to(self.dtype), self.weight.to(self.dtype))


class Attention(nn.Module):
    """Projections of one layer; who sees whom is the drafter's business."""

    def __init__(self, sizes: Sizes, inputs: int, dtype: torch.dtype, *, qk_norm: bool) -> None:
        super().__init__()
        self.sizes = s = sizes
        self.q_proj = Linear(inputs, s.heads * s.head_dim, dtype)
        self.k_proj = Linear(inputs, s.kv_heads * s.head_dim, dtype)
        self.v_proj = Linear(inputs, s.kv_heads * s.head_dim, dtype)
        self.o_proj = Linear(s.heads * s.head_dim, s.hidden, dtype, gain=0.3)
        self.q_norm = Norm(s.head_dim, s.norm_eps) if qk_norm else None
        self.k_norm = Norm(s.head_dim, s.norm_eps) if qk_norm else None

    def queries(self, x: Tensor, turn: Turn) -> Tensor:
        """[B, T, inputs] -> [B, kv_heads, heads / kv_heads, T, D]."""
        q = self._heads(self.q_proj(x))
        q = turn(q if self.q_norm is None else self.q_norm(q).to(q.dtype))
        return split(q, 1, self.sizes.kv_heads)

    def keys_and_values(self, x: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """[B, T, inputs] -> two of [B, kv_heads, 1, T, D]."""
        k, v = self._heads(self.k_proj(x)), self._heads(self.v_proj(x))
        k = turn(k if self.k_norm is None else self.k_norm(k).to(k.dtype))
        return k[:, :, None], v[:, :, None]

    def output(self, attended: Tensor) -> Tensor:
        """[B, kv_heads, groups, T, D] -> [B, T, H]."""
        out: Tensor = self.o_proj(attended.flatten(1, 2).transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return split(x, 2, x.shape[2] // self.sizes.head_dim).transpose(1, 2)


class Turn:
    """Turns heads [B, heads, T, D] by their rotary positions [B, T]."""

    def __init__(self, sizes: Sizes, positions: Tensor, dtype: torch.dtype) -> None:
        at = torch.arange(0, sizes.head_dim, 2, device=positions.device).float() / sizes.head_dim
        angles = positions[:, None, :, None].float() * sizes.theta**-at
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return torch.cat(
            [low * self.cos - high * self.sin, high * self.cos + low * self.sin], -1
        )  # fmt: skip


class Mlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_proj = Linear(sizes.hidden, sizes.intermediate, dtype)
        self.up_proj = Linear(sizes.hidden, sizes.intermediate, dtype)
        self.down_proj = Linear(sizes.intermediate, sizes.hidden, dtype, gain=0.3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One layer's parameters. `paired`: it reads [input_layernorm(embedding); hidden_norm(feature)]."""

    def __init__(
        self, sizes: Sizes, dtype: torch.dtype, *, paired: bool = False, qk_norm: bool = False
    ) -> None:
        super().__init__()
        eps, hidden = sizes.norm_eps, sizes.hidden
        self.input_layernorm = Norm(hidden, eps)
        self.hidden_norm = Norm(hidden, eps) if paired else None
        self.post_attention_layernorm = Norm(hidden, eps)
        self.self_attn = Attention(sizes, hidden * (1 + paired), dtype, qk_norm=qk_norm)
        self.mlp = Mlp(sizes, dtype)

    def finish(self, attended: Tensor, residual: Tensor) -> Tensor:
        """What the layer gives, from its attention [B, kv_heads, groups, T, D] and residual [B, T, H]."""
        x = residual + self.self_attn.output(attended)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


def split(x: Tensor, dim: int, parts: int) -> Tensor:
    """Dimension `dim` as `parts` times what is left of it."""
    return x.reshape(*x.shape[:dim], parts, -1, *x.shape[dim + 1 :])


def multiply_in(module: nn.Module, dtype: torch.dtype) -> None:
    """Let a drafter multiply its matrices in another type from now on."""
    for part in module.modules():
        if isinstance(getattr(part, "dtype", None), torch.dtype):
            part.dtype = dtype  # type: ignore[assignment]
