"""From a request to an artifact: import, choose, rewrite, lower, write."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specc.backends.artifact import TokenizerFiles, write_artifact
from specc.backends.base import Device, find_backend
from specc.errors import UsageError
from specc.ir import SpeculativeProgram
from specc.ir.importers.source import ImportedModel, load_model
from specc.methods import Choice, pipeline_for
from specc.passes import Instrument, Pipeline
from specc.progress import Progress, peak_rss
from specc.request import AUTO, ISAS, CompileRequest, check_output, check_request

DEFAULT_MAX_MODEL_LEN = 2048
DEFAULT_K = (0, 2, 4, 8)


@dataclass(frozen=True)
class CompileReport:
    """What came of it. `why` says how the method was chosen."""

    path: Path
    method: str
    why: tuple[str, ...]
    seconds: float
    peak_rss_bytes: int
    bytes: int


def compile_model(request: CompileRequest, progress: Progress) -> CompileReport:
    """Write the artifact `request.output`, whole or not at all.

    Raises SpeccError with the code of whatever stands in the way.
    """
    began = time.monotonic()
    check_request(request)
    check_output(request)
    with progress.phase(f"import {request.model}"):
        imported = load_model(request.model, request.max_model_len)
    request = with_defaults(request, imported)
    if request.method == AUTO:
        from specc.auto import choose_method  # (it writes candidates through this module)

        method, why = choose_method(request, imported, progress)
        request = replace(request, method=method)
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
    device, backend = device_of(request), find_backend(request.backend)
    with progress.phase(f"rewrite ({len(choice.pipeline.passes)} passes)"):
        program = choice.pipeline(imported.program)
    lowered = backend.lower(program, folder, device, progress)
    provenance = {
        **imported.provenance,
        "model": _absolute(request.model),
        "drafter_model": _absolute(request.drafter or ""),
        "argv": " ".join(sys.argv[1:]),
        "why": "; ".join((*why, *choice.why)),
        "python": sys.version.split()[0],
    }
    return write_artifact(
        program, lowered, folder, backend=backend.name, device=device,
        tokenizer=_tokenizer(imported, progress), provenance=provenance, progress=progress,
    )  # fmt: skip


def _absolute(model: str) -> str:
    """A path that still leads there from another folder; other spellings as they are."""
    return str(Path(model).resolve()) if model and Path(model).exists() else model


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
    """K and the context where the user left them to specc."""
    limit = imported.program.model.max_position or DEFAULT_MAX_MODEL_LEN
    return replace(
        request,
        max_model_len=request.max_model_len or min(limit, DEFAULT_MAX_MODEL_LEN),
        num_speculative_tokens=request.num_speculative_tokens or DEFAULT_K,
    )


def device_of(request: CompileRequest) -> Device:
    """The device that `--isa` asks for; `native` is the best this machine has."""
    if request.isa == "native":
        flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
        wide = all(
            f" {f}" in flags for f in ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
        )
        return Device(isa=ISAS["avx512" if wide else "avx2"])
    return Device(isa=ISAS[request.isa])


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


@contextmanager
def whole_or_nothing(output: Path, force: bool) -> Iterator[Path]:
    """A folder beside `output` that takes its place at the end, and is gone if anything fails.

    An artifact that was there stays until the new one is whole.
    """
    parent = output.resolve().parent
    folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=parent))
    aside = folder.with_name(folder.name + ".old")
    try:
        yield folder
        folder.chmod(0o755)
        if output.exists():
            if not force:
                raise UsageError(
                    "SPECC-E0123", f"{output} has appeared meanwhile", cure="add --force, or choose another -o"
                )  # fmt: skip
            output.rename(aside)
        folder.rename(output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)
