"""Compiles a model of 7 billion random weights: how long that takes, and how much memory beside what it writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from specc.driver import compile_model
from specc.progress import Progress
from specc.request import CompileRequest


@dataclass(frozen=True)
class Sizes:
    """Of a llama; by default those of Llama 2 7B."""

    layers: int = 32
    hidden: int = 4096
    intermediate: int = 11008
    heads: int = 32
    vocabulary: int = 32000


def make(folder: Path, sizes: Sizes) -> None:
    """A Hugging Face folder in bf16, a shard for each layer: 13.5 GB of numbers that look random.

    They are cut out of one normal sample, each matrix from another place on, so none equals another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.hidden, intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, tie_word_embeddings=False,
        dtype="bfloat16",
    )  # fmt: skip
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    wide, head = (sizes.intermediate, sizes.hidden), (sizes.vocabulary, sizes.hidden)
    sample = _Sample(max(wide[0], head[0]) * sizes.hidden)
    square = (sizes.hidden, sizes.hidden)
    index: dict[str, str] = {}
    for layer in range(sizes.layers):
        shapes = {
            **{f"self_attn.{name}_proj": square for name in "qkvo"},
            "mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": wide[::-1],
        }  # fmt: skip
        of_layer = {f"{name}.weight": sample.next(*shape) for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            of_layer[f"{norm}.weight"] = torch.ones(sizes.hidden, dtype=torch.bfloat16)
        _write(
            folder,
            f"layer-{layer}",
            {f"model.layers.{layer}.{n}": t for n, t in of_layer.items()},
            index,
        )
    ends = {"model.embed_tokens.weight": sample.next(*head), "lm_head.weight": sample.next(*head)}
    ends["model.norm.weight"] = torch.ones(sizes.hidden, dtype=torch.bfloat16)
    _write(folder, "ends", ends, index)
    listing = {"metadata": {}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listing), "utf-8")


def compile_large(
    folder: Path, output: Path, quant: str, sizes: Sizes, progress: Progress
) -> dict[str, float]:
    """Make the model where it is not there yet, and compile it for plain decoding and K = 4, without the cache.

    Returns seconds, the most memory that was resident, the bytes of the weights, and memory over weights.
    """
    if not (folder / "model.safetensors.index.json").exists():
        make(folder, sizes)
    request = CompileRequest(
        str(folder), output, method="ngram", num_speculative_tokens=(0, 4), quant=quant, force=True
    )
    report = compile_model(request, progress)
    weights = (output / "weights.safetensors").stat().st_size
    return {
        "seconds": report.seconds, "peak_bytes": report.peak_rss_bytes, "weights_bytes": weights,
        "peak_over_weights": report.peak_rss_bytes / weights,
    }  # fmt: skip


class _Sample:
    def __init__(self, count: int) -> None:
        self.values = (
            torch.randn(count, generator=torch.Generator().manual_seed(0)) * 0.02
        ).bfloat16()
        self.begin = 0

    def next(self, rows: int, columns: int) -> torch.Tensor:
        self.begin = (self.begin + 7919) % len(self.values)
        return torch.roll(self.values, -self.begin)[: rows * columns].reshape(rows, columns).clone()


def _write(
    folder: Path, name: str, tensors: dict[str, torch.Tensor], index: dict[str, str]
) -> None:
    save_file(tensors, folder / f"{name}.safetensors", metadata={"format": "pt"})
    index |= dict.fromkeys(tensors, f"{name}.safetensors")
