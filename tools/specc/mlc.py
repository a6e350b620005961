"""`specc compile --format mlc`: from a request to the folder that MLC's engine loads."""

from __future__ import annotations

import time
from dataclasses import replace

from specc import flags, trained
from specc.backends.base import find_backend
from specc.destination import whole_or_nothing
from specc.driver import with_defaults
from specc.ir import SpeculativeProgram
from specc.ir.importers.source import ImportedModel, load_model
from specc.methods import require_same_tokens, weights_of
from specc.mlc_chat import chat_of
from specc.passes import pipelines
from specc.passes.pipelines import Shape
from specc.progress import Progress, peak_rss
from specc.request import MLC_K, CompileReport, CompileRequest, isa_of


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
        weights=weights_of(request),
    )
    programs = {"target": (pipelines.pieces(shape)(imported.program), imported)}
    why: tuple[str, ...] = ()
    if request.method == "draft_model":
        drafter = _drafter(request, imported, progress)
        programs["drafter"] = (pipelines.pieces(shape)(drafter.program), drafter)
    elif request.method != "none":
        program, k, why = _trained(request, imported, shape, k, progress)
        programs["drafter"] = (program, imported)
    if k:
        progress.note(
            "MLC speculates where its sampler runs on the device (CUDA, Vulkan, Metal); these libraries are for CPUs, "
            "where an unmodified engine plays engine-plain.json: see README.md in the folder"
        )
    limits = Limits(
        request.max_model_len, min(request.prefill_chunk, request.max_model_len), max(k + 1, 4)
    )
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
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return CompileReport(
        request.output, request.method, why, round(time.monotonic() - began, 1), peak_rss(), size
    )


def _draft_length(request: CompileRequest) -> int:
    """K: MLC plays one, always."""
    if request.method == "none":
        return 0
    return max(request.num_speculative_tokens or (MLC_K,))


def _drafter(request: CompileRequest, imported: ImportedModel, progress: Progress) -> ImportedModel:
    assert request.drafter is not None
    with progress.phase(f"import {request.drafter}"):
        drafter = load_model(request.drafter, request.max_model_len)
    require_same_tokens(imported, drafter)
    ours, theirs = (m.provenance["head_rows"] for m in (imported, drafter))
    if ours != theirs:
        raise flags.refused_by_mlc(
            "target and drafter have heads of different lengths, and MLC keeps the probabilities of both in one table",
            expected=f"{ours} rows", found=theirs,
        )  # fmt: skip
    return drafter


def _trained(
    request: CompileRequest, imported: ImportedModel, shape: Shape, k: int, progress: Progress
) -> tuple[SpeculativeProgram, int, tuple[str, ...]]:
    with progress.phase(f"read the drafter{f' {request.drafter}' if request.drafter else ''}"):
        checkpoint = trained.load(request.method, request.model, request.drafter, imported)
    spec = checkpoint.spec
    why = (f"{spec.source}: " + ", ".join(f"{a} {b}" for a, b in spec.conventions.items()),)
    if request.num_speculative_tokens is None:
        k = min(k, spec.most_drafts)
    shape = replace(shape, num_speculative_tokens=(0, k))
    with progress.phase("rewrite the drafter"):
        program = pipelines.drafter_pieces(shape, checkpoint)(
            pipelines.pieces(shape)(imported.program)
        )
    return program, k, why


def _files(model: ImportedModel) -> dict[str, bytes]:
    if model.tokenizer_json is None:
        return dict(model.tokenizer_files)
    return {**model.tokenizer_files, "tokenizer.json": model.tokenizer_json.encode()}
