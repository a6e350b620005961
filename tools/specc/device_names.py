"""Names of devices, as --device takes them."""

from __future__ import annotations

import re

from specc import flags
from specc.errors import UsageError

ONNX, ASCEND, CUDA = "onnx", "ascend", "cuda"
CUDA_ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
"""Of data centres and workstations since Ampere: what Triton writes code for and `backends/cuda/fakes.py` describes."""


def kind_of(device: str) -> str:
    """cpu, cuda, onnx or ascend."""
    return device.partition(":")[0]


def check_device_name(device: str) -> None:
    """Raise UsageError for what is no device: cpu, onnx, ascend:SOC or cuda:ARCH."""
    kind, _, soc = device.partition(":")
    if kind == CUDA:
        if soc not in CUDA_ARCHS:
            raise UsageError(
                "SPECC-E0113", f"--device {device} names no GPU architecture that specc compiles for",
                expected=f"--device {', '.join(f'{CUDA}:{a}' for a in CUDA_ARCHS)}", found=device,
                cure="take the compute capability of the GPU that will run it: 9.0 is sm_90",
            )  # fmt: skip
        return
    if kind not in ("cpu", ONNX, ASCEND) or (kind != ASCEND and device != kind):
        raise UsageError(
            "SPECC-E0113", f"--device {device} is not built yet",
            expected="--device cpu, onnx, ascend:SOC or cuda:ARCH", cure="leave it out",
        )  # fmt: skip
    if kind == ASCEND:
        check_soc(soc)


def check_soc(soc: str) -> None:
    """Raise UsageError for what cannot be a chip's name, as `npu-smi info` and `atc --soc_version` spell them."""
    if re.fullmatch(r"Ascend\d{3}[A-Za-z0-9_]*", soc) and soc != "Ascend910B":
        return
    raise flags.bad_value(
        "--device", "ascend:SOC with the chip's whole name, as in Ascend910B3, Ascend310P3 or Ascend910_9391",
        f"ascend:{soc}", cure="take it from `npu-smi info`: Ascend and the column Name",
    )  # fmt: skip
