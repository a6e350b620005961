"""GGUF files -> a transformers model without weights, and weights that are dequantised when they are asked for.

Nothing in the file is executed: metadata and tensors are read through a memory map by the `gguf` package.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from specc.errors import ModelError
from specc.ir.importers import gguf_blocks
from specc.ir.importers.gguf_config import (
    NORM_PLUS_ONE,
    PERMUTED,
    Metadata,
    configuration,
)
from specc.ir.importers.quiet import quiet
from specc.ir.types import TensorType
from specc.ir.weights import Blocks, Stored, Weight

if TYPE_CHECKING:
    from gguf import ReaderTensor
    from transformers import PreTrainedModel

READABLE = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}
"""Tensor types that are dequantised."""

_VOCABULARY = {
    f"tokenizer.ggml.{part}"
    for part in ("tokens", "scores", "token_type", "merges", "added_tokens")
}
"""Fields of a quarter of a million entries that only the tokenizer needs."""

_NOT_PARAMETERS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True)
class GgufFile:
    """An opened file: metadata, and its tensors by name. Holds the memory map."""

    path: Path
    meta: Metadata
    tensors: Mapping[str, ReaderTensor]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape as torch has it (GGUF lists dimensions the other way round)."""
        return tuple(int(d) for d in reversed(self.tensors[name].shape))

    def stored_hash(self, name: str) -> str:
        """Type, shape and hash of the tensor's bytes as they are stored."""
        tensor = self.tensors[name]
        content = hashlib.sha256(np.ascontiguousarray(tensor.data).data).hexdigest()
        return f"{tensor.tensor_type.name}{self.shape(name)}:{content}"

    def load(self, name: str) -> Tensor:
        """The tensor as float32."""
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        values = dequantize(tensor.data, tensor.tensor_type)
        return torch.from_numpy(np.array(values, dtype=np.float32)).reshape(self.shape(name))


def open_gguf(path: Path) -> GgufFile:
    """Open and check `path`.

    Raises ModelError: SPECC-E0254 for a damaged or truncated file, E0255 for one part of a split file, E0256 for a
    tensor type that is not read.
    """
    from specc.ir.importers.gguf_reader import QuickReader

    try:
        reader = QuickReader(path)
        fields = {n: f.contents() for n, f in reader.fields.items() if n not in _VOCABULARY}
        tensors = {t.name: t for t in reader.tensors}
    except OSError as error:
        raise ModelError(
            "SPECC-E0202",
            f"the file cannot be read: {error.strerror}",
            where=str(path),
            cure="check the path",
        ) from error
    except Exception as error:  # the reader fails in many ways on bytes that are not what they say
        raise ModelError(
            "SPECC-E0254",
            f"the GGUF is damaged or cut off: {type(error).__name__}: {_first_line(error)}",
            where=str(path),
            found=f"{path.stat().st_size} bytes",
            cure="download the file again and compare its checksum",
        ) from error
    if fields.get("split.count", 1) not in (0, 1):
        raise ModelError(
            "SPECC-E0255",
            "this is one part of a split GGUF",
            where=str(path),
            found=f"{fields['split.count']} parts",
            cure="join them: llama-gguf-split --merge FIRST_PART OUT.gguf",
        )
    for name, tensor in tensors.items():
        kind = tensor.tensor_type.name
        if kind not in READABLE:
            raise ModelError(
                "SPECC-E0256",
                f"GGUF tensor type {kind} is not read",
                where=f"{path.name}: {name}",
                expected=", ".join(sorted(READABLE)),
                cure="take a Q4_K_M, Q8_0 or F16 file of the model",
            )
    return GgufFile(path, Metadata(fields, str(path)), tensors)


def hollow_model(file: GgufFile) -> PreTrainedModel:
    """The transformers model of `file` with its real buffers and unwritten parameters (which take no memory)."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    values = configuration(file.meta, {name: file.shape(name) for name in file.tensors})
    _add_rope_tensors(file, values)
    kind = values.pop("model_type")
    try:
        with quiet("transformers"), no_init_weights():
            config = AutoConfig.for_model(kind, **values)
            auto: Any = AutoModelForCausalLM
            model: PreTrainedModel = auto.from_config(config, dtype=torch.float32)
    except Exception as error:
        raise ModelError(
            "SPECC-E0252",
            f"the GGUF's metadata makes no {kind} model: {_first_line(error)}",
            where=str(file.path),
            cure="convert the model again with llama.cpp's convert_hf_to_gguf.py",
        ) from error
    model.tie_weights()
    if "rope_freqs.weight" in file.tensors:
        _scale_frequencies(model, file)
    model.train(False)
    return model


def _add_rope_tensors(file: GgufFile, values: dict[str, Any]) -> None:
    """Factors of longrope, which are tensors in a GGUF and lists in a configuration."""
    if "rope_factors_long.weight" not in file.tensors:
        return
    values["rope_parameters"].update(
        rope_type="longrope",
        long_factor=file.load("rope_factors_long.weight").tolist(),
        short_factor=file.load("rope_factors_short.weight").tolist(),
        original_max_position_embeddings=values["original_max_position_embeddings"],
        attention_factor=file.meta.number("rope.scaling.attn_factor", 1.0),
    )


def _scale_frequencies(model: PreTrainedModel, file: GgufFile) -> None:
    """Llama 3's rope scaling: the file has the divisor of each frequency (`rope_freqs`), not the numbers behind it."""
    divisors = file.load("rope_freqs.weight")
    for module in model.modules():
        frequencies = getattr(module, "inv_freq", None)
        if isinstance(frequencies, Tensor):
            if frequencies.shape != divisors.shape:
                raise ModelError(
                    "SPECC-E0257",
                    "rope_freqs does not fit the model",
                    where=str(file.path),
                    expected=str(tuple(frequencies.shape)),
                    found=str(tuple(divisors.shape)),
                )
            module.register_buffer("inv_freq", frequencies / divisors, persistent=False)


def lazy_weights(file: GgufFile, model: PreTrainedModel) -> dict[str, Weight]:
    """Each parameter of `model` by its transformers name.

    Raises ModelError: SPECC-E0208 for missing tensors or ones that nothing uses, E0209 for shapes that do not fit.
    """
    name_of = _names(file, model)
    weights: dict[str, Weight] = {}
    used: set[str] = set(_NOT_PARAMETERS)
    missing = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        sources = name_of(name)
        if name == "lm_head.weight" and "output.weight" not in file.tensors:
            sources = ["token_embd.weight"]
        if absent := [s for s in sources if s not in file.tensors]:
            missing += absent
            continue
        used.update(sources)
        if name == "lm_head.weight" and sources == ["token_embd.weight"]:
            weights[name] = weights["model.embed_tokens.weight"]
            continue
        weights[name] = _weight(file, name, sources, tuple(parameter.shape), model.config)
    extra = sorted(set(file.tensors) - used)
    if missing or extra:
        raise ModelError(
            "SPECC-E0208",
            f"the GGUF's tensors are not those of {model.config.model_type}: "
            f"{len(missing)} missing, {len(extra)} that nothing uses",
            where=str(file.path),
            expected=", ".join(missing[:4]),
            found=", ".join(extra[:4]),
            cure="take a GGUF of the whole model, made by a current llama.cpp",
        )
    return weights


def _names(file: GgufFile, model: PreTrainedModel) -> Callable[[str], list[str]]:
    """A function from a transformers parameter to the tensors it is made of."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    key = next(k for k, v in MODEL_ARCH_NAMES.items() if v == file.meta.architecture)
    table = get_tensor_name_map(key, model.config.num_hidden_layers)

    def names(name: str) -> list[str]:
        if expert := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj", name):
            parts = {"gate_up": ("gate", "up"), "down": ("down",)}[expert[2]]
            return [f"blk.{expert[1]}.ffn_{part}_exps.weight" for part in parts]
        found = table.get_name(name, try_suffixes=(".weight", ".bias"))
        return [found or f"(no tensor for {name})"]

    return names


def _weight(
    file: GgufFile, name: str, sources: list[str], shape: tuple[int, ...], config: Any
) -> Weight:
    architecture = file.meta.architecture
    shapes = [file.shape(s) for s in sources]
    whole = shapes[0] if len(shapes) == 1 else (shapes[0][0], 2 * shapes[0][1], shapes[0][2])
    if whole != shape or len(set(shapes)) != 1:
        raise ModelError(
            "SPECC-E0209",
            f"{sources[0]} does not have the shape that the metadata asks for",
            where=f"{file.path}: {name}",
            expected=str(list(shape)),
            found=str(list(whole)),
            cure="download the file again; if it stays, the file is not what its metadata says",
        )
    heads = 0
    if architecture in PERMUTED and re.search(r"self_attn\.[qk]_proj\.", name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
    minus_one = architecture in NORM_PLUS_ONE and name.endswith("norm.weight")

    def load() -> Tensor:
        tensors = [file.load(s) for s in sources]
        tensor = tensors[0] if len(tensors) == 1 else torch.cat(tensors, 1)
        if heads:
            tensor = _halves(tensor, heads)
        return tensor - 1 if minus_one else tensor

    stored = _stored(file, sources, heads) if len(shape) == 2 else None
    # By what is stored: hashing what is loaded would dequantise it all once more for each key.
    content = ", ".join(file.stored_hash(s) for s in sources)
    key = hashlib.sha256(f"{content}; halves {heads}, minus one {minus_one}".encode()).hexdigest()
    return Weight(TensorType("f32", shape), load, f"gguf({key})", stored=stored)


def _stored(file: GgufFile, sources: list[str], heads: int) -> Stored | None:
    """The matrix as the file has it, if it is quantised there. Permuted rows are whole rows of blocks."""
    (source,) = sources
    tensor = file.tensors[source]
    kind = tensor.tensor_type.name
    if kind in gguf_blocks.FLOATS:
        return None

    def load() -> Blocks:
        q, d, m = gguf_blocks.blocks_of(tensor.data, kind)
        if not heads:
            return q, d, m
        return _halves(q, heads), _halves(d, heads), None if m is None else _halves(m, heads)

    return Stored(kind, gguf_blocks.ENCODINGS.get(kind), load)


def _halves(x: Tensor, heads: int) -> Tensor:
    """Rows of each head from interleaved pairs to two halves (undoes llama.cpp's permute). x: [heads * D, ...]."""
    return x.reshape(heads, -1, 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:160]


def filled_model(path: Path) -> PreTrainedModel:
    """The whole model of a GGUF with its weights in memory: the oracle of tests and of `specc verify`."""
    file = open_gguf(path)
    model = hollow_model(file)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, weight in lazy_weights(file, model).items():
            parameters[name].copy_(weight.load())
    return model
