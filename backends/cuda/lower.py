"""A program -> model.so with cubins for one architecture, libspecc.so, plans and weights."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

import torch

from specc.backends import TRITON
from specc.backends.base import Device, Lowered, Progress
from specc.backends.cuda import fakes, leaves
from specc.backends.cuda.placement import FETCH, UPLOAD, placed
from specc.backends.inductor_leaf import identity_of, kept
from specc.backends.plan import Plan, plans_of
from specc.backends.toolchain import Object, Toolchain, leaf_table
from specc.errors import BackendError
from specc.ir import Function, Role, SpeculativeProgram
from specc.ir.types import HALVES

_KERNELS = ("specc.backends.cuda.packed", "specc.backends.cuda.trees")
"""What leaves call, with what they import; named, since they need Triton."""
_LAUNCH = re.compile(r"^\s+call_\w+\(", re.MULTILINE)


class CudaBackend:
    """AOTInductor and Triton for leaves on the GPU, the engine and verdicts on the CPU beside it."""

    name: ClassVar[str] = "cuda"

    def ahead(self, device: Device) -> AbstractContextManager[None]:
        """Compile kernels and engine while the model is imported. Raises BackendError (SPECC-E0451, E0403)."""
        fakes.require()
        chain = Toolchain(device.isa)
        first = chain.calling('#include "leaf_cuda.h"', "empty")  # whose headers are all leaves'
        return chain.ahead(first)

    def lower(
        self, program: SpeculativeProgram, into: Path, device: Device, progress: Progress
    ) -> Lowered:
        """Write model.so, lib/libspecc.so and include/specc.h under `into`.

        Raises BackendError: SPECC-E0402 where Inductor fails, E0403/E0404 for the C++ compiler, E0405 and E0452 for an
        operation that has no form on a GPU, by name, E0451 for another torch or Triton.
        """
        program, plans, used = prepared(program)
        chain = Toolchain(device.isa)
        texts: dict[str, str] = {}

        def generated() -> Iterator[Object]:
            for number, function in enumerate(used):
                texts[function.name] = source_of(function, device.gpu)
                yield chain.calling(texts[function.name], f"leaf{number}")

        files = chain.build(
            into, [*chain.kernels(), *chain.player("cuda", cuda_table(used, device))], generated(), progress,
            f"generate {device.gpu} code for {len(used)} leaves",
        )  # fmt: skip
        progress.note("nothing of this has been verified on a GPU by whoever built specc")
        return Lowered(
            files, plans, program.weights,
            {"torch": torch.__version__, "triton": TRITON, "compiler": chain.version},
            cuda={**facts(device.gpu, launches_of(texts), kernels_in(texts), plans), "dtype": multiplied(program)},
        )  # fmt: skip


def prepared(
    program: SpeculativeProgram,
) -> tuple[SpeculativeProgram, dict[str, Plan], list[Function]]:
    """The program in CUDA's form, its plans with what lies where, and the leaves that they call.

    Raises BackendError: SPECC-E0451 for another torch or Triton, E0452 for an operation without a form on a GPU.
    """
    fakes.require()
    # (Triton is there: its kernels define the operations that the form is made of.)
    from specc.backends.cuda.forms import cuda_form

    program = cuda_form(program)
    known = {f.name: f for f in program.functions.values() if f.role is Role.LEAF}
    plans = {name: placed(plan, known) for name, plan in plans_of(program).items()}
    called = {i.entry for plan in plans.values() for i in plan.instructions}
    return program, plans, [f for f in known.values() if f.name in called]


def multiplied(program: SpeculativeProgram) -> str:
    """What matrices are of: one type, or f32 (the pass halve-products leaves no other)."""
    stored = {weight.type.dtype for weight in program.weights.values()}
    return next((dtype for dtype in HALVES if dtype in stored), "f32")


def source_of(function: Function, arch: str) -> str:
    """Generated C++ of `function`, from the cache if this text was compiled before."""
    return kept(_identity(function, arch), lambda: leaves.generate(function, arch))


def _identity(function: Function, arch: str) -> str:
    options = sorted(map(str, leaves.options("").items()))
    settings = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("TRITON_"))
    return identity_of(function, (leaves.__name__, *_KERNELS), (arch, TRITON, *options, *settings))


def cuda_table(used: list[Function], device: Device) -> str:
    """The generated list of leaves, and of what carries values between host and GPU."""
    known = ", ".join(str(arch.capability) for arch in fakes.ARCHS.values())
    carried = {UPLOAD: "run_upload", FETCH: "run_fetch"}
    return (
        f'#include "border.h"\nextern const char specc_cuda_arch[] = "{device.gpu}";\n'
        f"extern const int specc_cuda_archs[] = {{{known}, 0}};\n"
        + leaf_table([f.name for f in used], device.isa, carried)
    )


def launches_of(texts: Mapping[str, str]) -> dict[str, int]:
    """Of each leaf that Inductor wrote, how many kernels a run launches."""
    return {
        name: len(_LAUNCH.findall(text[text.index("::run_impl(") :]))
        for name, text in texts.items()
    }


def kernels_in(texts: Mapping[str, str]) -> int:
    """How many kernels these leaves have, all together."""
    return sum(
        text.count("alignas(16) static const unsigned char cubin_") for text in texts.values()
    )


def facts(
    arch: str, launches: Mapping[str, int], kernels: int, plans: Mapping[str, Plan]
) -> dict[str, object]:
    """What the manifest says of the GPU's part. `launches` by leaf; those of `functions` are those of one call."""
    if not all(launches.values()):
        empty = next(n for n, count in launches.items() if not count)
        raise BackendError(
            "SPECC-E0402", f"no kernel was written for {empty}", where=empty, cure="report the model"
        )  # fmt: skip
    calls = {
        name: {
            "launches": sum(launches.get(i.entry, 0) for i in plan.instructions),
            "waits": sum(i.entry == FETCH for i in plan.instructions),
        }
        for name, plan in plans.items()
    }
    return {"arch": arch, "kernels": kernels, "functions": calls, "verified_on_gpu": False}
