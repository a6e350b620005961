"""What CUDA has no form for. Here, where Triton is not imported."""

from __future__ import annotations

from specc.errors import BackendError


def refusal(what: str, where: str, cure: str = "compile with --device cpu") -> BackendError:
    """What CUDA has no form for."""
    return BackendError(
        "SPECC-E0452", f"--device cuda has no form of {what}", where=where, cure=cure
    )
