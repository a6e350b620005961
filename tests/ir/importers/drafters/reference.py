"""Drafters in plain eager PyTorch, written from the papers and the formats: what the product's drafts must equal.

`draft(checkpoint, target_model, committed, k)` reads the raw files of a checkpoint and transformers' own model of the
target, and computes the next `k` greedy drafts from scratch over the whole committed text: no state, no cache, no part
of specc. `committed` includes the last token, whose own hidden state does not exist yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu, "gelu": functional.gelu, "relu": functional.relu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}  # fmt: skip


@dataclass
class Raw:
    """A checkpoint as it lies on disk, in float32; `config` of its draft layers, `outer` as in the file."""

    outer: dict[str, Any]
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def read(cls, folder: Path) -> Raw:
        outer = json.loads((folder / "config.json").read_text())
        tensors: dict[str, Tensor] = {}
        for path in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(path)
        tensors = {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}
        inner = outer.get("transformer_layer_config") or outer.get("text_config") or {}
        return cls(outer, {**outer, **inner}, tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def rms(self, x: Tensor, name: str) -> Tensor:
        """RMSNorm with the weight `name`."""
        return rms(x, self[name], float(self.config.get("rms_norm_eps", 1e-6)))

    def linear(self, x: Tensor, name: str) -> Tensor:
        """A linear layer, with its bias if there is one."""
        return functional.linear(x, self[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def mlp(self, x: Tensor, name: str) -> Tensor:
        gate = ACTIVATIONS[self.config.get("hidden_act", "silu")](
            self.linear(x, f"{name}.gate_proj")
        )
        return self.linear(gate * self.linear(x, f"{name}.up_proj"), f"{name}.down_proj")

    @property
    def head_dim(self) -> int:
        return int(
            self.config.get("head_dim")
            or self.config["hidden_size"] // self.config["num_attention_heads"]
        )

    def heads(self, x: Tensor, name: str, norm: str = "") -> Tensor:
        """A projection as [heads, rows, head_dim], each head normed if there is a norm of that name."""
        split = self.linear(x, name).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)
        return self.rms(split, f"{norm}.weight") if f"{norm}.weight" in self.tensors else split

    def target_ids(self, drafts: Tensor) -> Tensor:
        """Draft ids as ids of the target."""
        if "t2d" in self.tensors and int(self["t2d"].sum()) == self.config.get("draft_vocab_size"):
            return self["t2d"].nonzero().reshape(-1)[drafts]
        return drafts + self["d2t"][drafts] if "d2t" in self.tensors else drafts


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def rotary(config: dict[str, Any], head_dim: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines f32[rows, rotated]. Everything but plain rotary is left to transformers' own module."""
    parameters = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = parameters.get("rope_theta", config.get("rope_theta") or 10000.0)
    if parameters.get("rope_type", parameters.get("type", "default")) == "default":
        dim = int(
            head_dim
            * parameters.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0)
        )
        angles = positions[:, None].float() / theta ** (torch.arange(0, dim, 2).float() / dim)
        both = torch.cat([angles, angles], -1)
        return both.cos(), both.sin()
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding

    described = LlamaConfig(
        head_dim=head_dim, max_position_embeddings=config["max_position_embeddings"],
        rope_parameters={"rope_theta": theta, **parameters},
    )  # fmt: skip
    cos, sin = LlamaRotaryEmbedding(described)(torch.zeros(1), positions[None])
    return cos[0], sin[0]


def turn(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of [heads, rows, dim]: the first channels turn, the two halves paired."""
    cos, sin = tables
    size = cos.shape[-1]
    turned, kept = x[..., :size], x[..., size:]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, kept], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float) -> Tensor:
    """[rows, heads * dim] of q [heads, rows, dim], k and v [kv heads, keys, dim], allowed bool[rows, keys]."""
    k, v = (t.repeat_interleave(q.shape[0] // t.shape[0], 0) for t in (k, v))
    scores = (q @ k.transpose(1, 2) * scale).masked_fill(~allowed, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


def causal(rows: int, window: int = 0) -> Tensor:
    at = torch.arange(rows)
    allowed = at[None] <= at[:, None]
    return allowed & (at[None] > at[:, None] - window) if window else allowed


def hidden_states(model: PreTrainedModel, tokens: list[int]) -> list[Tensor]:
    """[T, H] each: 0 the embedding's output, j the output of layer j - 1, the last after the final norm."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    return [h[0].float() for h in out.hidden_states]


def embedding_of(model: PreTrainedModel) -> Tensor:
    return model.get_input_embeddings().weight.detach().float()


def head_of(model: PreTrainedModel) -> Tensor:
    return model.get_output_embeddings().weight.detach().float()


def draft(
    checkpoint: Path, target_model: PreTrainedModel, committed: list[int], k: int
) -> list[int]:
    """The next `k` drafts (fewer where a drafter cannot give more; none while no hidden state exists)."""
    from tests.ir.importers.drafters import reference_block, reference_eagle, reference_mtp

    raw = Raw.read(checkpoint)
    if len(committed) < 2:
        return []
    names = set(raw.tensors)
    with torch.no_grad():
        if any(n.endswith("0.0.linear.weight") for n in names):
            return reference_eagle.medusa(raw, target_model, committed, k)
        if reference_mtp.has_layers(raw):
            return reference_mtp.draft(raw, target_model, committed, k)
        if "mask_hidden" in names:
            return reference_eagle.peagle(raw, target_model, committed, k)
        if "hidden_norm.weight" in names:
            return reference_block.draft(raw, target_model, committed, k)[0][:k]
        if "norm.weight" in names:
            return reference_eagle.eagle3(raw, target_model, committed, k)
        return reference_eagle.eagle1(raw, target_model, committed, k)
