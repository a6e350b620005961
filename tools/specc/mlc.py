"""`specc compile --format mlc`: from a request to the folder that MLC's engine loads."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

from specc import flags
from specc.backends import TVM
from specc.backends.artifact import fingerprint
from specc.backends.base import find_backend
from specc.destination import whole_or_nothing
from specc.driver import with_defaults
from specc.ir.importers.source import ImportedModel, load_model
from specc.methods import drafter_model, trained_drafter, weights_of
from specc.mlc_chat import chat_of
from specc.passes import pipelines
from specc.passes.pipelines import Shape
from specc.progress import Progress, peak_rss
from specc.request import MLC_K, CompileReport, CompileRequest, isa_of, provenance_of


def compile_folder(request: CompileRequest, progress: Progress) -> CompileReport:
    """Write the folder `request.output`, whole or not at all.

    Raises SpeccError with the code of whatever stands in the way.
    """
    began = time.monotonic()
    find_backend("tvm")  # refuses what cannot work before a model is read
    from specc.backends.tvm.mlc.configs import MODES
    from specc.backends.tvm.mlc.folder import Source, Wanted, library_prefix, write_folder
    from specc.backends.tvm.mlc.writer import Limits

    with progress.phase(f"import {request.model}"):
        imported = load_model(request.model, request.max_model_len)
    request = with_defaults(request, imported)
    assert request.max_model_len is not None
    k = _draft_length(request)
    shape = Shape(
        (0, k) if k else (0,),
        request.max_model_len,
        request.prefill_chunk,
        weights=weights_of(request.quant, request.quant_rounding),
    )
    why: tuple[str, ...] = (f"--method {request.method} was asked for",)
    drafter, checkpoint = imported, None
    if request.method == "draft_model":
        drafter = drafter_model(request, imported, progress)
        _require_same_heads(imported, drafter)
    elif k:
        checkpoint, shape, more = trained_drafter(request, imported, shape, progress)
        k, why = max(shape.num_speculative_tokens), (*why, *more)
    chunk = min(request.prefill_chunk, request.max_model_len)
    if k >= chunk:
        raise flags.bad_value(
            "--max-model-len", f"{k + 1} or more: MLC's engine waits for ever where a round has more rows", chunk
        )  # fmt: skip
    target = pipelines.pieces(shape)(imported.program)
    programs = {"target": (target, imported)}
    if k:
        with progress.phase("rewrite the drafter"):
            made = (
                pipelines.pieces(shape)(drafter.program) if checkpoint is None
                else pipelines.drafter_pieces(shape, checkpoint)(target)
            )  # fmt: skip
        programs["drafter"] = (made, drafter)
    if k:
        progress.note(
            "MLC speculates where its sampler runs on the device (CUDA, Vulkan, Metal); these libraries are for CPUs, "
            "where an unmodified engine plays engine-plain.json: see README.md in the folder"
        )
    limits = Limits(request.max_model_len, chunk, max(k + 1, 4))
    wanted = Wanted(
        request.mlc_target, isa_of(request), limits, MODES[request.method], k,
        library_prefix(imported.program.name),
    )  # fmt: skip
    sources = {
        name: Source(program, _files(model), chat_of(model, progress))
        for name, (program, model) in programs.items()
    }
    with whole_or_nothing(request.output, request.force) as folder:
        write_folder(sources, wanted, folder, progress)
        _write_record(request, imported, why, folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return CompileReport(
        request.output, request.method, why, round(time.monotonic() - began, 1), peak_rss(), size
    )


def _draft_length(request: CompileRequest) -> int:
    """K: MLC plays one, always."""
    if request.method == "none":
        return 0
    return max(request.num_speculative_tokens or (MLC_K,))


def _require_same_heads(imported: ImportedModel, drafter: ImportedModel) -> None:
    ours, theirs = (m.provenance["head_rows"] for m in (imported, drafter))
    if ours != theirs:
        raise flags.refused_by_mlc(
            "target and drafter have heads of different lengths, and MLC keeps the probabilities of both in one table",
            expected=f"{ours} rows", found=theirs,
        )  # fmt: skip


def _write_record(
    request: CompileRequest, imported: ImportedModel, why: tuple[str, ...], folder: Path
) -> None:
    """specc.json: where the folder comes from, and what every other file of it was when it was written."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    record = {
        "specc_version": version("specc-compiler"),
        "method": request.method,
        "provenance": {
            **imported.provenance,
            **provenance_of(request),
            "why": "; ".join(why),
            "python": sys.version.split()[0],
            "tvm": TVM,
        },
        "files": {p.relative_to(folder).as_posix(): fingerprint(p) for p in files},
    }
    (folder / "specc.json").write_text(json.dumps(record, indent=1) + "\n")


def _files(model: ImportedModel) -> dict[str, bytes]:
    if model.tokenizer_json is None:
        return dict(model.tokenizer_files)
    return {**model.tokenizer_files, "tokenizer.json": model.tokenizer_json.encode()}
