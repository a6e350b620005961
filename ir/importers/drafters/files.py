"""The files of a drafter: config.json and safetensors, every tensor and every key accounted for."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specc import cache
from specc.errors import ModelError
from specc.ir.importers.folder import PICKLES, opened, read_json, read_tensor, weight_files
from specc.ir.types import TensorType
from specc.ir.weights import Weight

_FLOATS = ("F32", "F16", "BF16")
_SCALES = re.compile(
    r"(weight_scale|weight_scale_inv|input_scale|qweight|qzeros|scales|g_idx|weight_packed)$"
)

CONVERT = (
    "convert it on a machine you trust: python -c \"import torch; from safetensors.torch import save_file; "
    "save_file({k: v.clone() for k, v in torch.load('FILE', weights_only=True).items()}, 'model.safetensors')\""
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One tensor in a safetensors file: its type as the file writes it."""

    path: Path
    dtype: str
    shape: tuple[int, ...]


class Tensors:
    """The tensors of one checkpoint, taken one by one; `finish` refuses what nobody took."""

    def __init__(self, where: str, entries: Mapping[str, Entry]) -> None:
        self.where = where
        self._entries = dict(entries)
        self._left = dict.fromkeys(entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """All of them, taken or not."""
        return list(self._entries)

    def only(self, wanted: Callable[[str], bool]) -> Tensors:
        """Those whose names are wanted."""
        return Tensors(self.where, {n: e for n, e in self._entries.items() if wanted(n)})

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor. Raises ModelError (SPECC-E0274) if it is missing."""
        if name not in self._entries:
            raise ModelError(
                "SPECC-E0274", "a tensor of the drafter is missing; it would have random values",
                where=self.where, expected=name, cure="download all files of the checkpoint",
            )  # fmt: skip
        return self._entries[name].shape

    def take(self, name: str, shape: Iterable[int]) -> Weight:
        """The tensor as f32 of `shape`, finite. Raises ModelError (SPECC-E0207, E0274, E0276, E0277)."""
        self._check_shape(name, tuple(shape))
        entry = self._entries[name]
        if entry.dtype not in _FLOATS:
            raise quantised(f"{self.where}: {name}", entry.dtype)
        return Weight(TensorType("f32", entry.shape), lambda: self._finite(name, entry))

    def integers(self, name: str, shape: Iterable[int]) -> torch.Tensor:
        """The values of a table of numbers or flags, as i64. Raises ModelError (SPECC-E0274, E0276)."""
        self._check_shape(name, tuple(shape))
        entry = self._entries[name]
        if entry.dtype not in ("I64", "I32", "BOOL", "U8"):
            raise ModelError(
                "SPECC-E0276", "a table of the drafter has another type than it should",
                where=f"{self.where}: {name}", expected="I64, I32 or BOOL", found=entry.dtype,
                cure="export the checkpoint again",
            )  # fmt: skip
        return read_tensor(entry.path, name).to(torch.int64)

    def drop(self, name: str) -> None:
        """Count a tensor as seen that says nothing new (a buffer that is recomputed)."""
        self._left.pop(name, None)

    def finish(self) -> None:
        """Raises ModelError (SPECC-E0275) if something is left, E0277 if that is scales of a quantised checkpoint."""
        if scales := [n for n in self._left if _SCALES.search(n)]:
            raise quantised(f"{self.where}: {scales[0]}", scales[0].rsplit(".", 1)[-1])
        if self._left:
            names = sorted(self._left)
            raise ModelError(
                "SPECC-E0275", f"{len(names)} tensor(s) are not part of the drafter that config.json describes",
                where=self.where, found=", ".join(names[:4]),
                cure="use the config.json that belongs to these weights",
            )  # fmt: skip

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        found = self.shape(name)
        if found != shape:
            raise ModelError(
                "SPECC-E0276", "a tensor of the drafter does not have the shape that config.json asks for",
                where=f"{self.where}: {name}", expected=str(list(shape)), found=str(list(found)),
                cure="use the config.json that belongs to these weights",
            )  # fmt: skip
        self._left.pop(name, None)

    def _finite(self, name: str, entry: Entry) -> torch.Tensor:
        tensor = read_tensor(entry.path, name).to(torch.float32)
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(
                "SPECC-E0207", "a tensor has values that are no finite numbers",
                where=f"{self.where}: {name}", cure="download the weights again, or train the drafter longer",
            )  # fmt: skip
        return tensor


def quantised(where: str, how: str) -> ModelError:
    """The refusal of a form of numbers that specc does not read."""
    return ModelError(
        "SPECC-E0277", f"the drafter is quantised ({how}); specc does not read this form",
        where=where, expected="weights in float32, float16 or bfloat16",
        cure="take the unquantised checkpoint; the compiler quantises drafters itself",
    )  # fmt: skip


def open_tensors(folder: Path) -> Tensors:
    """Look into the safetensors files of `folder`; nothing but headers is read.

    Raises ModelError: SPECC-E0271 a pickle, E0202 no weights, E0207 a damaged file.
    """
    if not any(folder.glob("*.safetensors")):
        found = [p for pattern in PICKLES for p in sorted(folder.glob(pattern))]
        if found:
            raise ModelError(
                "SPECC-E0271", f"{found[0].name} is a pickle, which can run code when it is read; specc reads none",
                where=str(folder), expected="*.safetensors",
                cure=CONVERT.replace("FILE", found[0].name),
            )  # fmt: skip
    if (folder / "mask_embedding.pt").exists():
        raise ModelError(
            "SPECC-E0271", "mask_embedding.pt is a pickle, and the embedding of the mask token is only there",
            where=str(folder), expected="a row of the embedding for mask_token_id",
            cure="use another drafter; specc does not read this one",
        )  # fmt: skip
    entries: dict[str, Entry] = {}
    for path in weight_files(folder):
        with opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                part = file.get_slice(name)
                entries[name] = Entry(path, part.get_dtype(), tuple(part.get_shape()))
    return Tensors(str(folder), entries)


def hash_files(folder: Path) -> str:
    """One hash over names and contents of config and weights."""
    digest = hashlib.sha256()
    for path in [folder / "config.json", *weight_files(folder)]:
        digest.update(f"{path.name}\0{cache.sha256(path)}\0".encode())
    return digest.hexdigest()


_NO_MEANING = frozenset((
    "_name_or_path", "architectures", "attention_dropout", "attn_implementation", "auto_map", "bos_token_id",
    "dtype", "eos_token_id", "initializer_range", "layer_norm_eps", "max_window_layers", "model_type", "pad_token_id",
    "sep_token_id", "tokenizer_class", "torch_dtype", "transformers_version", "use_cache", "max_position_embeddings",
    "_attn_implementation", "_attn_implementation_autoset", "output_attentions", "output_hidden_states",
    "return_dict", "chunk_size_feed_forward", "id2label", "label2id", "is_encoder_decoder", "problem_type",
))  # fmt: skip
"""Keys of any Hugging Face configuration that say nothing about what a drafter computes."""


class Config:
    """Typed reads of a configuration. `finish` refuses keys that nobody read: what they mean would be ignored."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values, self.where = values, where
        self._read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default` where it is absent or null."""
        self._read.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.bad(key, f"a whole number of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
        ):
            raise self.bad(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return value

    def integers(self, key: str, default: Iterable[int] | None = None) -> tuple[int, ...] | None:
        """A list of whole numbers, none below 0."""
        value = self.get(key, None if default is None else list(default))
        if value is None:
            return None
        good = isinstance(value, list) and value
        if not good or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in value):
            raise self.bad(key, "a list of whole numbers")
        return tuple(value)

    def only(self, key: str, *values: Any, cure: str = "") -> None:
        """Refuse a value of `key` that is not one of `values`, the first of which is meant where it is absent."""
        if self.get(key, values[0]) not in values:
            raise self.bad(key, " or ".join(map(str, values)), cure)

    def section(self, key: str) -> Config:
        """A nested configuration; empty where it is absent."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.bad(key, "an object")
        return Config(value, f"{self.where}: {key}")

    def skip(self, *keys: str) -> None:
        """Count keys as read that say nothing about the computation."""
        self._read.update(keys)

    def bad(self, key: str, expected: str, cure: str = "") -> ModelError:
        """The error for a value that specc cannot take."""
        return ModelError(
            "SPECC-E0278", f"{key} of the drafter's configuration cannot be used",
            where=f"{self.where}: {key}", expected=expected, found=str(self.values.get(key))[:120],
            cure=cure or "take the config.json that was published with these weights",
        )  # fmt: skip

    def finish(self) -> None:
        """Raises ModelError (SPECC-E0278) for the first key that nobody read, unless it is null."""
        unknown = [
            k for k, v in self.values.items()
            if v is not None and k not in self._read and k not in _NO_MEANING and not k.startswith("_")
        ]  # fmt: skip
        if unknown:
            raise ModelError(
                "SPECC-E0278", f"specc does not know what {unknown[0]} means for this kind of drafter",
                where=f"{self.where}: {unknown[0]}", found=str(self.values[unknown[0]])[:120],
                cure="if it has no effect on the computation, take it out of config.json; else report it",
            )  # fmt: skip


def read_config(folder: Path) -> Config:
    """config.json of a drafter, refused if it says that the weights are quantised.

    Raises ModelError (SPECC-E0202, E0207, E0277).
    """
    path = folder / "config.json"
    values = read_json(path)
    how = values.get("quantization_config") or values.get("compression_config")
    if how:
        raise quantised(f"{path}: quantization_config",
                        str(how.get("quant_method", "unknown")) if isinstance(how, dict) else str(how))  # fmt: skip
    return Config(values, str(path))
