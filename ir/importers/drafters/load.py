"""From a folder to a drafter's contract: which format it is, and whether it is the drafter that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from specc.errors import ModelError
from specc.ir.importers.drafters import (
    deepspec,
    medusa,
    safeailab,
    specforge,
    speculators,
    zlab,
)
from specc.ir.importers.drafters.files import Config, hash_files, open_tensors, read_config
from specc.ir.importers.drafters.kinds import kind_of
from specc.ir.importers.drafters.layers import Parts
from specc.ir.importers.drafters.spec import DrafterCheckpoint
from specc.ir.importers.drafters.target import Target

Reader = Callable[[Parts], DrafterCheckpoint]

_NONE_OF_OURS = {
    "DFlash2DraftModel": "DFlash-2: its convolutions and candidate selector are not built",
    "DominoDraftModel": "Domino: its recurrent prefix is not built",
    "Gemma4DSparkModel": "a DSpark on Gemma-4 layers, which are not built",
    "Gemma4Eagle3Model": "an EAGLE-3 on Gemma-4 layers, which are not built",
}
"""Public drafters that are refused by name."""

_ARCHITECTURES: dict[str, Reader] = {
    "LlamaForCausalLMEagle3": specforge.read,
    "Eagle3DeepseekV2ForCausalLM": specforge.read_deepseek,
    "Eagle3DeepseekV3ForCausalLM": specforge.read_deepseek,
    "PEagleDraftModel": specforge.read,
    "Qwen3Eagle3Model": deepspec.read_eagle,
    "Qwen3DSparkModel": deepspec.read_dspark,
    "DFlashDraftModel": zlab.read_dflash,
    "DSparkDraftModel": zlab.read_dspark,
}

_SPECULATORS: dict[str, Reader] = {
    "eagle3": lambda parts: speculators.read_eagle(parts, "eagle3"),
    "peagle": lambda parts: speculators.read_eagle(parts, "peagle"),
    "dflash": lambda parts: speculators.read_block_drafter(parts, "dflash"),
    "dspark": lambda parts: speculators.read_block_drafter(parts, "dspark"),
    "mtp": speculators.read_mtp_drafter,
}


def load_drafter(folder: Path, target: Target, method: str | None = None) -> DrafterCheckpoint:
    """Read the drafter in `folder`, check it against `target`, and against `method` if one was asked for.

    Raises ModelError: SPECC-E0202, E0207 and E0271 for files that cannot be read, E0272 of another method or format,
    E0273 for another target, E0274 to E0276 for tensors, E0277 quantised, E0278 keys of config.json, E0279 vocabulary.
    """
    if folder.suffix == ".gguf":
        raise ModelError(
            "SPECC-E0272", "a draft head in a GGUF is not read: what its conventions are is in llama.cpp's code alone",
            where=str(folder), expected="the folder with config.json and safetensors that it was converted from",
            cure="pass that folder with --drafter",
        )  # fmt: skip
    config = read_config(folder)
    parts = Parts(config, open_tensors(folder), target)
    reader = _reader(parts)
    kind = kind_of(parts.tensors.names())
    if method is not None and kind is not None and kind.method != method:
        raise ModelError(
            "SPECC-E0272", f"this checkpoint is a drafter of another method ({kind}, by its tensors)",
            where=str(folder), expected=f"--method {method}", found=f"--method {kind.method}",
            cure=f"specc compile {target.name} --method {kind.method} --drafter {folder}",
        )  # fmt: skip
    checkpoint = reader(parts)
    parts.tensors.finish()
    parts.config.finish()
    provenance = {
        "source": str(folder), "format": checkpoint.spec.source, "source_hash": hash_files(folder),
    }  # fmt: skip
    return replace(checkpoint, provenance=provenance)


def _reader(parts: Parts) -> Reader:
    """The reader of this format, by what config.json calls it, then by the names of its tensors."""
    config = parts.config
    said = config.get("speculators_model_type")
    if said is not None:
        if said not in _SPECULATORS:
            raise _unknown(config, f"speculators {said}", " or ".join(_SPECULATORS))
        return _SPECULATORS[said]
    names = [str(a) for a in config.get("architectures", [])]
    for name in names:
        if name in _NONE_OF_OURS:
            raise _unknown(config, f"{name}: {_NONE_OF_OURS[name]}", "a drafter that specc builds")
        if name in _ARCHITECTURES:
            return _ARCHITECTURES[name]
    tensors = parts.tensors
    if medusa.is_medusa(parts):
        return medusa.read
    if "midlayer.self_attn.q_proj.weight" in tensors or (
        "fc.weight" in tensors and "layers.0.self_attn.q_proj.weight" in tensors
        and "hidden_norm.weight" not in tensors
    ):  # fmt: skip
        return safeailab.read
    if "model.embed_tokens.weight" in tensors:
        raise ModelError(
            "SPECC-E0272", "this is a whole language model, not a draft head", where=config.where,
            expected="a draft head for the target", found=", ".join(names) or str(config.get("model_type")),
            cure="specc compile TARGET --method draft_model --drafter FOLDER",
        )  # fmt: skip
    raise _unknown(config, ", ".join(names) or "unknown", "a drafter of a known format")


def _unknown(config: Config, found: str, expected: str) -> ModelError:
    return ModelError(
        "SPECC-E0272", "specc does not read this kind of drafter", where=config.where,
        expected=expected, found=found, cure="use --method ngram or suffix, or another drafter",
    )  # fmt: skip
