"""Hugging Face folders -> a loaded model: safetensors only, every tensor accounted for, no code from the folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from specc.errors import ModelError
from specc.ir.importers.quiet import quiet
from specc.ir.importers.refusals import refuse_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
"""Files that can run code when they are read."""


MTP_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "n_mtp_layers")
"""Keys that say how many multi-token-prediction layers a checkpoint has."""

LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
"""Keys that say how many layers a model has."""


def mtp_prefixes(config: dict[str, Any]) -> tuple[str, ...]:
    """Beginnings of the names of tensors that are of MTP layers in a checkpoint with this config.json."""
    text = _text(config)
    counted = next((text[k] for k in MTP_COUNTS if isinstance(text.get(k), int)), 0)
    last = text.get("num_hidden_layers", 0)
    return ("mtp.", "model.mtp_layers.", *(f"model.layers.{last + i}." for i in range(counted)))


def _text(config: dict[str, Any]) -> dict[str, Any]:
    """What a config.json says of the language model, which others wrap."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def load_folder(folder: Path) -> PreTrainedModel:
    """Load a folder in Hugging Face form as float32.

    Raises ModelError: SPECC-E0202 not such a folder, E0203 to E0206 a kind that is refused, E0207 a damaged file,
    E0208 tensors missing or left over, E0209 a tensor of the wrong shape.
    """
    config, files = judged(folder)
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # specc has its own, and JSON on stderr must stay JSON
    try:
        with quiet("transformers"):  # what it would print becomes an error below
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, trust_remote_code=False, use_safetensors=True,
                local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
    except Exception as error:
        raise ModelError(
            "SPECC-E0202",
            f"transformers cannot load the model: {_reason(error)}",
            where=str(folder),
            cure="check config.json against the model's published one",
        ) from error
    model, report = loaded
    _check_report(report, folder, config)
    _check_tied(model, files, folder)
    for name, parameter in model.named_parameters():
        finite(name, parameter, folder)
    return model


def _reason(error: Exception) -> str:
    """What an error of transformers says, in one line; its kind too where it says no more than a word."""
    text = " ".join(str(error).split())[:200]
    return text if " " in text else f"{type(error).__name__}: {text}".removesuffix(": ")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError (SPECC-E0202) if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(
            "SPECC-E0202",
            "not a Hugging Face model folder",
            where=str(path.parent),
            expected="config.json and *.safetensors",
            cure="pass the folder that holds config.json, a .gguf or a .pt2",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError("SPECC-E0207", f"{path.name} cannot be read: {error}", where=str(path),
                         cure="download the file again") from error  # fmt: skip
    if not isinstance(value, dict):
        raise ModelError("SPECC-E0207", f"{path.name} holds no JSON object", where=str(path),
                         cure="download the file again")  # fmt: skip
    return value


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the model, as its index lists them if there is one.

    Raises ModelError (SPECC-E0202, E0207).
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        parts = read_json(index).get("weight_map")
        if not isinstance(parts, dict):
            raise ModelError("SPECC-E0207", f"{index.name} does not say which file holds which tensor",
                             where=f"{index}: weight_map", expected="an object", found=str(parts)[:120],
                             cure="download the file again")  # fmt: skip
        names = sorted(set(map(str, parts.values())))
        files = [folder / Path(name).name for name in names]
        if absent := [f.name for f in files if not f.is_file()]:
            raise ModelError("SPECC-E0207", f"a part of the model is missing: {', '.join(absent)}",
                             where=str(index), cure="download the missing files")  # fmt: skip
        return files
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    if files:
        return files
    pickles = [p.name for pattern in PICKLES for p in sorted(folder.glob(pattern))]
    if pickles:
        raise ModelError(
            "SPECC-E0202",
            f"{pickles[0]} is a pickle, which can run code when it is read; specc reads none",
            where=str(folder),
            expected="*.safetensors",
            cure="convert it on a machine you trust: model.save_pretrained(FOLDER)",
        )
    raise ModelError("SPECC-E0202", "the folder has no weights", where=str(folder),
                     expected="*.safetensors", cure="download the weights too")  # fmt: skip


def check_files(folder: Path) -> dict[str, Path]:
    """Each tensor to its file. Raises ModelError (SPECC-E0207) for files that are cut off or lie about offsets."""
    tensors: dict[str, Path] = {}
    for path in weight_files(folder):
        with opened(path) as file:
            tensors.update(dict.fromkeys(file.keys(), path))
    return tensors


def judged(folder: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """The folder's config.json, and each of its tensors' file. Raises what needs no weights (E0202 to E0208)."""
    config = read_json(folder / "config.json")
    refuse_config(config, str(folder / "config.json"))
    files = check_files(folder)
    _check_depth(config, len(files), folder)
    _check_generation(folder)
    return config, files


def _check_depth(config: dict[str, Any], tensors: int, folder: Path) -> None:
    """Raise ModelError (SPECC-E0208) for more layers than tensors: to build them first may take all memory there is."""
    for key, count in _text(config).items():
        if key in LAYER_COUNTS and isinstance(count, int) and count > tensors:
            raise ModelError(
                "SPECC-E0208", "config.json has more layers than there are tensors", where=str(folder),
                expected=f"{key} of at most {tensors}", found=str(count),
                cure="use the config.json that belongs to these weights",
            )  # fmt: skip


def _check_generation(folder: Path) -> None:
    """Raise ModelError (SPECC-E0207) for a damaged generation_config.json: transformers would ignore its end tokens."""
    path = folder / "generation_config.json"
    if path.is_file():
        read_json(path)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file, to look into. Raises ModelError (SPECC-E0207) for what goes wrong meanwhile."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except Exception as error:
        raise ModelError(
            "SPECC-E0207",
            f"{path.name} is damaged or cut off: {error}",
            where=str(path),
            found=f"{path.stat().st_size} bytes",
            cure="download the file again and compare its checksum",
        ) from error


def read_tensor(path: Path, name: str) -> torch.Tensor:
    """The tensor as it is stored; its file is mapped for as long as it lives."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(name)
    return tensor


def _check_report(report: dict[str, Any], folder: Path, config: dict[str, Any]) -> None:
    if wrong := sorted(report["mismatched_keys"]):
        name, found, expected = wrong[0]
        raise ModelError(
            "SPECC-E0209",
            f"{len(wrong)} tensor(s) do not have the shape that config.json asks for",
            where=f"{folder}: {name}",
            expected=str(list(expected)),
            found=str(list(found)),
            cure="use the config.json that belongs to these weights",
        )
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            "SPECC-E0208",
            f"{len(missing)} tensor(s) are missing; they would have random values",
            where=str(folder),
            expected=", ".join(missing[:4]),
            cure="download all weight files; if lm_head is meant to be the embedding, set "
            "tie_word_embeddings to true",
        )
    # Layers that draft (multi-token prediction) stand beside the model; transformers has no place for them.
    beside = mtp_prefixes(config)
    if extra := sorted(k for k in report["unexpected_keys"] if not k.startswith(beside)):
        raise ModelError(
            "SPECC-E0208",
            f"{len(extra)} tensor(s) are not part of the model that config.json describes",
            where=str(folder),
            found=", ".join(extra[:4]),
            cure="use the config.json that belongs to these weights",
        )
    if errors := report.get("error_msgs"):
        raise ModelError("SPECC-E0207", f"weights cannot be read: {str(errors)[:200]}",
                         where=str(folder), cure="download the files again")  # fmt: skip


def _check_tied(model: PreTrainedModel, files: dict[str, Path], folder: Path) -> None:
    """A head that is in the files must be the head that is used, whatever the configuration says about tying."""
    head: Any = model.get_output_embeddings()
    path = files.get("lm_head.weight")
    if head is None or path is None or model.config.tie_word_embeddings is False:
        return
    stored = read_tensor(path, "lm_head.weight").float()
    if not torch.equal(stored, head.weight.detach()):
        raise ModelError(
            "SPECC-E0208",
            "tie_word_embeddings is true, but the files hold an lm_head that is not the embedding",
            where=f"{folder}: lm_head.weight",
            cure="set tie_word_embeddings to false in config.json",
        )


def finite(name: str, tensor: torch.Tensor, folder: Path) -> None:
    """Refuse weights that are no numbers (a broken conversion, a training run that blew up): they make all NaN.

    Raises ModelError (SPECC-E0207).
    """
    if not bool(torch.isfinite(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
        raise ModelError(
            "SPECC-E0207",
            "a tensor has values that are no finite numbers",
            where=f"{folder}: {name}",
            cure="download the weights again",
        )
