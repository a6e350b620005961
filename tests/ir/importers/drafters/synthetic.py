"""Drafter checkpoints with random weights in the true layout of each public format, for tiny targets.

Names, shapes and keys are those of the formats themselves: SafeAILab/EAGLE, sgl-project/SpecForge,
NVIDIA/Model-Optimizer, deepseek-ai/DeepSpec, z-lab/dflash, vllm-project/speculators, FasterDecoding/Medusa. Every
function writes `config.json` and `model.safetensors` to a folder and returns it; keyword arguments become or replace
keys of the configuration.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from tests.ir.importers.tiny_models import tiny

Tensors = dict[str, torch.Tensor]

LATENT = {
    "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
    "num_key_value_heads": 4,
}  # fmt: skip
"""Of DeepSeek's attention as `Maker.latent` makes it."""

LAYERS = 8
"""Of a target: the fewest with which EAGLE-3's three default taps differ."""


def target(kind: str = "llama", **values: Any) -> PreTrainedModel:
    """A tiny model whose layers can be tapped, with an embedding that shows in every hidden state."""
    model = tiny(kind, **{"num_hidden_layers": LAYERS, **values})
    model.get_input_embeddings().weight.data *= 8
    return model


class Maker:
    """Random tensors of the sizes of one target, from one seed."""

    def __init__(self, model: PreTrainedModel, seed: int = 1) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        self.hidden = int(self.config.hidden_size)
        self.vocab = int(self.config.vocab_size)
        self.layers = int(self.config.num_hidden_layers)
        self.heads, self.kv_heads, self.dim, self.ffn = 4, 2, self.hidden // 4, 48
        self.random = torch.Generator().manual_seed(seed)

    def make(self, *shape: int, scale: float = 0.3) -> torch.Tensor:
        return torch.randn(*shape, generator=self.random) * scale

    def norm(self, size: int) -> torch.Tensor:
        return 1 + self.make(size, scale=0.1)

    def attention(self, name: str, width: int, *, qk_norm: bool = False) -> Tensors:
        made = {
            f"{name}.q_proj.weight": self.make(self.heads * self.dim, width),
            f"{name}.k_proj.weight": self.make(self.kv_heads * self.dim, width),
            f"{name}.v_proj.weight": self.make(self.kv_heads * self.dim, width),
            f"{name}.o_proj.weight": self.make(self.hidden, self.heads * self.dim),
        }
        if qk_norm:
            made |= {
                f"{name}.q_norm.weight": self.norm(self.dim),
                f"{name}.k_norm.weight": self.norm(self.dim),
            }
        return made

    def latent(self, name: str, width: int, q_rank: int) -> Tensors:
        """DeepSeek's attention of 4 heads (8 + 4 channels, values of 6); `q_rank` 0: a plain query."""
        query = {
            f"{name}.q_a_proj.weight": self.make(q_rank, width), f"{name}.q_a_layernorm.weight": self.norm(q_rank),
            f"{name}.q_b_proj.weight": self.make(4 * 12, q_rank),
        } if q_rank else {f"{name}.q_proj.weight": self.make(4 * 12, width)}  # fmt: skip
        return {
            **query, f"{name}.kv_a_proj_with_mqa.weight": self.make(14, width),
            f"{name}.kv_a_layernorm.weight": self.norm(10), f"{name}.kv_b_proj.weight": self.make(4 * 14, 10),
            f"{name}.o_proj.weight": self.make(self.hidden, 24),
        }  # fmt: skip

    def mlp(self, name: str, size: int = 0) -> Tensors:
        size = size or self.ffn
        return {
            f"{name}.gate_proj.weight": self.make(size, self.hidden),
            f"{name}.up_proj.weight": self.make(size, self.hidden),
            f"{name}.down_proj.weight": self.make(self.hidden, size),
        }

    def layer(
        self, name: str, *, paired: bool = False, input_norm: bool = True, qk_norm: bool = False
    ) -> Tensors:
        """One decoder layer; `paired` reads token and feature side by side."""
        made = self.attention(
            f"{name}.self_attn", self.hidden * (2 if paired else 1), qk_norm=qk_norm
        )
        made |= self.mlp(f"{name}.mlp")
        made[f"{name}.post_attention_layernorm.weight"] = self.norm(self.hidden)
        if input_norm:
            made[f"{name}.input_layernorm.weight"] = self.norm(self.hidden)
        if paired:
            made[f"{name}.hidden_norm.weight"] = self.norm(self.hidden)
        return made

    def sizes(self, **values: Any) -> dict[str, Any]:
        """What every configuration of draft layers holds."""
        return {
            "hidden_size": self.hidden, "intermediate_size": self.ffn, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
            "hidden_act": "silu", "vocab_size": self.vocab, "max_position_embeddings": 64,
            "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float16",
            "transformers_version": "4.28.1", "use_cache": True, "initializer_range": 0.02, **values,
        }  # fmt: skip

    def embedding(self) -> torch.Tensor:
        """The target's own, as a copy."""
        return self.model.get_input_embeddings().weight.detach().clone()

    def head(self) -> torch.Tensor:
        """The target's own, as a copy."""
        return self.model.get_output_embeddings().weight.detach().clone()

    def vocabulary(self, size: int) -> Tensors:
        """`d2t` as offsets and `t2d`, for `size` ids that are scattered over the vocabulary."""
        kept = torch.randperm(self.vocab, generator=self.random)[:size].sort().values
        mask = torch.zeros(self.vocab, dtype=torch.bool)
        mask[kept] = True
        return {"d2t": kept - torch.arange(size), "t2d": mask}


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    """The two files of a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    return folder


def eagle1(
    folder: Path, model: PreTrainedModel, *, bias: bool = False, copy: bool = True, **keys: Any
) -> Path:
    """SafeAILab EAGLE-1/2, with the copy of the target's embedding that its files have."""
    m = Maker(model)
    tensors = {"fc.weight": m.make(m.hidden, 2 * m.hidden), **m.layer("layers.0", input_norm=False)}
    if bias:
        tensors["fc.bias"] = m.make(m.hidden)
    if copy:
        tensors["embed_tokens.weight"] = m.embedding()
    config = m.sizes(architectures=["LlamaForCausalLM"], model_type="llama", pretraining_tp=1)
    return write(folder, {**config, **({} if bias else {"bias": False}), **keys}, tensors)


def eagle3(folder: Path, model: PreTrainedModel, *, drafts: int = 40, **keys: Any) -> Path:
    """SafeAILab EAGLE-3: no rope_theta, no taps, no embedding; d2t and t2d always."""
    m = Maker(model)
    tensors = {
        **m.layer("midlayer", paired=True), "fc.weight": m.make(m.hidden, 3 * m.hidden),
        "norm.weight": m.norm(m.hidden), "lm_head.weight": m.make(drafts, m.hidden), **m.vocabulary(drafts),
    }  # fmt: skip
    config = m.sizes(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        pretraining_tp=1,
        draft_vocab_size=drafts,
    )
    return write(folder, {**config, **keys}, tensors)


def specforge_eagle3(
    folder: Path, model: PreTrainedModel, *, drafts: int = 40, taps: list[int] | None = None,
    modelopt: bool = False, **keys: Any,
) -> Path:  # fmt: skip
    """SpecForge's EAGLE-3 and 3.1 (`midlayer`), or ModelOpt's (`layers.0`, no t2d)."""
    m = Maker(model)
    count = len(taps or (0, 0, 0))
    first = "layers.0" if modelopt else "midlayer"
    tensors = {
        **m.layer(first, paired=True), "fc.weight": m.make(m.hidden, count * m.hidden),
        "norm.weight": m.norm(m.hidden), "lm_head.weight": m.make(drafts, m.hidden), **m.vocabulary(drafts),
    }  # fmt: skip
    if keys.get("fc_norm"):
        tensors |= {f"fc_norm.{i}.weight": m.norm(m.hidden) for i in range(count)}
    section: dict[str, Any] = {"use_aux_hidden_state": True}
    if taps:
        section["eagle_aux_hidden_state_layer_ids"] = taps
    if modelopt:
        del tensors["t2d"]
        section |= {
            "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False,
        }  # fmt: skip
    config = m.sizes(
        architectures=["LlamaForCausalLMEagle3"], model_type="llama", draft_vocab_size=drafts, rope_theta=1e6,
        rope_scaling=None, use_sliding_window=False, sliding_window=None, attention_bias=False,
    )  # fmt: skip
    if taps or modelopt:
        config["eagle_config"] = section
    return write(folder, {**config, **keys}, tensors)


def deepseek_eagle3(
    folder: Path, model: PreTrainedModel, *, q_rank: int = 12, layers: int = 1, **keys: Any
) -> Path:
    """ModelOpt's EAGLE-3 for DeepSeek's targets: latent attention, a plain MLP, and keys that speak of experts."""
    m = Maker(model)
    tensors = {
        "fc.weight": m.make(m.hidden, 3 * m.hidden), "norm.weight": m.norm(m.hidden),
        "lm_head.weight": m.make(40, m.hidden), **m.vocabulary(40),
    }  # fmt: skip
    for i in range(layers):
        layer, attn = m.layer(f"layers.{i}", paired=i == 0), f"layers.{i}.self_attn"
        tensors |= {n: t for n, t in layer.items() if not n.startswith(attn)}
        tensors |= m.latent(attn, m.hidden * (2 if i == 0 else 1), q_rank)
    del tensors["t2d"]
    config = m.sizes(
        architectures=["Eagle3DeepseekV2ForCausalLM"], model_type="deepseek_v3", num_hidden_layers=layers,
        draft_vocab_size=40, rope_theta=1e6, attention_bias=False, **LATENT | {"q_lora_rank": q_rank or None},
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        n_shared_experts=1, first_k_dense_replace=1, scoring_func="sigmoid",
        eagle_config={"use_aux_hidden_state": True, "use_last_layernorm": True},
    )  # fmt: skip
    return write(folder, {**config, **keys}, tensors)


def specforge_peagle(
    folder: Path, model: PreTrainedModel, *, drafts: int = 40, layers: int = 2, **keys: Any
) -> Path:
    """SpecForge's P-EAGLE: an own embedding, a first layer on pairs, `mask_hidden`."""
    m = Maker(model)
    tensors = {**_parallel(m, drafts, layers), "fc.weight": m.make(m.hidden, 3 * m.hidden)}
    config = m.sizes(
        architectures=["PEagleDraftModel"], model_type="llama", draft_vocab_size=drafts, rope_theta=1e6,
        num_hidden_layers=layers, mask_token_id=m.vocab - 1, num_depths=6, norm_before_residual=False,
    )  # fmt: skip
    return write(folder, {**config, **keys}, tensors)


def _parallel(m: Maker, drafts: int, layers: int) -> Tensors:
    made = m.layer("layers.0", paired=True)
    for i in range(1, layers):
        made |= m.layer(f"layers.{i}")
    return {
        **made, "norm.weight": m.norm(m.hidden), "lm_head.weight": m.make(drafts, m.hidden),
        "embed_tokens.weight": m.make(m.vocab, m.hidden, scale=0.5),
        "mask_hidden": m.make(1, 1, 3 * m.hidden), **m.vocabulary(drafts),
    }  # fmt: skip


def deepspec_eagle3(folder: Path, model: PreTrainedModel, taps: list[int], **keys: Any) -> Path:
    """DeepSpec's EAGLE-3: any taps, q and k norms, the whole vocabulary, frozen copies of embedding and head."""
    m = Maker(model)
    tensors = {
        **m.layer("layers.0", paired=True, qk_norm=True), "fc.weight": m.make(m.hidden, len(taps) * m.hidden),
        "norm.weight": m.norm(m.hidden), "lm_head.weight": m.head(), "embed_tokens.weight": m.embedding(),
    }  # fmt: skip
    config = m.sizes(
        architectures=["Qwen3Eagle3Model"], model_type="qwen3", head_dim=m.dim, attention_bias=False,
        num_target_layers=m.layers, layer_types=["full_attention"], target_layer_ids=taps, ttt_length=7,
        step_loss_decay=0.8, draft_num_hidden_layers=1, target_model_name_or_path="Qwen/Qwen3-8B", rope_theta=1e6,
    )  # fmt: skip
    return write(folder, {**config, **keys}, tensors)


def speculators_config(
    kind: str, layers: dict[str, Any], tokens: int, **own: Any
) -> dict[str, Any]:
    classes = {"eagle3": "Eagle3Speculator", "peagle": "PEagleSpeculator", "dflash": "DFlashSpeculator",
               "dspark": "DSparkSpeculator", "mtp": "MTPDraftModel"}  # fmt: skip
    return {
        "architectures": [classes[kind]], "speculators_model_type": kind, "speculators_version": "0.5.0",
        "speculators_config": {
            "algorithm": kind, "default_proposal_method": "greedy",
            "proposal_methods": [{
                "proposal_type": "greedy", "speculative_tokens": tokens, "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }],
            "verifier": {"name_or_path": "org/target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": layers, **own,
    }  # fmt: skip


def speculators_eagle3(
    folder: Path,
    model: PreTrainedModel,
    *,
    drafts: int = 40,
    taps: list[int] | None = None,
    **keys: Any,
) -> Path:
    """speculators' EAGLE-3: `layers.0`, an embedding of its own, taps as hidden states."""
    m = Maker(model)
    count = len(taps or (0, 0, 0))
    tensors = {
        **m.layer("layers.0", paired=True), "fc.weight": m.make(m.hidden, count * m.hidden),
        "norm.weight": m.norm(m.hidden), "lm_head.weight": m.make(drafts, m.hidden),
        "embed_tokens.weight": m.embedding(), **m.vocabulary(drafts),
    }  # fmt: skip
    if keys.get("fc_norm"):
        tensors |= {f"fc_norm.{i}.weight": m.norm(m.hidden) for i in range(count)}
    if keys.get("norm_before_fc"):
        tensors["input_norm.weight"] = m.norm(count * m.hidden)
    layers = m.sizes(model_type="llama", rope_theta=5e5, head_dim=m.dim)
    own = {
        "draft_vocab_size": drafts, "target_hidden_size": None, "norm_before_residual": False,
        "norm_before_fc": False, "fc_norm": False, "norm_output": False, "embed_requires_grad": False,
        "eagle_aux_hidden_state_layer_ids": taps,
    }  # fmt: skip
    return write(folder, speculators_config("eagle3", layers, 3, **{**own, **keys}), tensors)


def speculators_peagle(
    folder: Path, model: PreTrainedModel, *, drafts: int = 40, layers: int = 2, **keys: Any
) -> Path:
    """speculators' P-EAGLE."""
    m = Maker(model)
    tensors = {**_parallel(m, drafts, layers), "fc.weight": m.make(m.hidden, 3 * m.hidden)}
    inner = m.sizes(model_type="llama", rope_theta=5e5, head_dim=m.dim, num_hidden_layers=layers)
    own = {
        "draft_vocab_size": drafts, "mask_token_id": m.vocab - 1, "embed_requires_grad": True,
        "norm_before_residual": True,
    }  # fmt: skip
    return write(folder, speculators_config("peagle", inner, 6, **{**own, **keys}), tensors)


def medusa(
    folder: Path, model: PreTrainedModel, *, heads: int = 3, blocks: int = 1, shared: bool = False,
    prefix: str = "", **keys: Any,
) -> Path:  # fmt: skip
    """FasterDecoding's Medusa, whose config.json says 2 heads whatever there is."""
    m = Maker(model)
    tensors = {}
    for i in range(heads):
        for b in range(blocks):
            tensors[f"{prefix}{i}.{b}.linear.weight"] = m.make(m.hidden, m.hidden)
            tensors[f"{prefix}{i}.{b}.linear.bias"] = m.make(m.hidden)
        if not shared:
            tensors[f"{prefix}{i}.{blocks}.weight"] = m.make(m.vocab, m.hidden)
    config = {
        "medusa_num_heads": 2, "medusa_num_layers": blocks, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
        "transformers_version": "4.31.0",
    }  # fmt: skip
    return write(folder, {**config, **keys}, tensors)


def _block(m: Maker, taps: int, layers: int) -> Tensors:
    made: Tensors = {}
    for i in range(layers):
        made |= m.layer(f"layers.{i}", qk_norm=True)
    return {
        **made, "fc.weight": m.make(m.hidden, taps * m.hidden), "hidden_norm.weight": m.norm(m.hidden),
        "norm.weight": m.norm(m.hidden),
    }  # fmt: skip


def _heads(
    m: Maker, markov: str, drafts: int, *, rank: int = 6, confidence: bool = True, prefix: str = ""
) -> Tensors:
    made = {
        "markov_head.markov_w1.weight": m.make(m.vocab, rank, scale=1.0),
        "markov_head.markov_w2.weight": m.make(drafts, rank, scale=1.0),
    }
    if markov == "gated":
        made |= {
            "markov_head.gate_proj.weight": m.make(rank, m.hidden + rank), "markov_head.gate_proj.bias": m.make(rank),
        }  # fmt: skip
    if markov == "rnn":
        made |= {
            "markov_head.joint_proj.weight": m.make(3 * rank, 2 * rank + m.hidden),
            "markov_head.joint_proj.bias": m.make(3 * rank),
        }
    if confidence:
        made |= {
            "confidence_head.proj.weight": m.make(1, m.hidden + rank), "confidence_head.proj.bias": m.make(1),
        }  # fmt: skip
    return {prefix + n: t for n, t in made.items()}


def zlab_dflash(
    folder: Path, model: PreTrainedModel, *, taps: list[int] | None = None, layers: int = 2,
    section: dict[str, Any] | None = None, **keys: Any,
) -> Path:  # fmt: skip
    """z-lab's DFlash: neither embedding nor head; block_size on top, the rest in dflash_config."""
    m = Maker(model)
    inner: dict[str, Any] = {"mask_token_id": m.vocab - 1, **(section or {})}
    if taps:
        inner["target_layer_ids"] = taps
    config = m.sizes(
        architectures=["DFlashDraftModel"], model_type="qwen3", head_dim=m.dim, num_hidden_layers=layers,
        num_target_layers=m.layers, layer_types=["full_attention"] * layers, block_size=5, rope_theta=1e6,
        rope_scaling=None, attention_bias=False, sliding_window=None, use_sliding_window=False,
        auto_map={"AutoModel": "dflash.DFlashDraftModel"}, dflash_config=inner,
    )  # fmt: skip
    return write(folder, {**config, **keys}, _block(m, len(taps or range(layers)), layers))


def specforge_dspark(
    folder: Path, model: PreTrainedModel, taps: list[int], *, markov: str = "vanilla", prefix: str = "",
    section: dict[str, Any] | None = None, **keys: Any,
) -> Path:  # fmt: skip
    """SpecForge's DSpark: a DFlash without embedding and head, with Markov and confidence heads."""
    m = Maker(model)
    inner = {
        "mask_token_id": m.vocab - 1, "target_layer_ids": taps, "projector_type": "dspark", "attention_mode": "gqa",
        "markov_rank": 6, "markov_head_type": markov, "enable_confidence_head": True,
        "confidence_head_alpha": 1.0, "confidence_head_with_markov": True, **(section or {}),
    }  # fmt: skip
    config = m.sizes(
        architectures=["DSparkDraftModel"], model_type="qwen3", head_dim=m.dim, num_hidden_layers=2,
        num_target_layers=m.layers, layer_types=["full_attention"] * 2, block_size=5, rope_theta=1e6,
        dflash_config=inner,
    )  # fmt: skip
    return write(
        folder,
        {**config, **keys},
        {**_block(m, len(taps), 2), **_heads(m, markov, m.vocab, prefix=prefix)},
    )


def deepspec_dspark(
    folder: Path, model: PreTrainedModel, taps: list[int], *, markov: str = "vanilla", **keys: Any
) -> Path:
    """DeepSpec's DSpark, or with markov "" its DFlash: own copies of embedding and head, keys at the top."""
    m = Maker(model)
    tensors = {
        **_block(m, len(taps), 2),
        "embed_tokens.weight": m.embedding(),
        "lm_head.weight": m.head(),
    }
    config = m.sizes(
        architectures=["Qwen3DSparkModel"], model_type="qwen3", head_dim=m.dim, num_hidden_layers=2,
        num_target_layers=m.layers, layer_types=["full_attention"] * 2, block_size=5, rope_theta=1e6,
        attention_bias=False, target_layer_ids=taps, mask_token_id=m.vocab - 1, num_anchors=512,
        enable_confidence_head=bool(markov), markov_rank=6 if markov else 0,
    )  # fmt: skip
    if markov:
        config |= {"markov_head_type": markov, "confidence_head_with_markov": True}
        tensors |= _heads(m, markov, m.vocab)
    return write(folder, {**config, **keys}, tensors)


def speculators_block(
    folder: Path, model: PreTrainedModel, taps: list[int], kind: str = "dflash", *, drafts: int = 40,
    markov: str = "vanilla", tokens: int = 4, window: int = 0, **keys: Any,
) -> Path:  # fmt: skip
    """speculators' DFlash or DSpark: an own head over a reduced vocabulary; W1 by target ids, W2 by draft ids."""
    m = Maker(model)
    tensors = {
        **_block(m, len(taps), 2), "embed_tokens.weight": m.embedding(), "lm_head.weight": m.make(drafts, m.hidden),
        **m.vocabulary(drafts),
    }  # fmt: skip
    layers = m.sizes(model_type="qwen3", head_dim=m.dim, num_hidden_layers=2, rope_theta=1e6)
    if window:
        layers |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": window,
                   "use_sliding_window": True}  # fmt: skip
    own: dict[str, Any] = {
        "draft_vocab_size": drafts, "block_size": 5, "target_hidden_size": None,
        "aux_hidden_state_layer_ids": taps, "mask_token_id": m.vocab - 1, "sliding_window_non_causal": False,
    }  # fmt: skip
    if kind == "dspark":
        own |= {"markov_rank": 6, "markov_head_type": markov, "enable_confidence_head": True,
                "confidence_head_with_markov": True}  # fmt: skip
        tensors |= _heads(m, markov, drafts)
    return write(folder, speculators_config(kind, layers, tokens, **{**own, **keys}), tensors)
