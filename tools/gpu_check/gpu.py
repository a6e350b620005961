"""The GPU of this machine, as NVIDIA's driver describes it."""

from __future__ import annotations

import ctypes as c
import os
from dataclasses import dataclass

from specc import flags

_MAJOR, _MINOR, _MEMORY_KHZ, _BUS_BITS = 75, 76, 36, 37  # CUdevice_attribute of cuda.h


@dataclass(frozen=True)
class Gpu:
    """`arch` as in sm_90; `bandwidth` in bytes a second, 0 where the driver does not tell clocks any more."""

    name: str
    arch: str
    bandwidth: float


def find_gpu() -> Gpu | None:
    """The GPU that artifacts open (SPECC_CUDA_DEVICE, else the first); None without a driver or a GPU.

    Raises UsageError (SPECC-E0103) for a SPECC_CUDA_DEVICE that is no number.
    """
    ordinal = _ordinal(os.environ.get("SPECC_CUDA_DEVICE") or "0")
    try:
        driver = c.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = c.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(c.byref(device), ordinal):
        return None
    name = c.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), device)

    def told(attribute: int) -> int:
        value = c.c_int()
        failed = driver.cuDeviceGetAttribute(c.byref(value), attribute, device)
        return 0 if failed else value.value

    # Both edges of the clock carry data.
    bandwidth = 2 * told(_MEMORY_KHZ) * 1e3 * told(_BUS_BITS) / 8
    return Gpu(name.value.decode(), f"sm_{told(_MAJOR)}{told(_MINOR)}", bandwidth)


def _ordinal(text: str) -> int:
    """As the runtime reads it (runtime/cpp/cuda/border.cpp)."""
    if text.isascii() and text.isdecimal() and int(text[:9]) < 1024:
        return int(text)
    raise flags.bad_value("SPECC_CUDA_DEVICE", "0 to 1023", text, "correct or unset it")
