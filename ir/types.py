"""Tensor types as programs print them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

HALVES = ("f16", "bf16")
"""Floats of 16 bits."""

Dim = int | str
"""A number, `"T"` (rows of this call) or `"S"` (rows a cache holds)."""


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of `dtype`, as in `f32`."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of a value."""

    dtype: str
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def at(self, **dims: int) -> tuple[int, ...]:
        """The shape with named dimensions replaced; raises KeyError for one not given."""
        return tuple(dims[d] if isinstance(d, str) else d for d in self.shape)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorType:
        """The type of a real tensor."""
        return cls(dtype_name(tensor.dtype), tuple(tensor.shape))


def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return DTYPES[dtype].itemsize
