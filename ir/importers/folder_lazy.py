"""Hugging Face folders -> a transformers model without weights, and weights that are read when they are asked for.

Compiling then never holds a whole model. This is for folders whose tensors are the model's parameters one by one, which
is nearly all of them; for others (experts in files of their own, names of an older release, buffers that are stored),
and to say what is wrong with a folder, there is `load_folder`, where transformers itself loads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specc.ir.importers.folder import finite, judged, read_tensor
from specc.ir.importers.quiet import quiet
from specc.ir.types import TensorType
from specc.ir.weights import Weight, content_hash

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def open_folder(folder: Path) -> tuple[PreTrainedModel, dict[str, Weight]] | None:
    """The model of `folder`, float32, with parameters that were never written, and what belongs into them, by name.

    None for a folder that only `load_folder` can judge. Raises what that raises for what needs no weights (E0202 to
    E0208), and SPECC-E0207 when a weight is loaded that is not finite.
    """
    _, files = judged(folder)
    model = _hollow(folder)
    if model is None:
        return None
    groups: dict[int, list[str]] = {}  # names of one parameter, more than one if it is tied
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        groups.setdefault(id(parameter), []).append(name)
    weights: dict[str, Weight] = {}
    for names in groups.values():
        stored = [name for name in names if name in files]
        if len(stored) != 1:
            return None
        weight = _weight(files[stored[0]], stored[0], tuple(parameters[names[0]].shape), folder)
        if weight is None:
            return None
        weights.update(dict.fromkeys(names, weight))
    if not weights.keys() >= files.keys() or not weights.keys() >= model.state_dict().keys():
        return None
    return model, weights


def _hollow(folder: Path) -> PreTrainedModel | None:
    """The model with its real buffers and unwritten parameters, which take no memory."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
    from transformers.initialization import no_init_weights

    try:
        with quiet("transformers"), no_init_weights():
            config = AutoConfig.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
            auto: Any = AutoModelForCausalLM
            model: PreTrainedModel = auto.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
            model.tie_weights()
            if (folder / "generation_config.json").is_file():
                model.generation_config = GenerationConfig.from_pretrained(folder)
    except Exception:
        return None
    model.train(False)
    return model


def _weight(path: Path, name: str, shape: tuple[int, ...], folder: Path) -> Weight | None:
    """The tensor as float32, if it has this shape and is of floats."""
    stored = read_tensor(path, name)
    if tuple(stored.shape) != shape or stored.dtype not in (
        torch.float32, torch.bfloat16, torch.float16
    ):  # fmt: skip
        return None
    # By what is stored: hashing what is loaded would convert it all once more for each key.
    derivation = "" if stored.dtype is torch.float32 else f"float32({content_hash(stored)})"
    return Weight(TensorType("f32", shape), _loader(path, name, folder), derivation)


def _loader(path: Path, name: str, folder: Path) -> Callable[[], Tensor]:
    known: list[str] = []

    def load() -> Tensor:
        tensor = read_tensor(path, name).float()
        if not known:
            finite(name, tensor, folder)
            known.append(name)
        return tensor

    return load
