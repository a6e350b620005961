"""Multi-token-prediction layers: one decoder layer over [embedding of the next token; final hidden state].

What formats share. Their names, the order of the halves and the norms differ, and come as arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specc.ir.importers.drafters.experts import read_experts, read_latent
from specc.ir.importers.drafters.layers import (
    Parts,
    attention_sizes,
    check_target,
    read_attention,
    read_embedding,
    read_head,
    read_mlp,
)
from specc.ir.importers.drafters.positions import latent_rope, rope
from specc.ir.importers.drafters.spec import (
    Attention,
    DrafterCheckpoint,
    DrafterSpec,
    Fuse,
    Kind,
    LatentAttention,
    Layer,
    Recycle,
)
from specc.ir.weights import WeightStore


@dataclass(frozen=True)
class MtpNames:
    """Where a format keeps the parts of its layer. `layer` is the decoder layer's prefix; "" as a name: none."""

    source: str
    layer: str
    token_norm: str
    feature_norm: str
    fc: str
    norm: str
    embedding: str = ""
    head: str = ""
    hidden_first: bool = False
    """fc reads [hidden state; embedding]."""
    gated: bool = False
    """Queries carry a gate (Qwen3-Next)."""
    speculative_tokens: int = 0


def read_mtp(parts: Parts, names: MtpNames) -> DrafterCheckpoint:
    """One layer, whose output after its norm feeds the head and is fed back for the next depth.

    DeepSeek-V3 trained a single depth, so what is fed back is the engine's choice; the normed state is of the kind that
    the layer was trained to read, and what SGLang, GLM and Qwen take. Raises ModelError (SPECC-E0273 to E0278).
    """
    config, target = parts.config, parts.target
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    check_target(parts, hidden=hidden, vocab=vocab)
    parts.take_norm(f"{names.token_norm}.weight", hidden, "token_norm.weight")
    parts.take_norm(f"{names.feature_norm}.weight", hidden, "feature_norm.weight")
    fc = parts.take(f"{names.fc}.weight", [hidden, 2 * hidden], "fc.weight")
    if names.hidden_first:
        parts.weights["fc.weight"] = fc.derive(
            "swap halves", fc.type, lambda t: torch.cat([t[:, hidden:], t[:, :hidden]], 1)
        )
    latent = config.get("kv_lora_rank") is not None
    for norm in ("input_layernorm", "post_attention_layernorm"):
        parts.take_norm(f"{names.layer}.{norm}.weight", hidden, f"layers.0.{norm}.weight")
    source, name = f"{names.layer}.self_attn", "layers.0.self_attn"
    attention: Attention | LatentAttention
    if latent:
        attention = read_latent(parts, source, name, hidden, hidden)
        described, frequencies = latent_rope(config)
    else:
        attention = read_attention(parts, source, name, hidden, hidden, gated=names.gated)
        described, frequencies = rope(config, attention_sizes(config, hidden)[2])
    parts.weights["rope.inv_freq"] = frequencies
    experts = f"{names.layer}.mlp.gate.weight" in parts.tensors
    mlp = (
        read_experts(parts, f"{names.layer}.mlp", "layers.0.mlp", hidden) if experts
        else read_mlp(parts, f"{names.layer}.mlp", "layers.0.mlp", hidden, config.integer("intermediate_size"))
    )  # fmt: skip
    parts.take_norm(f"{names.norm}.weight", hidden, "norm.weight")
    size = min(vocab, target.rows)
    embedding = read_embedding(parts, names.embedding, hidden, size)
    head = read_head(parts, names.head, hidden, size)
    rows = int(parts.weights["lm_head.weight"].type.shape[0])
    parts.conventions |= {
        "feature": "after the target's final norm", "embedding": str(embedding), "head": str(head),
        "fc reads": "[hidden; embedding], columns swapped" if names.hidden_first else "[embedding; hidden]",
        "recycled": "after the norm",
    }  # fmt: skip
    spec = DrafterSpec(
        Kind.MTP, names.source, hidden, hidden, target.num_layers, rows, rows, (target.num_layers,),
        Fuse(tokens=True, token_norms=True), (Layer(attention, mlp),), described,
        norm_eps=config.number("rms_norm_eps", 1e-6), recycle=Recycle.POST_NORM, embedding=embedding, head=head,
        speculative_tokens=names.speculative_tokens, conventions=parts.conventions,
    )  # fmt: skip
    return DrafterCheckpoint(spec, WeightStore(parts.weights))
