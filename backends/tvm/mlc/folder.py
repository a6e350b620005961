"""The folder that MLC loads: one folder a model, and the files that say how they play together."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.backends.base import Progress
from specc.backends.pack_weights import pack_weights
from specc.backends.tvm.mlc import apps, configs
from specc.backends.tvm.mlc.compile import compile_library, target_of
from specc.backends.tvm.mlc.configs import Chat, Model
from specc.backends.tvm.mlc.library import model_library, vocabulary_of
from specc.backends.tvm.mlc.params import write_params
from specc.backends.tvm.mlc.writer import Limits
from specc.ir import SpeculativeProgram


@dataclass(frozen=True)
class Wanted:
    """What the folder is for: where the libraries run, `--mlc-target` and the host's instruction set, and its sizes."""

    target: str
    isa: str
    limits: Limits
    mode: str
    k: int
    prefix: str
    """Begins the names of static libraries."""


@dataclass(frozen=True)
class Source:
    """One model: its pieces, its tokenizer files by name, and how a conversation is written."""

    program: SpeculativeProgram
    files: Mapping[str, bytes]
    chat: Chat


def write_folder(
    sources: Mapping[str, Source], wanted: Wanted, into: Path, progress: Progress
) -> dict[str, Any]:
    """Write `target` and perhaps `drafter`, engine.json and what else MLC reads; returns engine.json.

    Raises BackendError (SPECC-E0441, E0442) for what cannot be a library of MLC's.
    """
    models = [_model(name, s, wanted, into, progress) for name, s in sources.items()]
    engine = configs.engine_config(models, wanted.mode, wanted.k, wanted.limits)
    _write(into / "engine.json", engine)
    if wanted.target != "host":
        packaged = configs.package_config(models, wanted.target, wanted.limits)
        _write(into / "mlc-package-config.json", packaged)
    for name, text in apps.files(engine, wanted.target).items():
        (into / name).write_text(text)
    return engine


def _model(name: str, source: Source, wanted: Wanted, into: Path, progress: Progress) -> Model:
    folder = into / name
    folder.mkdir()
    host = wanted.target == "host"
    file = "model.so" if host else "model.tar"
    target = target_of(wanted.target, wanted.isa)
    with progress.phase(f"lower the {name} through Relax"):
        program = pack_weights(source.program)
        library = model_library(program, wanted.limits, target)
    prefix = f"{wanted.prefix}_{name}"
    with progress.phase(f"compile the {name} for {wanted.target}"):
        compile_library(library.module, target, folder / file, "" if host else f"{prefix}_")
    with progress.phase(f"write the {name}'s weights"):
        size = write_params(program.weights, library.parameters, folder)
    for tokens, data in source.files.items():
        (folder / tokens).write_bytes(data)
    tokenizer = json.loads(source.files.get("tokenizer.json", b"{}"))
    chat = configs.chat_config(
        library.metadata, program.model, vocabulary_of(program), source.chat, list(source.files), tokenizer
    )  # fmt: skip
    _write(folder / "mlc-chat-config.json", chat)
    called = f"{name}/{file}" if host else f"system://{prefix}"
    return Model(name, called, file, size, library.metadata)


def library_prefix(name: str) -> str:
    """A model's name as the beginning of symbols."""
    found = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").lower() or "model"
    return found if found[0].isalpha() else f"m{found}"


def _write(path: Path, value: Mapping[str, Any] | Sequence[Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
