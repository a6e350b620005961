"""Reads machine code for NVIDIA's GPUs: by ELF's own rules, and by NVIDIA's cuobjdump, which comes with Triton."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import triton

EM_CUDA = 190  # e_machine of NVIDIA's cubins (elf.h)
ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def images(data: bytes) -> Iterator[bytes]:
    """Each cubin in `data`, whole: an ELF file ends with its tables."""
    for found in re.finditer(rb"\x7fELF\x02\x01", data):
        start = found.start()
        header = ELF_HEADER.unpack_from(data, start)
        if header[2] == EM_CUDA:
            end = max(header[6] + header[11] * header[12], header[5] + header[9] * header[10])
            yield data[start : start + end]


def cubins(data: bytes) -> Iterator[tuple[int, list[str]]]:
    """Of each cubin in `data`: its architecture, and its kernels, which are the sections .text.NAME.

    (The architecture is the low byte of the flags, since version 8 of NVIDIA's ABI the second.)
    """
    for image in images(data):
        header = ELF_HEADER.unpack_from(image)
        table, flags, (size, count, names) = header[6], header[7], header[11:14]
        sections = [SECTION.unpack_from(image, table + i * size) for i in range(count)]
        strings = sections[names][4]
        called = (
            image[strings + s[0] : image.index(b"\0", strings + s[0])].decode() for s in sections
        )
        arch = flags >> 8 if header[0][8] >= 8 else flags
        yield arch & 0xFF, [n.removeprefix(".text.") for n in called if n.startswith(".text.")]


def sass(cubin: bytes) -> str:
    """The assembly of `cubin`."""
    return _told("-sass", cubin)


def listed(cubin: bytes) -> tuple[str, list[str]]:
    """The architecture of `cubin` and its kernels, without the work of disassembling them."""
    (arch,) = re.findall(r"\.(sm_\w+)\.cubin$", _told("-lelf", cubin), re.MULTILINE)
    return arch, re.findall(r"STT_FUNC\s+STB_GLOBAL\s+STO_ENTRY\s+(\S+)", _told("-symbols", cubin))


def _told(option: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [TOOL, option, file.name], capture_output=True, text=True, check=True
        ).stdout
