"""A program -> model.so with machine code for one GPU architecture by TVM and nvcc, libspecc.so, plans and weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tvm

from specc.backends import TRITON
from specc.backends.base import Device, Lowered, Progress
from specc.backends.cuda.lower import cuda_table, facts, multiplied, prepared
from specc.backends.nvcc import Nvcc
from specc.backends.toolchain import Object, Toolchain
from specc.backends.tvm.gpu.launches import device_code, scheduled, target
from specc.backends.tvm.gpu.leaf import leaf_source
from specc.backends.tvm.kernels import lowered_for
from specc.ir import SpeculativeProgram


def lower(program: SpeculativeProgram, into: Path, device: Device, progress: Progress) -> Lowered:
    """Write model.so, lib/libspecc.so and include/specc.h under `into`.

    The plans, and what the engine does with them, are those of `backends/cuda`: leaves on the GPU, one wait a round.
    Raises BackendError: SPECC-E0441 for an operation that TVM has no form of on a GPU, by name, E0442 where TVM fails,
    E0443 for a lost write to state, E0452 for an operation without a form on any GPU, E0455 and E0456 for nvcc,
    E0403/E0404 for the C++ compiler.
    """
    compiler = Nvcc()
    program, plans, used = prepared(program)
    # (It needs the operations that Triton's kernels define.)
    from specc.backends.tvm.gpu.conversions import GpuConverter

    chain, launches, kernels = Toolchain(device.isa), {}, 0

    def generated() -> Iterator[Object]:
        nonlocal kernels
        for number, function in enumerate(used):
            leaf = lowered_for(target(device.gpu), function, GpuConverter, scheduled)
            code = device_code(leaf, device.gpu)
            launches[leaf.name] = sum(bool(step.kernel) for step in leaf.steps)
            kernels += len(code.launches)
            cubin = compiler.cubin(code.source, device.gpu, leaf.name)
            yield chain.launching(leaf_source(leaf, code, cubin, number), f"leaf{number}")

    files = chain.build(
        into, [*chain.kernels(), *chain.player("cuda", cuda_table(used, device))], generated(), progress,
        f"generate {device.gpu} code for {len(used)} leaves",
    )  # fmt: skip
    progress.note("nothing of this has been verified on a GPU by whoever built specc")
    return Lowered(
        files, plans, program.weights,
        {"tvm": tvm.__version__, "nvcc": compiler.version, "triton": TRITON, "compiler": chain.version},
        cuda={**facts(device.gpu, launches, kernels, plans), "dtype": multiplied(program)},
    )  # fmt: skip
