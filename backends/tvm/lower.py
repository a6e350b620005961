"""A program -> model.so of TVM's kernels, libspecc.so, plans and packed weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import ClassVar

import tvm
import tvm_ffi

from specc.backends.base import Device, Lowered, Progress
from specc.backends.pack_weights import pack_weights, unpacked
from specc.backends.plan import plans_of
from specc.backends.toolchain import Toolchain
from specc.backends.tvm import conversions as _conversions
from specc.backends.tvm.kernels import Kernels, compile_kernels, lowered
from specc.backends.tvm.table import leaf_table
from specc.cache import Pieces
from specc.ir import Role, SpeculativeProgram

assert _conversions  # registers what operations become


class TvmBackend:
    """Relax for leaves, TIR for what matters, the same engine around them."""

    name: ClassVar[str] = "tvm"

    def ahead(self, device: Device) -> AbstractContextManager[None]:
        """Compile kernels and engine while the model is imported."""
        return Toolchain(device.isa).ahead()

    def lower(
        self, program: SpeculativeProgram, into: Path, device: Device, progress: Progress
    ) -> Lowered:
        """Write model.so, lib/libspecc.so and include/specc.h under `into`.

        Raises BackendError: SPECC-E0441 for an operation that has no form in TVM, by name, E0442 where TVM fails,
        E0443 for a lost write to state, E0403/E0404 for the C++ compiler; for a GPU what `gpu.lower` raises.
        """
        if device.gpu:
            from specc.backends.tvm.gpu.lower import lower

            return lower(program, into, device, progress)
        if slow := unpacked(program):
            shown = ", ".join(slow[:3]) + (", ..." if len(slow) > 3 else "")
            progress.note(f"slow products: {len(slow)} matrices cannot be packed ({shown})")
        packed = pack_weights(program)
        chain = Toolchain(device.isa)
        with chain.at_work() as start:
            engine, model = start(chain.engine()), start(chain.kernels())
            with progress.phase("lower leaves through Relax"):
                leaves = [
                    lowered(f, device.isa) for f in packed.functions.values() if f.role is Role.LEAF
                ]
            table = leaf_table(leaves, device.isa)
            include = [Path(p) for p in tvm_ffi.libinfo.include_paths()]
            model += start(chain.player("tvm", table, include=include))
            with progress.phase(f"compile for {device.isa}"):
                objects = _objects(leaves, device.isa)
                model_objects, engine_objects = (
                    [f.result() for f in part] for part in (model, engine)
                )
        files = chain.write(into, [*model_objects, *objects], engine_objects, static=device.static)
        return Lowered(
            files, plans_of(packed), packed.weights,
            {"tvm": tvm.__version__, "tvm_ffi": tvm_ffi.__version__, "compiler": chain.version}, lossless=True,
        )  # fmt: skip


def _objects(leaves: Sequence[Kernels], isa: str) -> list[Path]:
    """The kernels of each leaf, from the cache if they were compiled before."""
    pieces, found = Pieces("tvm"), {}
    for leaf in leaves:
        identity = "\0".join([leaf.text(), isa, tvm.__version__])
        key = hashlib.sha256(identity.encode()).hexdigest()[:32]
        found[key] = pieces.get(f"{key}.o", partial(compile_kernels, leaf, isa))
    return list(found.values())
