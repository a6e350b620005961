"""A program -> model.so, libspecc.so, plans and packed weights."""

from __future__ import annotations

import hashlib
import re
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch

from specc.backends.base import Device, Lowered, Progress
from specc.backends.inductor import leaves
from specc.backends.pack_weights import pack_weights, unpacked
from specc.backends.plan import plans_of
from specc.backends.toolchain import Toolchain
from specc.cache import Pieces, inductor_settings
from specc.errors import BackendError
from specc.ir import Function, Role, SpeculativeProgram
from specc.ir.printer import function_lines
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
        return Toolchain(device.isa).ahead()

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
        with chain.at_work() as start:
            # What needs no Inductor is compiled while Inductor, on one core, writes the leaves.
            with progress.phase(f"generate code for {len(used)} leaves"):
                model = start([chain.table([f.name for f in used]), *chain.kernels()])
                engine = start(chain.engine())
                for number, function in enumerate(used):
                    source = _source(function, device.isa)
                    _refuse_missing(function, source)
                    model += start([chain.leaf(source, f"leaf{number}")])
            with progress.phase(f"compile for {device.isa}"):
                model_objects, engine_objects = (
                    [f.result() for f in part] for part in (model, engine)
                )
        return Lowered(
            chain.write(into, model_objects, engine_objects, static=device.static), plans_of(packed), packed.weights,
            {"torch": torch.__version__, "compiler": chain.version}, lossless=True,
        )  # fmt: skip


def _source(function: Function, isa: str) -> str:
    """Generated C++ of `function`, from the cache if this text was compiled before."""
    pieces = Pieces("leaves")
    name = f"{_identity(function, isa)}.cpp"
    return pieces.get(name, lambda p: p.write_text(leaves.generate(function, isa))).read_text()


def _identity(function: Function, isa: str) -> str:
    """Names what `leaves.generate` is given, the function's name aside: equal leaves are generated once."""
    text = function_lines(replace(function, name="leaf"))
    generator = Path(leaves.__file__).read_text()
    options = sorted(map(str, leaves.options(isa, "").items()))
    identity = "\0".join([*text, isa, torch.__version__, generator, *options, *inductor_settings()])
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def shim_names() -> set[str]:
    """The functions that the runtime offers to compiled leaves."""
    text = "".join(p.read_text() for p in (sources.CPP / "model").glob("*.cpp"))
    return set(re.findall(r"SPECC_SHIM\((\w+)\)", text))


def _refuse_missing(function: Function, source: str) -> None:
    """An operation that Inductor hands to libtorch, and that the runtime does not have, is an error here."""
    missing = set(re.findall(r"\b(aoti_torch_cpu_\w+)\s*\(", source)) - shim_names()
    proxied = re.findall(r'proxy_executor_call_function\([^)]*"?([\w:.]+)?', source)
    if missing or proxied:
        names = sorted(n.removeprefix("aoti_torch_cpu_").removesuffix("_out") for n in missing)
        raise BackendError(
            "SPECC-E0405",
            f"the runtime has no kernel for {', '.join(names) or 'an operation Inductor does not compile'}",
            where=function.name,
            cure="try --backend reference, and report the model's architecture",
        )
