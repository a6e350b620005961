"""From a request to an artifact: import, choose, rewrite, lower, write."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from specc.backends.artifact import TokenizerFiles, write_artifact
from specc.backends.base import Device, arch_of, find_backend
from specc.destination import whole_or_nothing
from specc.device_names import CUDA, kind_of
from specc.ir import SpeculativeProgram
from specc.ir.importers.source import ImportedModel, check_token_ids, load_model
from specc.judge import check_request
from specc.method_table import AUTO
from specc.methods import Choice, forms, pipeline_for
from specc.passes import Instrument, Pipeline
from specc.passes.quantise_weights import left
from specc.progress import Progress, peak_rss
from specc.request import (
    CompileReport,
    CompileRequest,
    backend_of,
    check_output,
    isa_of,
    provenance_of,
)

DEFAULT_MAX_MODEL_LEN = 2048


def compile_model(request: CompileRequest, progress: Progress) -> CompileReport:
    """Write the artifact `request.output`, whole or not at all.

    Raises SpeccError with the code of whatever stands in the way.
    """
    began = time.monotonic()
    check_request(request)
    check_output(request)
    with find_backend(backend_of(request)).ahead(_device(request)):
        with progress.phase(f"import {request.model}"):
            imported = load_model(request.model, request.max_model_len)
            check_token_ids(imported)
        request = with_defaults(request, imported)
        if request.method == AUTO:
            from specc.auto import choose_method  # (it writes candidates through this module)

            request, why = choose_method(request, imported, progress)
        else:
            why = (f"--method {request.method} was asked for",)
        choice = pipeline_for(request, imported, progress)
        with whole_or_nothing(request.output, request.force) as folder:
            manifest = write(request, imported, choice, folder, why, progress)
    size = sum(f["bytes"] for f in manifest["files"].values())
    return CompileReport(
        request.output, choice.pipeline.name, (*why, *choice.why),
        round(time.monotonic() - began, 1), peak_rss(), size,
    )  # fmt: skip


def write(
    request: CompileRequest, imported: ImportedModel, choice: Choice, folder: Path,
    why: tuple[str, ...], progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """Rewrite, lower and write the artifact into `folder`; returns its manifest."""
    device, backend = _device(request), find_backend(backend_of(request))
    with progress.phase(f"rewrite ({len(choice.pipeline.passes)} passes)"):
        program = choice.pipeline(imported.program)
    for quant, owner in forms(request):
        if quant != "none" and (floats := left(program, owner)):
            shown = ", ".join(floats[:3]) + (", ..." if len(floats) > 3 else "")
            progress.note(
                f"{len(floats)} matrices stay float32, since {quant} does not fit them ({shown})"
            )
    lowered = backend.lower(program, folder, device, progress)
    provenance = {
        **imported.provenance,
        **provenance_of(request),
        "why": "; ".join((*why, *choice.why)),
        "python": sys.version.split()[0],
    }
    return write_artifact(
        program, lowered, folder, backend=backend.name, device=device,
        tokenizer=_tokenizer(imported, progress), provenance=provenance, progress=progress,
    )  # fmt: skip


def _device(request: CompileRequest) -> Device:
    kind, _, name = request.device.partition(":")
    gpu = name if kind == CUDA else ""
    graphs = "" if kind in ("cpu", CUDA) else request.device
    isa = isa_of(request)
    return Device(
        arch=arch_of(isa),
        isa=isa,
        graphs=graphs,
        opset=request.opset,
        link_gbps=request.link_gbps,
        gpu=gpu,
        static=request.static,
    )


def build_program(
    request: CompileRequest, progress: Progress, until: str | None = None,
    instruments: tuple[Instrument, ...] = (),
) -> SpeculativeProgram:  # fmt: skip
    """The program after the pass `until`, or after all, for `specc opt`."""
    check_request(request)
    if request.method == AUTO:
        request = replace(request, method="ngram")
    with progress.phase(f"import {request.model}"):
        imported = load_model(request.model, request.max_model_len)
    choice = pipeline_for(with_defaults(request, imported), imported, progress)
    pipeline: Pipeline = choice.pipeline if until is None else choice.pipeline.until(until)
    return replace(pipeline, instruments=instruments)(imported.program)


def with_defaults(request: CompileRequest, imported: ImportedModel) -> CompileRequest:
    """The context, and on a GPU the type of products, where the user left them to specc."""
    limit = imported.program.model.max_position or DEFAULT_MAX_MODEL_LEN
    return replace(
        request,
        max_model_len=request.max_model_len or min(limit, DEFAULT_MAX_MODEL_LEN),
        dtype=_dtype(request, imported),
    )


def _dtype(request: CompileRequest, imported: ImportedModel) -> str:
    if request.dtype != "auto":
        return request.dtype
    return imported.dtype if kind_of(request.device) == CUDA else "f32"


def _tokenizer(imported: ImportedModel, progress: Progress) -> TokenizerFiles:
    if imported.tokenizer_json is None:
        progress.note("the model has no tokenizer: the artifact takes and gives token ids alone")
        return TokenizerFiles(files=imported.tokenizer_files)
    from tokenizers import Tokenizer

    from specc.ir.importers.tokenizer import compile_tokenizer

    with progress.phase("compile tokenizer"):
        compiled = compile_tokenizer(json.loads(imported.tokenizer_json))
    reference = Tokenizer.from_str(imported.tokenizer_json)
    bos = imported.program.model.bos_token_id
    first = reference.encode("a", add_special_tokens=True).ids[:1]
    # Models that come as one file have no tokenizer.json of their own; other tools want one.
    files = {**imported.tokenizer_files, "tokenizer.json": imported.tokenizer_json.encode()}
    return TokenizerFiles(compiled, files, bos is not None and first == [bos])
