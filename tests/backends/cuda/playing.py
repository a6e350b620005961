"""The double of NVIDIA's driver, and programs of ours that play on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def build_double(into: Path) -> None:
    """The library `into`, which must be called libcuda.so.1."""
    source = Path(__file__).parent / "nullgpu.cpp"
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcuda.so.1",
         f"-I{ROOT / 'runtime/cpp/cuda'}", source, "-o", into], check=True,
    )  # fmt: skip


def python(*arguments: str, given: str = "", **environment: str) -> str:
    """What a program of ours prints; it must succeed."""
    result = subprocess.run(
        [sys.executable, "-m", *arguments], input=given, text=True, capture_output=True, check=False,
        cwd=ROOT, env={**os.environ, **environment},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout
