"""Weights as external data of ONNX models: a file for each content, named by its hash."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from specc.errors import BackendError
from specc.ir import WeightStore

_NUMBERS = {
    "f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16,
    "i64": TensorProto.INT32, "i32": TensorProto.INT32, "bool": TensorProto.BOOL,
}  # fmt: skip
_TORCH = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int32,
    "i32": torch.int32, "bool": torch.bool,
}  # fmt: skip
_INLINE = 1024
"""Bytes below which a weight stays in the model: a file would cost more than it saves."""


def dtype_number(dtype: str) -> int:
    """ONNX's number; indices of 64 bits are int32 on the device. Raises BackendError (SPECC-E0423) for others."""
    if dtype not in _NUMBERS:
        raise BackendError(
            "SPECC-E0423", f"a graph holds values of {dtype}", expected=", ".join(_NUMBERS), cure="use --device cpu"
        )  # fmt: skip
    return int(_NUMBERS[dtype])


def numpy_of(tensor: torch.Tensor, dtype: str) -> np.ndarray[Any, Any]:
    """The bytes of `tensor` as the device's form of `dtype`, in an array of some type of that size.

    Integers beyond 32 bits, which stand for "the last" wherever programs have them, become the largest.
    """
    dtype_number(dtype)
    if not tensor.is_floating_point() and tensor.dtype is not torch.bool:
        tensor = tensor.clamp(-(2**31), 2**31 - 1)
    tensor = tensor.to(_TORCH[dtype]).contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy()
    return np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape)


class WeightFiles:
    """Writes weights beside the models, when the first model wants them; all others refer to the same file."""

    def __init__(self, weights: WeightStore, folder: Path) -> None:
        self.folder = folder
        self.files: list[str] = []
        self._weights = weights
        self._written: dict[str, onnx.TensorProto] = {}

    def load(self, name: str) -> torch.Tensor:
        """The weight itself."""
        return self._weights[name].load()

    def initializer(self, name: str) -> onnx.TensorProto:
        """The weight `name` as an initializer; equal contents have one name and one file."""
        weight = self._weights[name]
        if weight.packing is not None:
            raise BackendError(
                "SPECC-E0424", "quantised weights have no ONNX form yet", where=name, cure="leave out --quant"
            )  # fmt: skip
        if weight.key not in self._written:
            self._written[weight.key] = self._write(name, weight.load(), weight.type.dtype)
        return self._written[weight.key]

    def _write(self, name: str, tensor: torch.Tensor, dtype: str) -> onnx.TensorProto:
        array = numpy_of(tensor, dtype)
        shape, number = list(tensor.shape), dtype_number(dtype)
        if array.nbytes < _INLINE:
            return helper.make_tensor(name, number, shape, array.tobytes(), raw=True)
        digest = hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
        file = f"weight_{digest[:32]}"
        if file not in self.files:
            (self.folder / file).write_bytes(array.reshape(-1).view(np.uint8).data)
            self.files.append(file)
        found = TensorProto(
            name=name, data_type=number, dims=shape, data_location=TensorProto.EXTERNAL
        )
        # CANN's parser reads every other key than location as a number, so no checksum may stand here.
        for key, value in (("location", file), ("offset", "0"), ("length", str(array.nbytes))):
            found.external_data.add(key=key, value=value)
        return found
