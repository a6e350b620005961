"""What this machine can do at most, measured by small C++ programs compiled on the spot."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.errors import UsageError
from specc.runtime import sources

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Limits:
    """Best of several passes, by one thread and by all: bytes, and operations a second.

    A multiply-add counts as two operations. `integer_kind`: the instructions behind `integer_*`.
    """

    threads: int
    vector_bytes: int
    integer_kind: str
    read_1: float
    read_n: float
    fma_1: float
    fma_n: float
    integer_1: float
    integer_n: float

    def best(self, other: Limits) -> Limits:
        """The higher of two measurements, figure by figure: a limit that was reached is one."""
        highest = {
            name: max(getattr(self, name), getattr(other, name))
            for name in ("read_1", "read_n", "fma_1", "fma_n", "integer_1", "integer_n")
        }
        return Limits(self.threads, self.vector_bytes, self.integer_kind, **highest)


@dataclass(frozen=True)
class Dispatch:
    """How much longer a kernel split over the engine's threads takes than its share, in ns.

    `one_part`, `four_parts`: so many a thread. `quiet`: the tenth percentile, which a busy
    neighbour does not reach. `after_sleep`: when the threads had gone to sleep before.
    """

    threads: int
    one_part_ns: float
    one_part_quiet_ns: float
    four_parts_ns: float
    four_parts_quiet_ns: float
    after_sleep_ns: float


class Probes:
    """The compiled programs; lives in `with`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="specc-bench-")
        runtime = sources.CPP.parent
        core = [str(sources.CPP / f"core/{name}.cpp") for name in ("pool", "cpu")]
        self._limits = self._compile(
            "probe", "-O3", "-march=native", "-ffp-contract=fast", str(HERE / "probe.cpp")
        )
        self._dispatch = self._compile(
            "dispatch", "-O2", f"-I{runtime}", str(HERE / "dispatch.cpp"), *core
        )

    def limits(self, threads: int, mebibytes: int = 256) -> Limits:
        """Measured now; `mebibytes` of memory are read, which should be far more than any cache."""
        return Limits(**_run(self._limits, threads, mebibytes))

    def dispatch(self, threads: int) -> Dispatch:
        """Measured now."""
        return Dispatch(**_run(self._dispatch, threads))

    def __enter__(self) -> Probes:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def _compile(self, name: str, *arguments: str) -> Path:
        compiler = os.environ.get("CXX", "g++")
        if shutil.which(compiler) is None:
            raise UsageError(
                "SPECC-E0118", "the probes need a C++ compiler", expected=compiler,
                found="nothing on PATH", cure="install g++, or set CXX",
            )  # fmt: skip
        output = Path(self._folder.name) / name
        command = [compiler, "-std=c++20", *arguments, "-pthread", "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UsageError(
                "SPECC-E0118", f"{name} does not compile", where=compiler,
                found=done.stderr[-600:], cure="g++ 11 or newer on x86-64 with AVX2",
            )  # fmt: skip
        return output


def _run(program: Path, *arguments: int) -> dict[str, Any]:
    done = subprocess.run(
        [str(program), *map(str, arguments)], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def about() -> dict[str, object]:
    """What a reader must know of the machine to judge figures: its name, CPUs, load."""
    return {
        "cpu": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": [round(n, 2) for n in os.getloadavg()],
        "kernel": platform.release(),
    }


def _cpu_name() -> str:
    try:
        lines: Sequence[str] = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
