"""NVIDIA's compiler: CUDA C++ -> machine code for one architecture."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from specc.cache import Pieces
from specc.errors import BackendError

_FLAGS = (
    "--cubin", "-std=c++17", "-O3",
    # No fast math (spelt out, though usual): division and roots are rounded as IEEE says, and small numbers stay.
    "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
)  # fmt: skip


OLDEST = 12
"""Toolkits before do not know every architecture that is compiled for."""


def find_nvcc() -> str | None:
    """NVCC, or the first nvcc on PATH, or the one that pip installed (nvidia-cuda-nvcc); none of them: None."""
    chosen = os.environ.get("NVCC")
    if (found := shutil.which(chosen or "nvcc")) or chosen:
        return found
    package = importlib.util.find_spec("nvidia")
    places = (package.submodule_search_locations if package else None) or []
    found_there = sorted(p for place in places for p in Path(place).glob("cu*/bin/nvcc"))
    return str(found_there[-1]) if found_there else None


class Nvcc:
    """The compiler of this machine. Raises BackendError (SPECC-E0455) where there is none that is new enough."""

    def __init__(self) -> None:
        found = find_nvcc()
        version = "" if found is None else _version(found)
        release = re.search(r"release (\d+)", version)
        if found is None or release is None or int(release[1]) < OLDEST:
            raise BackendError(
                "SPECC-E0455", "there is no CUDA compiler", where=found or "",
                expected=f"nvcc {OLDEST} or newer, on PATH or by NVCC",
                found=version or os.environ.get("NVCC") or "none",
                cure="pip install 'specc-compiler[nvcc]', correct or unset NVCC, or leave out --backend tvm",
            )  # fmt: skip
        self.path, self.version = found, version

    def cubin(self, source: str, arch: str, where: str) -> bytes:
        """Machine code of `source` for an architecture as sm_90, from the cache if it was compiled before.

        Raises BackendError (SPECC-E0456) where nvcc fails.
        """
        identity = "\0".join([self.version, arch, *_FLAGS, source])
        key = hashlib.sha256(identity.encode()).hexdigest()[:32]

        def make(path: Path) -> None:
            text = path.with_suffix(".cu")
            text.write_text(source)
            command = [self.path, *_FLAGS, f"-arch={arch}", "-o", str(path), str(text)]
            told = subprocess.run(
                command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
            )
            if told.returncode:
                lines = [
                    line for line in told.stderr.splitlines() if re.search("error|fatal", line)
                ]
                raise BackendError(
                    "SPECC-E0456", f"nvcc failed on {where}", where=self.path,
                    found="; ".join(lines[:3])[:400] or f"exit code {told.returncode}",
                    cure="see `nvcc --version`: an architecture may be newer than it; or leave out --backend tvm",
                )  # fmt: skip

        return Pieces("tvm").get(f"{key}.cubin", make).read_bytes()


@lru_cache
def _version(path: str) -> str:
    """The line with its release; "" for what says none."""
    try:
        told = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, errors="replace"
        )  # fmt: skip
    except OSError:
        return ""
    lines = [line.strip() for line in told.stdout.splitlines() if "release" in line]
    return lines[-1] if lines and not told.returncode else ""
