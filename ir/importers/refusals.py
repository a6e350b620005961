"""What specc does not compile, told from the configuration alone, before any weight is read."""

from __future__ import annotations

from typing import Any

from specc.errors import ModelError

_STATE = "it keeps a recurrent state, which cannot go back over rejected tokens"
_ALIBI = "it biases attention by distance (ALiBi)"
_OWN = "its code builds its own attention instead of asking transformers' attention interface"

BY_TYPE = {
    "falcon": _OWN, "bloom": _ALIBI, "mpt": _ALIBI, "gpt_neo": _OWN, "ctrl": _OWN, "xglm": _OWN,
    "xlnet": _OWN, "reformer": _OWN, "rwkv": _STATE, "mamba": _STATE,
    "mamba2": _STATE, "falcon_mamba": _STATE, "falcon_h1": _STATE, "jamba": _STATE,
    "bamba": _STATE, "zamba": _STATE, "zamba2": _STATE, "recurrent_gemma": _STATE,
    "xlstm": _STATE, "lfm2": _STATE, "lfm2_moe": _STATE, "nemotron_h": _STATE,
    "granitemoehybrid": _STATE,
}  # fmt: skip
"""Model types with a known reason; the rest is judged by `layer_types` and by tracing."""

_LAYERS = {
    "full_attention": "", "sliding_attention": "", "sparse": "", "dense": "",
    "linear_attention": _STATE, "conv": _STATE, "hybrid": _STATE, "hybrid_sliding": _STATE,
    "chunked_attention": "it attends within chunks",
}  # fmt: skip


_HEADS = ("eagle", "medusa", "dflash", "dspark", "mtp", "speculator", "drafter")
"""In the name of an architecture: a draft head for another model, not a model of its own."""


def refuse_config(raw: dict[str, Any], where: str) -> None:
    """Raise ModelError for a config.json (as read) of a kind that is not supported.

    Codes: E0203 architecture, E0204 needs code of its own, E0206 quantised checkpoint.
    """
    text = raw.get("text_config") if isinstance(raw.get("text_config"), dict) else {}
    kind = str(raw.get("model_type", ""))
    if raw.get("auto_map") and not _known(kind):
        raise ModelError(
            "SPECC-E0204",
            f"{kind or 'the model'} needs Python code of its own (auto_map), and specc runs none",
            where=where,
            expected="an architecture that ships with transformers",
            cure="convert the model to such an architecture, or export it yourself to a .pt2",
        )
    names = [str(raw.get("speculators_model_type", "")), *map(str, raw.get("architectures") or ())]
    head = next((n for n in names if any(h in n.lower() for h in _HEADS)), None)
    if head is not None:
        raise ModelError(
            "SPECC-E0203",
            f"{head} is a draft head for another model, not a model",
            where=where,
            expected="a whole language model",
            cure="name the model that it drafts for, and this with --drafter",
        )
    if not _known(kind):
        raise _refusal(
            kind or "no model_type", "transformers does not know this architecture", where
        )
    quantised = raw.get("quantization_config") or (text or {}).get("quantization_config")
    if quantised:
        method = (
            quantised.get("quant_method", "unknown") if isinstance(quantised, dict) else quantised
        )
        raise ModelError(
            "SPECC-E0206",
            f"the checkpoint is quantised ({method}); specc does not read this form",
            where=f"{where}: quantization_config",
            expected="float weights in safetensors, or a GGUF",
            cure="take the unquantised checkpoint and add --quant int8 or int4, or take a GGUF of the model",
        )
    for config in (raw, text or {}):
        refuse_architecture(config, where)


def refuse_architecture(config: dict[str, Any], where: str) -> None:
    """The part of `refuse_config` that also holds for configurations made in memory."""
    kind = str(config.get("model_type", ""))
    if reason := BY_TYPE.get(kind):
        raise _refusal(kind, reason, where)
    if config.get("is_encoder_decoder"):
        raise _refusal(kind, "it is an encoder and a decoder, not a decoder alone", where)
    if config.get("alibi"):
        raise _refusal(kind, _ALIBI, where)
    for index, layer in enumerate(config.get("layer_types") or ()):
        reason = _LAYERS.get(layer, f"its kind of layer ({layer}) is unknown to specc")
        if reason:
            raise _refusal(kind, reason, f"{where}: layer {index} ({layer})")


def _known(kind: str) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return kind in CONFIG_MAPPING


def _refusal(kind: str, reason: str, where: str) -> ModelError:
    return ModelError(
        "SPECC-E0203",
        f"{kind} is not supported: {reason}",
        where=where,
        expected="a decoder-only model whose layers attend causally",
        cure="choose another architecture; `specc doctor` lists those that work",
    )
