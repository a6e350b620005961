"""Matrices among an artifact's weights that are stored in an encoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specc.runtime.fields import Field, damaged


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix among the weights: its encoding (ir/encodings.py), and its shape without it."""

    encoding: str
    rows: int
    columns: int


def read_packed(at: Field) -> dict[str, PackedMatrix]:
    """By the names of weights. Raises ArtifactError (SPECC-E0502) for what is no matrix."""
    return {} if at.value is None else {name: _matrix(field) for name, field in at.entries()}


def reduced(packed: Mapping[str, PackedMatrix], *, drafter: bool) -> tuple[str, ...]:
    """Encodings of fewer than 32 bits, in order of their names.

    `drafter`: where a drafter's weights alone are in them, which changes no text; else where the target's are too.
    """
    found = {name: matrix.encoding for name, matrix in packed.items() if matrix.encoding != "f32"}
    alone = all(name.startswith("draft.") for name in found)
    return tuple(sorted(set(found.values()))) if alone is drafter else ()


def _matrix(at: Field) -> PackedMatrix:
    shape = at["shape"].integers(1)
    if len(shape) != 2:
        raise damaged(f"{at.path}.shape", "rows and columns", str(shape))
    return PackedMatrix(at["encoding"].string(), *shape)
