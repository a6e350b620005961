"""What the user asks the compiler for, and the one place that judges it. Imports nothing heavy."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specc import flags, servers, trained
from specc.destination import check_folder
from specc.errors import UsageError
from specc.trained import TRAINED

STRUCTURE = "mtp:structure"
METHODS = (
    "none",
    "ngram",
    "suffix",
    STRUCTURE,
    "draft_model",
    "layerskip",
    "eagle:adaptive",
    *TRAINED,
)
AUTO = "auto"
ISAS = {"avx2": "x86-64-v3", "avx512": "x86-64-v4"}
KV_CACHE_DTYPES = ("auto", "f32", "f16", "bf16")
QUANTS = (
    "none", "int8", "int4", "keep", "bf16", "q8", "q8g32", "q4g32", "q4g64", "q4g128", "q4mg32", "q4mg64", "q4mg128",
)  # fmt: skip
"""Forms of weights: three of specc's choosing, the file's own, and encodings by name (ir/encodings.py)."""

ROUNDINGS = ("nearest", "mse")
_IN_THE_GRAPH = ("draft_model", "layerskip", "eagle:adaptive")
GRAPH_METHODS = ("none", "ngram", "suffix", "draft_model", "layerskip", "eagle", "eagle3", "mtp")
"""Those whose graphs leave choosing tokens to the host: what --device onnx and ascend can run."""

ONNX, ASCEND, CUDA = "onnx", "ascend", "cuda"
CUDA_METHODS = ("none", "ngram", "suffix", "draft_model", "layerskip")
CUDA_ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
"""Of data centres and workstations since Ampere: what Triton writes code for and `backends/cuda/fakes.py` describes."""

TVM, REFERENCE = "tvm", "reference"
FORMATS = ("specc", "mlc")
MLC = "mlc"
MLC_METHODS = ("none", "draft_model", "eagle", "medusa")
"""What MLC's engine has a speculative_mode for."""

MLC_TARGETS = ("host", "iphone", "android")
MLC_K = 4
"""K where the user names none: MLC plays one, always."""

TVM_QUANTS = ("none", "bf16")
"""Forms of weights that the tvm backend multiplies."""

OPSETS = (11, 18)
MOST_DRAFTS = 32
DEFAULT_K = (0, 2, 4, 8)
"""K where the user names none."""

HOST_DRAFTERS = ("ngram", "suffix")
ON_HOST = (*HOST_DRAFTERS, STRUCTURE)
"""All methods whose drafts are found in the text; the last looks at what the model keeps of it, too."""

HOST_K = (*DEFAULT_K, 16)
"""The same for drafters on the host, whose drafts cost nothing and where text is copied are right by the dozen."""

MOST_CHUNK = 512


@dataclass(frozen=True)
class CompileRequest:
    """What the user asked for, as `specc compile` takes it. None: specc chooses."""

    model: str
    output: Path
    method: str = AUTO
    drafter: str | None = None
    num_speculative_tokens: tuple[int, ...] | None = None
    device: str = "cpu"
    backend: str = "inductor"
    isa: str = "native"
    static: bool = False
    opset: int = 0
    graph_dtype: str = "f32"
    kv_shards: tuple[int, str] | None = None
    link_gbps: float = 0
    quant: str = "none"
    quant_rounding: str = "nearest"
    kv_cache_dtype: str = "auto"
    kv_arena: str = "auto"
    max_model_len: int | None = None
    prefill_chunk: int = 64
    calibration: Path | None = None
    draft_layers: tuple[int, ...] | None = None
    draft_vocab_size: int = 0
    tree: int | tuple[tuple[int, ...], ...] | None = None
    host_drafter: str | None = None
    depths: tuple[int, ...] | None = None
    drafter_options: Mapping[str, float] = field(default_factory=dict)
    format: str = "specc"
    mlc_target: str = "host"
    force: bool = False


@dataclass(frozen=True)
class CompileReport:
    """What came of it. `why` says how the method was chosen, `notes` what was said meanwhile."""

    path: Path
    method: str
    why: tuple[str, ...]
    seconds: float
    peak_rss_bytes: int
    bytes: int
    notes: tuple[str, ...] = ()


def isa_of(request: CompileRequest) -> str:
    """The instruction set that `--isa` asks for; `native` is the best this machine has."""
    if request.isa != "native":
        return ISAS[request.isa]
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    wide = all(
        f" {f}" in flags for f in ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
    )
    return ISAS["avx512" if wide else "avx2"]


def draft_lengths(request: CompileRequest) -> tuple[int, ...]:
    """The K to compile: the user's, or what suits the method. `auto` is judged as the host drafters it begins with."""
    default: tuple[int, ...] = HOST_K if request.method in (*ON_HOST, AUTO) else DEFAULT_K
    most = _most_nodes(request)
    if most is not None:
        default = tuple(sorted({k for k in default if k < most} | {most}))
    return request.num_speculative_tokens or default


def _most_nodes(request: CompileRequest) -> int | None:
    """The largest tree that a drafter on the host may give; None where its drafts are a chain, or the graph's."""
    return request.tree if request.method in ON_HOST and isinstance(request.tree, int) else None


def provenance_of(request: CompileRequest) -> dict[str, str]:
    """What an artifact says about where it comes from that has no influence on what it is."""
    return {
        "source": request.model,
        "model": _absolute(request.model),
        "drafter_model": _absolute(request.drafter or ""),
        "argv": " ".join(sys.argv[1:]),
    }


def _absolute(model: str) -> str:
    """A path that still leads there from another folder; other spellings as they are."""
    return str(Path(model).resolve()) if model and Path(model).exists() else model


def check_request(request: CompileRequest) -> None:
    """Raise UsageError for what no model could make right. A flag without effect is refused, never dropped."""
    flags.one_of("--method", request.method, (AUTO, *METHODS))
    flags.one_of("--isa", request.isa, ("native", *ISAS))
    flags.one_of("--quant", request.quant, QUANTS)
    flags.one_of("--quant-rounding", request.quant_rounding, ROUNDINGS)
    flags.one_of("--kv-cache-dtype", request.kv_cache_dtype, KV_CACHE_DTYPES)
    flags.arena("--kv-arena", request.kv_arena)
    _check_format(request)
    _check_device(request)
    _check_shards(request)
    if request.quant_rounding != "nearest" and request.quant in ("none", "keep", "bf16"):
        raise flags.conflict(
            f"--quant-rounding has no meaning for --quant {request.quant}", "leave it out, or add --quant int4"
        )  # fmt: skip
    flags.at_least("--max-model-len", request.max_model_len, 2)
    if not 1 <= request.prefill_chunk <= MOST_CHUNK:
        raise flags.bad_value("--prefill-chunk", f"1 to {MOST_CHUNK}", request.prefill_chunk)
    _only_for("--drafter", request.drafter, request, AUTO, *TRAINED, "draft_model")
    _only_for("--draft-layers", request.draft_layers, request, "layerskip")
    _check_tree(request)
    _only_for("--depths", request.depths, request, "eagle:adaptive")
    _check_host_drafter(request)
    flags.at_least("--draft-vocab-size", request.draft_vocab_size, 0)
    _only_for("--draft-vocab-size", request.draft_vocab_size or None, request, *_IN_THE_GRAPH)
    measured = (
        _IN_THE_GRAPH if request.draft_vocab_size else ("layerskip", "eagle:adaptive", STRUCTURE)
    )
    _only_for("--calibration", request.calibration, request, *measured)
    if request.method == "draft_model" and request.drafter is None:
        raise flags.conflict("draft_model needs a model that drafts", "add --drafter MODEL")
    # (An MTP layer is looked for in the model's own files, a drafter that specc brings when the model is known.)
    alone = request.method in set(TRAINED) - {"mtp"} and request.drafter is None
    if alone and not trained.may_be_shipped(request.model, request.method):
        raise trained.missing(request.model, request.method)
    if request.calibration is not None and not request.calibration.is_file():
        raise flags.bad_value("--calibration", "a text file", request.calibration)
    _check_lengths(request)


def _check_tree(request: CompileRequest) -> None:
    """Trees of trained drafters fit or do not, which passes know; those of drafters on the host are judged here."""
    _only_for("--tree", request.tree, request, *ON_HOST, *TRAINED)
    if request.method not in ON_HOST:
        return
    trees = request.tree is not None or request.method == STRUCTURE
    if trees and request.backend == TVM:
        raise flags.conflict(
            f"--backend tvm has no trees for --method {request.method} yet",
            "leave out --tree, or --backend",
        )
    if request.tree is None:
        return
    most = _most_nodes(request)
    if most is None or most > MOST_DRAFTS:
        # What is found in a text has no places that could be named.
        found = "paths" if most is None else most
        raise flags.bad_value(
            "--tree", f"for {request.method}, a number from 1 to {MOST_DRAFTS}", found
        )
    if (longest := max(request.num_speculative_tokens or (0,))) > most:
        raise flags.conflict(
            f"--num-speculative-tokens {longest} is more than the {most} nodes of --tree", "choose a larger --tree"
        )  # fmt: skip


def _check_format(request: CompileRequest) -> None:
    """What MLC's engine cannot play is refused by name; see docs/mlc.md."""
    flags.one_of("--format", request.format, FORMATS)
    flags.one_of("--mlc-target", request.mlc_target, MLC_TARGETS)
    if request.format != MLC:
        if request.mlc_target != "host":
            raise flags.conflict(
                f"--mlc-target has no meaning for --format {request.format}", "add --format mlc"
            )
        return
    expected = f"--method {', '.join(MLC_METHODS)}"
    if request.method == AUTO:
        raise flags.conflict(
            "--format mlc measures nothing: it is MLC's engine that plays", "name one with --method", expected=expected
        )  # fmt: skip
    if request.method not in MLC_METHODS:
        raise flags.refused_by_mlc(
            f"MLC's engine cannot express --method {request.method}", expected=expected,
            found=_NOT_IN_MLC[request.method],
        )  # fmt: skip
    given = {
        "--device": request.device != "cpu", "--backend": request.backend not in ("inductor", TVM),
        "--tree": request.tree is not None, "--host-drafter": request.host_drafter is not None,
        "--drafter-options": bool(request.drafter_options), "--quant": request.quant not in TVM_QUANTS,
        "--kv-cache-dtype": request.kv_cache_dtype not in ("auto", "f32"), "--kv-arena": request.kv_arena != "auto",
        "--draft-vocab-size": request.draft_vocab_size > 0, "--static": request.static,
        "--isa": request.isa != "native" and request.mlc_target != "host",
    }  # fmt: skip
    for flag, there in given.items():
        if there:
            raise flags.refused_by_mlc(
                f"{flag} has no meaning for --format mlc", expected=f"no {flag}"
            )
    _check_mlc_length(request)


def _check_mlc_length(request: CompileRequest) -> None:
    drafts = [k for k in request.num_speculative_tokens or (MLC_K,) if k]
    if request.method == "none":
        return
    if len(drafts) > 1:
        raise flags.bad_value(
            "--num-speculative-tokens", "one number: MLC plays one spec_draft_length",
            ",".join(map(str, drafts)),
        )  # fmt: skip
    if request.prefill_chunk <= max(drafts, default=0):
        raise flags.bad_value(
            "--prefill-chunk", f"{max(drafts) + 1} or more: MLC's engine waits for ever where a round has more rows",
            request.prefill_chunk,
        )  # fmt: skip


_NOT_IN_MLC = {
    **dict.fromkeys(ON_HOST, "its drafts come from models alone"),
    **dict.fromkeys(("dflash", "dspark"), "it drafts one token a step, and these a block"),
    **dict.fromkeys(("layerskip", "eagle:adaptive"), "its drafter cannot share the target's layers and caches"),
    "eagle3": "it passes on one hidden state of the target's width, and EAGLE-3 reads three",
    "mtp": "its eagle mode passes on one stream, and an MTP layer reads two",
}  # fmt: skip
"""Why."""


def _check_host_drafter(request: CompileRequest) -> None:
    """Beside a drafter in the graph, one that finds drafts in the text; and the options of either way to have one."""
    if request.host_drafter is not None:
        flags.one_of("--host-drafter", request.host_drafter, HOST_DRAFTERS)
        _only_for("--host-drafter", request.host_drafter, request, *_IN_THE_GRAPH, *TRAINED)
        for flag, other in (
            ("--device", request.device != "cpu"),
            ("--tree", request.tree is not None),
        ):
            if other:
                raise flags.conflict(
                    f"{flag} has no rounds for --host-drafter yet", "leave one of them out"
                )
    elif request.drafter_options:
        _only_for("--drafter-options", request.drafter_options, request, *ON_HOST)


def _check_device(request: CompileRequest) -> None:
    kind = request.device.partition(":")[0]
    flags.one_of("--graph-dtype", request.graph_dtype, ("f32", "f16"))
    check_device_name(request.device)
    if kind == "cpu":
        if request.graph_dtype != "f32":
            raise flags.conflict(
                "--graph-dtype has no meaning for --device cpu", "leave it out, or see --quant"
            )
        if request.opset:
            raise flags.conflict(
                "--opset has no meaning for --device cpu", "leave it out, or add --device onnx"
            )
        if request.backend == TVM and request.quant not in TVM_QUANTS:
            raise flags.conflict(
                f"--backend tvm multiplies no weights of --quant {request.quant} yet", "leave out --backend",
                expected=f"--quant {' or '.join(TVM_QUANTS)}",
            )  # fmt: skip
        if request.backend == REFERENCE and request.static:
            raise flags.conflict(
                "--static has no meaning for --backend reference, which writes no code", "leave out one of them"
            )  # fmt: skip
        return
    if kind == CUDA:
        _check_cuda(request)
        return
    if request.static:
        raise flags.conflict(
            f"--device {request.device} has no --static: its graphs are files of their own", "leave out --static"
        )  # fmt: skip
    least, most = OPSETS
    if request.opset and not least <= request.opset <= most:
        raise flags.bad_value("--opset", f"{least} to {most}, which CANN reads", request.opset)
    if request.method not in GRAPH_METHODS:
        raise flags.conflict(
            f"--device {request.device} cannot run --method {request.method}", "choose another --method",
            expected=f"--method {', '.join(GRAPH_METHODS)}",
        )  # fmt: skip
    if request.backend not in ("inductor", ONNX):
        raise flags.conflict(
            f"--backend {request.backend} has no --device {request.device}", "leave out --backend"
        )
    if request.tree is not None:
        raise flags.conflict(
            f"--device {request.device} has no trees: they are chosen inside of graphs", "leave out --tree"
        )  # fmt: skip
    if request.quant != "none":
        raise flags.conflict(
            f"--device {request.device} has no quantised weights yet", "leave out --quant"
        )
    if request.kv_cache_dtype == "bf16":
        raise flags.conflict(
            f"--device {request.device} has no caches of bf16", "choose f32 or f16"
        )


def _check_cuda(request: CompileRequest) -> None:
    """What the cuda backend cannot do yet."""
    here = f"--device {request.device}"
    if request.method not in CUDA_METHODS:
        raise flags.conflict(
            f"{here} cannot run --method {request.method} yet", "choose another --method",
            expected=f"--method {', '.join(CUDA_METHODS)}",
        )  # fmt: skip
    for flag, given, usual in (
        ("--backend", request.backend, ("inductor", CUDA)),
        ("--quant", request.quant, ("none",)),
        ("--kv-cache-dtype", request.kv_cache_dtype, ("auto", "f32", "f16")),
        ("--kv-arena", request.kv_arena, ("auto",)),
        ("--graph-dtype", request.graph_dtype, ("f32",)),
        ("--opset", request.opset, (0,)),
        ("--static", request.static, (False,)),
        ("--tree", request.tree, (None,)),
        ("--draft-vocab-size", request.draft_vocab_size, (0,)),
    ):
        if given not in usual:
            allowed = " or ".join(str(u) for u in usual if u)
            raise flags.conflict(
                f"{here} has no {flag} {given} yet", f"leave out {flag}",
                expected=f"{flag} {allowed}" if allowed else "",
            )  # fmt: skip


def _check_shards(request: CompileRequest) -> None:
    """Caches on several devices: of one server, where that is known."""
    kind, _, soc = request.device.partition(":")
    if request.kv_shards is None:
        if request.link_gbps:
            raise flags.conflict(
                "--link-gbps has no meaning for caches on one device", "leave it out, or add --kv-shards"
            )  # fmt: skip
        return
    if kind in ("cpu", CUDA):
        raise flags.conflict(
            f"--kv-shards has no meaning for --device {kind}", "leave it out, or add --device onnx"
        )
    flags.at_least("--link-gbps", request.link_gbps, 0)
    if kind == ASCEND:
        servers.check_one_server(soc, request.kv_shards[0])


def check_device_name(device: str) -> None:
    """Raise UsageError for what is no device: cpu, onnx, ascend:SOC or cuda:ARCH."""
    kind, _, soc = device.partition(":")
    if kind == CUDA:
        if soc not in CUDA_ARCHS:
            raise UsageError(
                "SPECC-E0113", f"--device {device} names no GPU architecture that specc compiles for",
                expected=f"--device {', '.join(f'{CUDA}:{a}' for a in CUDA_ARCHS)}", found=device,
                cure="take the compute capability of the GPU that will run it: 9.0 is sm_90",
            )  # fmt: skip
        return
    if kind not in ("cpu", ONNX, ASCEND) or (kind != ASCEND and device != kind):
        raise UsageError(
            "SPECC-E0113", f"--device {device} is not built yet",
            expected="--device cpu, onnx, ascend:SOC or cuda:ARCH", cure="leave it out",
        )  # fmt: skip
    if kind == ASCEND:
        check_soc(soc)


def check_soc(soc: str) -> None:
    """Raise UsageError for what cannot be a chip's name, as `npu-smi info` and `atc --soc_version` spell them."""
    if re.fullmatch(r"Ascend\d{3}[A-Za-z0-9_]*", soc) and soc != "Ascend910B":
        return
    raise flags.bad_value(
        "--device", "ascend:SOC with the chip's whole name, as in Ascend910B3, Ascend310P3 or Ascend910_9391",
        f"ascend:{soc}", cure="take it from `npu-smi info`: Ascend and the column Name",
    )  # fmt: skip


def backend_of(request: CompileRequest) -> str:
    """The backend for the device."""
    if request.device.startswith(CUDA):
        return CUDA
    return request.backend if request.device == "cpu" else ONNX


def _check_lengths(request: CompileRequest) -> None:
    ks = request.num_speculative_tokens
    if ks is None:
        return
    flag = "--num-speculative-tokens"
    if any(not 0 <= k <= MOST_DRAFTS for k in ks) or len(set(ks)) != len(ks):
        raise flags.bad_value(
            flag, f"distinct numbers from 0 to {MOST_DRAFTS}", ",".join(map(str, ks))
        )
    drafts = any(ks)
    if request.method == "none" and drafts:
        raise flags.conflict("method none drafts nothing", "leave out " + flag)
    if request.method not in ("none", AUTO) and not drafts:
        raise flags.conflict(
            f"{request.method} with K=0 alone never drafts", "choose --method none"
        )


def check_output(request: CompileRequest) -> None:
    """Raise UsageError if the artifact could not be put where it is asked for."""
    if request.format == MLC:
        check_folder(request.output, "engine.json", "a folder for MLC", force=request.force)
    else:
        check_folder(request.output, "manifest.json", "an artifact", force=request.force)


def _only_for(flag: str, value: object, request: CompileRequest, *methods: str) -> None:
    if value is not None and request.method not in methods:
        raise flags.conflict(
            f"{flag} has no meaning for --method {request.method}",
            f"leave it out, or choose --method {methods[-1]}",
            expected=f"--method {' or '.join(methods)}",
        )
