"""A program -> model.so, libspecc.so, plans and packed weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

import torch

from specc.backends.base import Device, Lowered, Progress
from specc.backends.inductor import leaves
from specc.backends.inductor_leaf import identity_of, kept, refuse_missing
from specc.backends.pack_weights import pack_weights, unpacked
from specc.backends.plan import plans_of
from specc.backends.toolchain import Object, Toolchain
from specc.errors import BackendError
from specc.ir import Function, Role, SpeculativeProgram
from specc.runtime import sources

TORCH = "2.13"
"""The release whose generated code the shim knows; others are refused (tests report how far newer ones drift)."""


class InductorBackend:
    """AOTInductor for leaves, specc's kernels for what matters, plans for the rest."""

    name: ClassVar[str] = "inductor"

    def ahead(self, device: Device) -> AbstractContextManager[None]:
        """Compile kernels and engine on one core while the model is imported; `lower` finds them in the cache.

        Raises BackendError (SPECC-E0403) if there is no C++ compiler.
        """
        chain = Toolchain(device.isa)
        return chain.ahead(chain.leaf("", "empty"))  # whose headers are all leaves'

    def lower(
        self, program: SpeculativeProgram, into: Path, device: Device, progress: Progress
    ) -> Lowered:
        """Write model.so, lib/libspecc.so and include/specc.h under `into`.

        Raises BackendError: SPECC-E0402 where Inductor fails, E0403/E0404 for the C++ compiler, E0405 for an operation
        that the runtime does not have, by name, E0406 for another torch.
        """
        if not torch.__version__.startswith(TORCH + "."):
            raise BackendError(
                "SPECC-E0406", "the inductor backend needs the torch whose code its runtime knows",
                expected=f"torch {TORCH}.x", found=torch.__version__, cure=f"pip install torch=={TORCH}.0",
            )  # fmt: skip
        if slow := unpacked(program):
            shown = ", ".join(slow[:3]) + (", ..." if len(slow) > 3 else "")
            progress.note(f"slow products: {len(slow)} matrices cannot be packed ({shown})")
        packed = pack_weights(program)
        used = [f for f in packed.functions.values() if f.role is Role.LEAF]
        chain = Toolchain(device.isa)

        def generated() -> Iterator[Object]:
            for number, function in enumerate(used):
                source = _source(function, device.isa)
                _refuse_missing(function, source)
                yield chain.leaf(source, f"leaf{number}")

        files = chain.build(
            into, [chain.table([f.name for f in used]), *chain.kernels()], generated(), progress,
            f"generate code for {len(used)} leaves", static=device.static,
        )  # fmt: skip
        return Lowered(
            files, plans_of(packed), packed.weights,
            {"torch": torch.__version__, "compiler": chain.version}, lossless=True,
        )  # fmt: skip


def _source(function: Function, isa: str) -> str:
    """Generated C++ of `function`, from the cache if this text was compiled before."""
    return kept(_identity(function, isa), lambda: leaves.generate(function, isa))


def _identity(function: Function, isa: str) -> str:
    options = sorted(map(str, leaves.options(isa, "").items()))
    return identity_of(function, (leaves.__name__,), (isa, *options))


def shim_names() -> set[str]:
    """The functions that the runtime offers to compiled leaves."""
    text = "".join(p.read_text() for p in (sources.CPP / "model").glob("*.cpp"))
    return set(re.findall(r"SPECC_SHIM\((\w+)\)", text))


def _refuse_missing(function: Function, source: str) -> None:
    missing = set(re.findall(r"\b(aoti_torch_cpu_\w+)\s*\(", source)) - shim_names()
    if "proxy_executor_call_function(" in source:
        missing.add("")
    refuse_missing(function.name, missing, "", leaves.INSTEAD)
