"""One leaf -> C++ source, by AOTInductor."""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch

from specc.backends.exported_leaf import export_leaf
from specc.backends.inductor.shims import c_shims
from specc.errors import BackendError
from specc.ir import Function

VECTOR_BITS = {"x86-64-v3": 256, "x86-64-v4": 512}


def generate(function: Function, isa: str) -> str:
    """The C++ source of `function` for any number of rows, including one.

    Nothing is specialised on T: the example has 8 rows, the dimension is exported as 2 or more, and the code that comes
    out never tests it, so one row runs the same instructions (tests compare them bit for bit).
    Raises BackendError if Inductor cannot compile it.
    """
    with _quiet(), tempfile.TemporaryDirectory() as folder, _vector_isa(isa), torch.no_grad():
        try:
            exported, example = export_leaf(function)
            torch._inductor.aot_compile(exported.module(), example, options=options(isa, folder))
        except Exception as error:
            raise BackendError(
                "SPECC-E0402",
                f"Inductor cannot compile {function.name}: {str(error).splitlines()[0]}",
                where=function.name,
                cure="try --backend reference, and report the model",
            ) from error
        (source,) = Path(folder).glob("*.wrapper.cpp")
        return _lean(_private_kernels(source.read_text()), function.name)


def options(isa: str, folder: str) -> dict[str, object]:
    """What Inductor is told; its files go to `folder`."""
    return {
        "aot_inductor.package": True,
        "aot_inductor.package_cpp_only": True,
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.link_libtorch": False,
        "aot_inductor.output_path": folder + "/",
        "aot_inductor.custom_ops_to_c_shims": c_shims(),
        # Pointwise work is small next to the products, which use the runtime's own threads.
        "cpp.threads": 1,
        "cpp.simdlen": VECTOR_BITS[isa],
        "cpp.vec_isa_ok": True,
        "fx_graph_cache": False,
    }


@contextlib.contextmanager
def _vector_isa(isa: str) -> Iterator[None]:
    """Let Inductor vectorise for `isa`, whatever this machine has."""
    from torch._inductor import cpu_vec_isa

    known = {256: cpu_vec_isa.VecAVX2, 512: cpu_vec_isa.VecAVX512}
    chosen = known[VECTOR_BITS[isa]]()
    with mock.patch.object(cpu_vec_isa, "valid_vec_isa_list", return_value=[chosen]):
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Inductor's own warnings are about its internals, not about the user's model."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def _private_kernels(source: str) -> str:
    """Kernels of different leaves have the same names; keep them inside their file."""
    return re.sub(r'extern "C"\s+void\s+cpp_', "static void cpp_", source)


_CONTAINER = re.compile(r"\A.*?^\} // extern \"C\"\n", re.DOTALL | re.MULTILINE)
"""Torch's headers, and the C functions of its container (torch/_inductor/codegen/aoti_runtime/interface.cpp)."""

_INPUT_CHECKS = re.compile(
    r"^(AOTI_NOINLINE static void check_input_|static bool _check_aoti_runtime_check_inputs_env\().*?"
    r"(?=^void AOTInductorModel::run_impl\()",
    re.DOTALL | re.MULTILINE,
)
"""Checks that an environment variable turns on; most of the text of a leaf with many inputs."""


def _lean(source: str, name: str) -> str:
    """The leaf on the runtime's `leaf.h` in place of torch's container.

    Raises BackendError (SPECC-E0402) for a text that is not as expected, or a leaf that brings constants.
    """
    lean, headers = _CONTAINER.subn('#include "leaf.h"\n', source)
    lean, checks = _INPUT_CHECKS.subn("", lean)
    if headers != 1 or checks != 1 or "constants_info_[" in lean:
        raise BackendError(
            "SPECC-E0402", f"Inductor wrote {name} in a form that the runtime does not know",
            where=name, expected="a container, input checks and no constants",
            found=f"{headers} containers, {checks} checks, {lean.count('constants_info_[')} facts of constants",
            cure="try --backend reference, and report the model",
        )  # fmt: skip
    return lean
