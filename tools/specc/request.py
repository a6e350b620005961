"""What the user asks the compiler for. Imports nothing heavy; `judge.py` says whether it can be had."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specc.destination import check_folder
from specc.device_names import ASCEND, CUDA, ONNX, kind_of
from specc.method_table import AUTO, ON_HOST

ISAS = {"avx2": "x86-64-v3", "avx512": "x86-64-v4", "neon": "armv8-a"}
OF_X86 = ("native", "avx2", "avx512")
TVM, REFERENCE = "tvm", "reference"
MLC = "mlc"
MLC_K = 4
"""K where the user names none: MLC plays one, always."""

MOST_DRAFTS = 32
DEFAULT_K = (0, 2, 4, 8)
"""K where the user names none."""

HOST_K = (*DEFAULT_K, 16)
"""The same for drafters on the host, whose drafts cost nothing and where text is copied are right by the dozen."""


@dataclass(frozen=True)
class CompileRequest:
    """What the user asked for, as `specc compile` takes it. None: specc chooses."""

    model: str
    output: Path
    method: str = AUTO
    drafter: str | None = None
    num_speculative_tokens: tuple[int, ...] | None = None
    device: str = "cpu"
    backend: str | None = None
    isa: str = "native"
    static: bool = False
    opset: int = 0
    dtype: str = "auto"
    verify_graphs: str = "auto"
    kv_shards: tuple[int, str] | None = None
    link_gbps: float = 0
    quant: str = "none"
    quant_rounding: str = "nearest"
    drafter_quant: str = "auto"
    kv_cache_dtype: str = "auto"
    kv_arena: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 1
    prefill_chunk: int = 64
    calibration: Path | None = None
    draft_layers: tuple[int, ...] | None = None
    draft_vocab_size: int = 0
    translate_tokens: bool = False
    tree: int | tuple[tuple[int, ...], ...] | None = None
    host_drafter: str | None = None
    depths: tuple[int, ...] | None = None
    structure_head: bool = False
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
    most = most_nodes(request)
    if most is not None:
        default = tuple(sorted({k for k in default if k < most} | {most}))
    return request.num_speculative_tokens or default


def most_nodes(request: CompileRequest) -> int | None:
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


BACKENDS = {
    "inductor": ("cpu",), CUDA: (CUDA,), ONNX: (ONNX, ASCEND), TVM: ("cpu", CUDA), REFERENCE: ("cpu",),
}  # fmt: skip
"""The kinds of device that each compiles for; the first for a device is the one that nobody need name."""


def backend_of(request: CompileRequest) -> str:
    """The backend that was asked for, or the device's own."""
    kind = kind_of(request.device)
    return request.backend or next(b for b, kinds in BACKENDS.items() if kind in kinds)


def check_output(request: CompileRequest) -> None:
    """Raise UsageError if the artifact could not be put where it is asked for."""
    if request.format == MLC:
        check_folder(request.output, "engine.json", "a folder for MLC", force=request.force)
    else:
        check_folder(request.output, "manifest.json", "an artifact", force=request.force)
