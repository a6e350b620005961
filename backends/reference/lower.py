"""A program -> exported leaves and plans."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import ClassVar

import torch

from specc.backends.base import Device, Lowered, Progress
from specc.backends.exported_leaf import export_leaf
from specc.backends.plan import plans_of
from specc.errors import BackendError
from specc.ir import Function, Role, SpeculativeProgram

FOLDER = "leaves"


class ReferenceBackend:
    """Each leaf as a torch.export file; the plan calls them one by one (executor.py)."""

    name: ClassVar[str] = "reference"

    def ahead(self, device: Device) -> AbstractContextManager[None]:
        """There is nothing to make."""
        del device
        return nullcontext()

    def lower(
        self, program: SpeculativeProgram, into: Path, device: Device, progress: Progress
    ) -> Lowered:
        """Write leaves/NAME.pt2. Raises BackendError (SPECC-E0411) for a drafter that is C++ code."""
        del device
        if program.contract.host_drafter is not None:
            raise BackendError(
                "SPECC-E0411", f"the reference backend has no {program.contract.host_drafter} drafter",
                expected="none, or a method that drafts in the graph",
                cure="use --backend inductor, or --method none",
            )  # fmt: skip
        (into / FOLDER).mkdir(exist_ok=True)
        files = []
        with progress.phase("export leaves"):
            for function in program.functions.values():
                if function.role is Role.LEAF:
                    files.append(f"{FOLDER}/{function.name}.pt2")
                    _export(function, into / files[-1])
        return Lowered(
            tuple(files), plans_of(program), program.weights, {"torch": torch.__version__}
        )


def _export(function: Function, path: Path) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        exported, _ = export_leaf(function)
        torch.export.save(exported, path)
