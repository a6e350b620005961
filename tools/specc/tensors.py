"""What a safetensors file holds, from its header alone: neither torch nor a tensor is loaded."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_MOST_HEADER = 100 << 20
"""The format's own limit."""


def header(path: Path) -> dict[str, Any]:
    """Dtype, shape and data_offsets of each tensor by name.

    For a file of another kind raises what reading it does: OSError, ValueError, struct.error, TypeError or
    AttributeError.
    """
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _MOST_HEADER:
            raise ValueError(f"{path.name} is no safetensors file")
        found: dict[str, Any] = json.loads(file.read(length))
    found.pop("__metadata__", None)
    return found
