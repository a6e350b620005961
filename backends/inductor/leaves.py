"""One leaf -> C++ source, by AOTInductor."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch

from specc.backends.exported_leaf import export_leaf
from specc.backends.inductor.shims import c_shims
from specc.backends.inductor_leaf import (
    CONTAINER,
    INPUT_CHECKS,
    OPTIONS,
    quiet,
    refuse_form,
    refusing,
)
from specc.ir import Function

INSTEAD = "--backend reference"
"""What to try where Inductor fails."""

VECTOR_BITS = {"x86-64-v3": 256, "x86-64-v4": 512, "armv8-a": 128}


def generate(function: Function, isa: str) -> str:
    """The C++ source of `function` for any number of rows, including one.

    Nothing is specialised on T: the example has 8 rows, the dimension is exported as 2 or more, and the code that comes
    out never tests it, so one row runs the same instructions (tests compare them bit for bit).
    Raises BackendError if Inductor cannot compile it.
    """
    with quiet(), tempfile.TemporaryDirectory() as folder, _vector_isa(isa), torch.no_grad():
        with refusing(function.name, INSTEAD):
            exported, example = export_leaf(function)
            torch._inductor.aot_compile(exported.module(), example, options=options(isa, folder))
        (source,) = Path(folder).glob("*.wrapper.cpp")
        return _lean(_private_kernels(source.read_text()), function.name)


def options(isa: str, folder: str) -> dict[str, object]:
    """What Inductor is told; its files go to `folder`."""
    return OPTIONS | {
        "aot_inductor.output_path": folder + "/",
        "aot_inductor.custom_ops_to_c_shims": c_shims(),
        # Pointwise work is small next to the products, which use the runtime's own threads.
        "cpp.threads": 1,
        "cpp.simdlen": VECTOR_BITS[isa],
    }


@contextlib.contextmanager
def _vector_isa(isa: str) -> Iterator[None]:
    """Let Inductor vectorise for `isa`, whatever this machine has."""
    from torch._inductor import cpu_vec_isa

    known = {128: cpu_vec_isa.VecNEON, 256: cpu_vec_isa.VecAVX2, 512: cpu_vec_isa.VecAVX512}
    chosen = known[VECTOR_BITS[isa]]()
    with mock.patch.object(cpu_vec_isa, "valid_vec_isa_list", return_value=[chosen]):
        yield


def _private_kernels(source: str) -> str:
    """Kernels of different leaves have the same names; keep them inside their file."""
    return re.sub(r'extern "C"\s+void\s+cpp_', "static void cpp_", source)


def _lean(source: str, name: str) -> str:
    """The leaf on the runtime's `leaf.h` in place of torch's container.

    Raises BackendError (SPECC-E0402) for a text that is not as expected, or a leaf that brings constants.
    """
    lean, headers = CONTAINER.subn('#include "leaf.h"\n', source)
    lean, checks = INPUT_CHECKS.subn("", lean)
    if headers != 1 or checks != 1 or "constants_info_[" in lean:
        raise refuse_form(
            name, "a container, input checks and no constants",
            f"{headers} containers, {checks} checks, {lean.count('constants_info_[')} facts of constants", INSTEAD,
        )  # fmt: skip
    return lean
