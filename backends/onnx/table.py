"""Which ONNX operators CANN's parser takes, at which opsets: data with its source, ops.json."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

OPSETS = (11, 18)
"""Opsets of ai.onnx that CANN documents, first and last; 8.0 ends with 15."""

DEFAULT_OPSET = 15
"""What every documented release takes. A decoder needs nothing newer."""


@lru_cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files(__package__) / "ops.json").read_text())
    return found


def source() -> str:
    """Where the table comes from."""
    return str(_table()["source"])


def refusal(op: str, opset: int) -> str:
    """Why the operator `op` may not be used at `opset`; empty if it may."""
    entry = _table()["ops"].get(op)
    if entry is None:
        return f"{op} is not in the table of operators"
    first, last = entry["opsets"]
    if not first <= opset <= last or opset in entry.get("gaps", ()):
        return f"{op} is registered for opsets {first} to {last}, not {opset}"
    return ""
