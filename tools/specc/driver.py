"""From a request to an artifact: import, choose, rewrite, lower, write."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specc.backends.artifact import TokenizerFiles, write_artifact
from specc.backends.base import Device, find_backend
from specc.errors import UsageError
from specc.ir import SpeculativeProgram
from specc.ir.importers.source import ImportedModel, load_model
from specc.methods import METHODS, Choice, pipeline_for
from specc.passes import Instrument, Pipeline
from specc.progress import Progress, peak_rss

DEFAULT_MAX_MODEL_LEN = 2048
DEFAULT_K = (0, 2, 4, 8)
ISAS = {"avx2": "x86-64-v3", "avx512": "x86-64-v4"}


@dataclass(frozen=True)
class CompileRequest:
    """What the user asked for, as `specc compile` takes it. None: specc chooses."""

    model: str
    output: Path
    method: str = "auto"
    drafter: str | None = None
    num_speculative_tokens: tuple[int, ...] | None = None
    device: str = "cpu"
    backend: str = "inductor"
    isa: str = "native"
    quant: str = "none"
    max_model_len: int | None = None
    prefill_chunk: int = 64
    calibration: Path | None = None
    draft_layers: tuple[int, ...] | None = None
    depths: tuple[int, ...] | None = None
    drafter_options: Mapping[str, float] = field(default_factory=dict)
    force: bool = False


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
    with progress.phase(f"import {request.model}"):
        imported = load_model(request.model, request.max_model_len)
    request = with_defaults(request, imported)
    if request.method == "auto":
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
    check_request(replace(request, force=True))
    if request.method == "auto":
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


def check_request(request: CompileRequest) -> None:
    """Raise UsageError for what no model could make right."""
    if request.method not in ("auto", *METHODS):
        raise _usage(
            "SPECC-E0112", f"there is no method {request.method}", ", ".join(("auto", *METHODS))
        )
    if request.quant != "none":
        raise _usage("SPECC-E0113", f"--quant {request.quant} is not built yet", "--quant none")
    if request.device != "cpu":
        raise _usage("SPECC-E0114", f"--device {request.device} is not built yet", "--device cpu")
    if request.isa not in ("native", *ISAS):
        raise _usage("SPECC-E0115", f"--isa {request.isa} is unknown", "native, avx2 or avx512")
    ks = request.num_speculative_tokens
    if ks is not None and (not ks or any(not 0 <= k <= 32 for k in ks) or len(set(ks)) != len(ks)):
        raise _usage(
            "SPECC-E0116", f"--num-speculative-tokens {','.join(map(str, ks))} cannot be built",
            "distinct numbers from 0 to 32, such as 0,2,4,8",
        )  # fmt: skip
    if request.max_model_len is not None and request.max_model_len < 2:
        raise _usage(
            "SPECC-E0117", f"--max-model-len {request.max_model_len} is too small", "2 or more"
        )
    if not 1 <= request.prefill_chunk <= 512:
        raise _usage(
            "SPECC-E0118", f"--prefill-chunk {request.prefill_chunk} is out of range", "1 to 512"
        )
    wants_drafter = request.method == "draft_model"
    if wants_drafter and request.drafter is None:
        raise _usage("SPECC-E0119", "--method draft_model needs a second model", "--drafter MODEL")
    if request.drafter is not None and not wants_drafter and request.method != "auto":
        raise _usage(
            "SPECC-E0121", f"--method {request.method} does not read --drafter", "--method draft_model"
        )  # fmt: skip
    for flag, value, method in (
        ("--draft-layers", request.draft_layers, "layerskip"),
        ("--depths", request.depths, "eagle:adaptive"),
    ):
        if value is not None and request.method != method:
            raise _usage(
                "SPECC-E0122",
                f"--method {request.method} does not read {flag}",
                f"--method {method}",
            )
    if request.output.exists() and not request.force:
        raise _usage("SPECC-E0123", f"{request.output} is there already", "--force, or another -o")


def _usage(code: str, what: str, cure: str) -> UsageError:
    return UsageError(code, what, cure=f"use {cure}")


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
        return TokenizerFiles(files=imported.tokenizer_files)
    from tokenizers import Tokenizer

    from specc.ir.importers.tokenizer import compile_tokenizer

    with progress.phase("compile tokenizer"):
        compiled = compile_tokenizer(json.loads(imported.tokenizer_json))
    reference = Tokenizer.from_str(imported.tokenizer_json)
    bos = imported.program.model.bos_token_id
    first = reference.encode("a", add_special_tokens=True).ids[:1]
    return TokenizerFiles(compiled, imported.tokenizer_files, bos is not None and first == [bos])


@contextmanager
def whole_or_nothing(output: Path, force: bool) -> Iterator[Path]:
    """A folder beside `output` that becomes `output` at the end, and is gone if anything fails."""
    parent = output.resolve().parent
    if not parent.is_dir():
        raise _usage("SPECC-E0124", f"there is no folder {parent}", "mkdir first, or another -o")
    folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=parent))
    try:
        yield folder
        folder.chmod(0o755)
        if output.exists():
            if not force or not (
                (output / "manifest.json").is_file()
                or (output.is_dir() and not any(output.iterdir()))
            ):
                raise _usage(
                    "SPECC-E0125",
                    f"{output} is not an artifact, so it is not replaced",
                    "another -o",
                )
            shutil.rmtree(output)
        os.replace(folder, output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
