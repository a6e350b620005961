"""A training that begins with the weights of a drafter that `specc distill` wrote before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor

from specc.distill.export import Exporting
from specc.distill.target import Teacher
from specc.errors import ModelError
from specc.ir.importers.drafters import load_drafter

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, eq=False)
class Beginning:
    """The tensors of a drafter's files, and the ids that it may say: i64[N], ascending, None for all."""

    folder: Path
    tensors: dict[str, Tensor]
    ids: Tensor | None


def read_beginning(folder: Path, method: str, teacher: Teacher) -> Beginning:
    """Read the drafter in `folder`. Raises SpeccError for what is no drafter of `method` for this target."""
    load_drafter(folder, teacher.facts, method)
    tensors = (
        load_file(folder / "model.safetensors") if (folder / "model.safetensors").is_file() else {}
    )
    if not tensors:
        raise _unlike(folder, "model.safetensors, as specc distill writes it", "other files")
    known = tensors.get("t2d")
    return Beginning(folder, tensors, None if known is None else known.nonzero().squeeze(-1))


def begin(student: Exporting, beginning: Beginning, teacher: Teacher, taps: Sequence[int]) -> None:
    """Give every parameter of `student` the value that it has in the files."""
    views = student.exported(teacher, 1, tuple(taps), full_head=False).tensors
    given = beginning.tensors
    with torch.no_grad():
        left = {p.data_ptr(): name for name, p in student.module.named_parameters()}
        for name, view in views.items():
            if view.data_ptr() not in left:
                continue  # tables of ids, rows of the target's head
            if name not in given or given[name].shape != view.shape:
                found = tuple(given[name].shape) if name in given else "none"
                raise _unlike(beginning.folder, f"{name} of {tuple(view.shape)}", str(found))
            view.copy_(given[name])
            del left[view.data_ptr()]
    if left:
        raise _unlike(beginning.folder, f"a tensor for {min(left.values())}", "none")


def _unlike(folder: Path, expected: str, found: str) -> ModelError:
    return ModelError(
        "SPECC-E0287", "training cannot begin with this drafter: it has other tensors", where=str(folder),
        expected=expected, found=found,
        cure="give --intermediate-size and --method as they were, or leave out --init",
    )  # fmt: skip
