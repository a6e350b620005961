"""Builds the double of CANN, an `atc` and a libascendcl, and runs its models by onnxruntime."""

from __future__ import annotations

import ctypes as c
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

ROOT = Path(__file__).parents[3]
GRAPHS = ROOT / "runtime/cpp/graphs"
SOC = "Ascend910B3"
DONE = (
    "ATC start working now, please wait for a moment.\nATC run success, welcome to the next use.\n"
)
ATC = f"""#!/bin/sh
for a in "$@"; do
  case "$a" in --output=*) OUT=${{a#--output=}};; --model=*) MODEL=${{a#--model=}};; esac
done
mkdir -p "${{OUT%/*}}/weight"
cp graphs/weight_* "${{OUT%/*}}/weight/" 2>/dev/null
printf "specc's fake OM\\n%s\\n" "$MODEL" > "$OUT.om"
cat <<'END'
{DONE}END
"""
"""An atc whose OMs say which ONNX model they stand for."""

_TYPES: dict[str, tuple[Any, int]] = {
    "tensor(float)": (np.float32, 0), "tensor(float16)": (np.float16, 1), "tensor(int32)": (np.int32, 3),
    "tensor(bool)": (np.bool_, 12),
}  # fmt: skip
LIVING = (
    "device", "pinned", "datasets", "buffers", "descriptions", "models", "configs", "contexts", "streams",
)  # fmt: skip
"""What must be given back."""
ALLOCATING = (
    "aclrtMalloc", "aclrtMallocHost", "aclmdlCreateDataset", "aclCreateDataBuffer", "aclmdlLoadWithConfig",
)  # fmt: skip
"""Calls that a round must not make."""


def install(home: Path, *flags: str) -> Path:
    """CANN's folder, with the double in it: what ASCEND_HOME_PATH names."""
    for folder in ("bin", "lib64"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    (home / "bin/atc").write_text(ATC)
    (home / "bin/atc").chmod(0o755)
    (home / "version.info").write_text("Version=8.5.0\n")
    build(Path(__file__).parent / "double.cpp", home / "lib64/libascendcl.so", *flags)
    return home


def build(source: Path, into: Path, *flags: str) -> None:
    """A shared library of one file, without a warning."""
    strict = ("-Wall", "-Wextra", "-Werror", f"-I{GRAPHS}")
    command = ["g++", "-std=c++20", "-O1", "-g1", "-fPIC", "-shared", *strict, *flags]
    done = subprocess.run([*command, str(source), "-o", str(into)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Double:
    """The NPU: sessions of onnxruntime behind the library in `home`. One for each process."""

    def __init__(self, home: Path) -> None:
        self.library = c.CDLL(str(home / "lib64/libascendcl.so"), mode=c.RTLD_GLOBAL)
        self.library.double_count.restype = c.c_long
        self._sessions: dict[int, Any] = {}
        self.read: dict[str, int] = {}
        """Where models read what, by the names of their inputs; of the last call that did."""
        pointers = c.POINTER(c.c_void_p)
        self._callbacks = (
            c.CFUNCTYPE(c.c_int32, c.c_uint32, c.c_char_p)(self._load),
            c.CFUNCTYPE(c.c_int32, c.c_uint32, pointers, pointers)(self._run),
        )
        self.library.double_play(*self._callbacks)

    def count(self, what: str) -> int:
        return int(self.library.double_count(what.encode()))

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        return {name: self.count(name) for name in names}

    def forget_calls(self) -> None:
        self.library.double_forget_calls()

    def _load(self, number: int, file: bytes) -> int:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        # Loading is what costs here.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            file.decode(), options, providers=["CPUExecutionProvider"]
        )
        self._sessions[number] = session
        for output, values in enumerate((session.get_inputs(), session.get_outputs())):
            for value in values:
                dtype, code = _TYPES[value.type]
                size = c.c_size_t(int(np.prod(value.shape)) * np.dtype(dtype).itemsize)
                self.library.double_value(
                    c.c_uint32(number), output, value.name.encode(), code, size
                )
        return 0

    def _run(self, number: int, given: Any, taken: Any) -> int:
        session = self._sessions[number]
        inputs = {v.name: _view(given[i], v) for i, v in enumerate(session.get_inputs())}
        self.read |= {name: given[i] for i, name in enumerate(inputs)}
        for i, (value, result) in enumerate(
            zip(session.get_outputs(), session.run(None, inputs), strict=True)
        ):
            _view(taken[i], value)[...] = result
        return 0


def _view(at: int, value: Any) -> Any:
    dtype = np.dtype(_TYPES[value.type][0])
    count = int(np.prod(value.shape)) * dtype.itemsize
    return np.frombuffer((c.c_char * count).from_address(at), dtype).reshape(value.shape)
