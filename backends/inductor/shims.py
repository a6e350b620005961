"""The C functions that leaves call instead of ATen: packed products and lookups, caches, attention."""

from __future__ import annotations

import re

from specc.ir.dialect import ops

_SHIMS = {
    "linear": "H x, H w, H* bias, int64_t n, const char* encoding, H* result",
    "embedding": "H tokens, H w, int64_t n, int64_t k, const char* encoding, H* result",
    # Inductor passes a place for a result even to an operation that has none.
    "cache_write": "H cache, H x, H rows, H* none",
    "cached_attention": "H q, H k_cache, H v_cache, H positions, H rows, H* parents, double scale, "
    "int64_t window, double softcap, H* sinks, H* result",
}
"""C arguments of each shim; H stands for AtenTensorHandle, optional tensors are pointers."""


def c_shims() -> dict[object, list[str]]:
    """The C function that Inductor's wrapper calls for each operation, as its option wants it."""
    declarations = {}
    for name, arguments in _SHIMS.items():
        typed = re.sub(r"\bH\b", "AtenTensorHandle", arguments)
        operation = getattr(ops, name).default
        declarations[operation] = [f"AOTITorchError aoti_torch_cpu_{name}({typed})"]
    return declarations
