"""CUDA C++ that TVM wrote, compiled for the CPU (simt.h): kernels are what nvcc gets, the machine is another."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from specc.backends.tvm.gpu.conversions import GpuConverter
from specc.backends.tvm.gpu.launches import device_code, scheduled, target
from specc.backends.tvm.kernels import lowered_for
from specc.ir import Function

_HERE = Path(__file__).parent
_KERNEL = re.compile(
    r'extern "C" __global__ void __launch_bounds__\((\d+)\) (\w+)\(([^)]*)\) \{', re.MULTILINE
)
_TYPES = {
    "f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "bool": torch.bool, "i32": torch.int32,
    "f16": torch.float16, "bf16": torch.bfloat16,
}  # fmt: skip


def build(source: str, into: Path) -> Path:
    """The shared library `into`: for each kernel NAME a function run_NAME(grid, arguments)."""
    calls = []
    for threads, name, parameters in _KERNEL.findall(source):
        types = [re.sub(r"__restrict__", "", p).rsplit(" ", 1)[0] for p in parameters.split(", ")]
        given = ", ".join(f"*static_cast<{t}*>(arguments[{i}])" for i, t in enumerate(types))
        calls.append(
            f'extern "C" void run_{name}(const unsigned* grid, void** arguments) {{\n'
            f"  simt::run(grid, {threads}, [=] {{ {name}({given}); }});\n}}"
        )
    begin = source.index('extern "C" __global__')
    # (In C++ `static` comes after alignment; CUDA's word for shared memory before.)
    kernels = source[begin:].replace("__shared__ alignas(64)", "alignas(64) static")
    text = "\n".join(['#include "simt.h"', kernels, *calls])
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-mf16c", f"-I{_HERE}", "-x", "c++", "-",
         "-o", into], input=text, text=True, check=True,
    )  # fmt: skip
    return into


class Player:
    """A leaf for an architecture, whose launches run on the CPU over torch's tensors, which state is written in."""

    def __init__(self, function: Function, folder: Path, arch: str = "sm_90") -> None:
        self.leaf = lowered_for(target(arch), function, GpuConverter, scheduled)
        self.code = device_code(self.leaf, arch)
        self.library = ctypes.CDLL(str(build(self.code.source, folder / f"{function.name}.so")))

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        rows = next(
            (x.shape[t.shape.index("T")] for x, t in zip(inputs, self.leaf.values, strict=False) if "T" in t.shape), 0
        )  # fmt: skip
        values: list[Any] = [*inputs, *[None] * (len(self.leaf.values) - len(inputs))]
        for step in self.leaf.steps:
            made = step.args[len(step.args) - step.made :]
            for value in made:
                type_ = self.leaf.values[value]
                shape = [rows if d == "T" else int(d) for d in type_.shape]
                known = values[step.args[0]].reshape(shape) if not step.kernel else None
                values[value] = (
                    torch.full(shape, 0x7F, dtype=_TYPES[type_.dtype]) if known is None else known
                )
            if step.kernel:
                self._launch(step, values, rows)
        return [values[i] for i in self.leaf.outputs]

    def _launch(self, step: Any, values: Sequence[torch.Tensor], rows: int) -> None:
        launch = self.code.launches[step.kernel]

        def number(text: str) -> int:
            return int(eval(text.replace("/", "//"), {"T": rows}))

        words = [
            ctypes.c_int64(
                values[step.args[a]].data_ptr() if isinstance(a, int) else number(a[8:-1])
            )
            for a in launch.arguments
        ]
        arguments = (ctypes.c_void_p * len(words))(*(ctypes.addressof(w) for w in words))
        grid = (ctypes.c_uint * 3)(*map(number, launch.grid))
        getattr(self.library, f"run_{launch.kernel}")(grid, arguments)
