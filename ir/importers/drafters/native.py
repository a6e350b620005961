"""MTP layers that live inside a target's own checkpoint, beside the layers that transformers loads.

DeepSeek-V3 and GLM-4.x count on: the layer after the last is `model.layers.{L}`, with `eh_proj`. Qwen3-Next and
Qwen3.5 keep theirs under `mtp.`, MiMo under `model.mtp_layers.0`. transformers drops all of them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from specc.errors import ModelError
from specc.ir.importers.drafters.files import Config, hash_files, open_tensors, read_config
from specc.ir.importers.drafters.layers import Parts
from specc.ir.importers.drafters.mtp import MtpNames, read_mtp
from specc.ir.importers.drafters.spec import DrafterCheckpoint
from specc.ir.importers.drafters.target import Target
from specc.ir.importers.folder import MTP_COUNTS, mtp_prefixes

UNIT_OFFSET = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe")
"""Model types whose norms multiply by 1 + weight, and whose queries carry a gate."""

_MIMO = MtpNames(
    "MiMo MTP", "model.mtp_layers.0", "model.mtp_layers.0.token_layernorm", "model.mtp_layers.0.hidden_layernorm",
    "model.mtp_layers.0.input_proj", "model.mtp_layers.0.final_layernorm", hidden_first=True,
)  # fmt: skip
_QWEN = MtpNames(
    "Qwen MTP", "mtp.layers.0", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm",
)  # fmt: skip


def load_native(folder: Path, target: Target) -> DrafterCheckpoint:
    """The MTP layer inside the target's own folder.

    Raises ModelError: SPECC-E0272 if there is none, or one of a kind that specc does not read; else as `load_drafter`.
    """
    if not folder.is_dir():
        raise _refusal(
            folder, "one file; MTP layers are read from safetensors", "the model's own folder"
        )
    whole = read_config(folder)
    config = whole.section("text_config") if "text_config" in whole.values else whole
    every = open_tensors(folder)
    begins = mtp_prefixes(whole.values)
    tensors = every.only(lambda name: name.startswith(begins))
    names = _names(config, tensors.names(), folder)
    parts = Parts(config, tensors, target, unit_offset=config.get("model_type") in UNIT_OFFSET)
    checkpoint = read_mtp(parts, names)
    tensors.finish()
    provenance = {"source": str(folder), "format": names.source, "source_hash": hash_files(folder)}
    return replace(checkpoint, provenance=provenance)


def _names(config: Config, tensors: list[str], folder: Path) -> MtpNames:
    counted = [int(config.get(k)) for k in MTP_COUNTS if isinstance(config.get(k), int)]
    if "mtp.0.main_proj.weight" in tensors:
        raise _refusal(
            folder, "DeepSeek-V4's DSpark layers, which specc does not build", "one MTP layer"
        )
    if not tensors:
        said = f", although its configuration counts {counted[0]}" if counted and counted[0] else ""
        raise _refusal(
            folder, f"no MTP layer in its files{said}", "mtp.* or model.layers.{L}.eh_proj"
        )
    several = len(
        {m[1] for n in tensors if (m := re.match(r"(?:model|mtp)\.(?:mtp_)?layers\.(\d+)\.", n))}
    )
    if several > 1:
        raise _refusal(folder, f"{several} MTP layers, one for each depth", "one MTP layer")
    if "mtp.fc.weight" in tensors:
        gated = config.get("model_type") in UNIT_OFFSET
        return replace(_QWEN, gated=gated)
    if "model.mtp_layers.0.input_proj.weight" in tensors:
        return _MIMO
    last = f"model.layers.{config.integer('num_hidden_layers')}"
    if f"{last}.eh_proj.weight" in tensors:
        return MtpNames(
            "DeepSeek MTP", last, f"{last}.enorm", f"{last}.hnorm", f"{last}.eh_proj", f"{last}.shared_head.norm",
            f"{last}.embed_tokens.weight", f"{last}.shared_head.head.weight",
        )  # fmt: skip
    raise _refusal(folder, ", ".join(sorted(tensors)[:3]), "mtp.fc, input_proj or eh_proj")


def _refusal(folder: Path, found: str, expected: str) -> ModelError:
    return ModelError(
        "SPECC-E0272", "the model has no MTP layer that specc can draft with", where=str(folder),
        expected=expected, found=found,
        cure="take the original checkpoint (quantised copies often lack the layer), or --method suffix",
    )  # fmt: skip
