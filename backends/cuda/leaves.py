"""One leaf -> C++ and cubins, by AOTInductor."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import torch

from specc.backends.cuda import fakes
from specc.backends.exported_leaf import export_leaf
from specc.backends.inductor_leaf import (
    CONTAINER,
    INPUT_CHECKS,
    OPTIONS,
    quiet,
    refuse_form,
    refuse_missing,
    refusing,
)  # fmt: skip
from specc.ir import Function

INSTEAD = "--device cpu"
"""What to try where Inductor fails."""


def generate(function: Function, arch: str) -> str:
    """The C++ source of `function` for any number of rows, its kernels for `arch` inside as bytes.

    Exported on the CPU, then retargeted: fake tensors of a GPU that is not there take the inputs' places.
    Raises BackendError: SPECC-E0402 if Inductor cannot compile it, E0405 for an operation that it hands to libtorch.
    """
    with quiet(), tempfile.TemporaryDirectory() as folder, torch.no_grad():
        with refusing(function.name, INSTEAD):
            exported, _ = export_leaf(function)
            with fakes.gpu(arch) as kernels:
                module, inputs = _retargeted(exported)
                torch._inductor.aot_compile(module, inputs, options=options(folder))
        (source,) = Path(folder).glob("*.wrapper.cpp")
        text = source.read_text()
        _refuse_missing(function.name, text)
        return _lean(
            text, function.name, {n: k.launchers[0].bin.asm["cubin"] for n, k in kernels.items()}
        )


def options(folder: str) -> dict[str, object]:
    """What Inductor is told; its files go to `folder`."""
    return OPTIONS | {
        "aot_inductor.precompile_headers": False,
        "aot_inductor.output_path": folder + "/",
    }


def _retargeted(exported: torch.export.ExportedProgram) -> tuple[Any, tuple[Any, ...]]:
    gpu = torch.device("cuda:0")
    module: Any = exported.module(check_guards=False)
    values = [n.meta["val"] for n in exported.graph.nodes if n.op == "placeholder"]
    with values[0].fake_mode:
        inputs = tuple(
            torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=gpu) for v in values
        )
    left = iter(inputs)
    for node in module.graph.nodes:
        node.meta.pop("val", None)
        if node.op == "placeholder":
            node.meta["val"] = next(left)
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": gpu}
    module.recompile()
    return module, inputs


_DRIVER = re.compile(
    r"^#define CUDA_DRIVER_CHECK\(.*?(?=^CACHE_TORCH_|^namespace torch::aot_inductor)",
    re.DOTALL | re.MULTILINE,
)
"""How torch loads and launches kernels; ours is in leaf_cuda.h."""

_LOADED = re.compile(
    r'kernels_\.(\w+) = loadKernel\("[^"]*", ("\w+"), (\d+), cubin_dir_, &kernels_\.loaded_modules_\);'
)
_ARGUMENTS = re.compile(r"void\* kernel_args_\[\] = \{([^}]*)\};")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
"""The source of each kernel, as Triton was given it."""

_OWN = {
    *("empty_strided", "clone_preserve_strides", "get_data_ptr", "delete_tensor_object", "get_sizes", "get_strides"),
    *("get_storage_offset", "new_tensor_handle", "assign_tensors_out", "get_dim", "get_dtype", "get_numel"),
    *("_reinterpret_tensor", "check", "warn"),
}  # fmt: skip
"""Functions aoti_torch_... that a leaf may call: those that touch no data, or that leaf_cuda.h redirects."""


def _refuse_missing(name: str, source: str) -> None:
    run = source[source.index("void AOTInductorModel::run_impl(") :]
    called = set(re.findall(r"\baoti_torch_(\w+)\s*\(", run))
    missing = {n for n in called - _OWN if not re.match(r"(device_type|dtype|layout)_", n)}
    if "proxy_executor_call_function" in run:
        missing.add("")
    refuse_missing(name, missing, " on a GPU", INSTEAD)


def _with_sizes(found: re.Match[str]) -> str:
    """The addresses of a kernel's arguments with their bytes beside them."""
    pairs = (f"{{{a}, sizeof {a[1:]}}}" for a in found[1].split(", "))
    return f"const SpeccArgument kernel_args_[] = {{{', '.join(pairs)}}};"


def _lean(source: str, name: str, cubins: dict[str, bytes]) -> str:
    """The leaf on the runtime's `leaf_cuda.h`, with its kernels.

    Raises BackendError (SPECC-E0402) for a text that is not as expected, or a leaf that brings constants.
    """
    loaded = [found[0] for found in _LOADED.findall(source)]
    lean, headers = CONTAINER.subn("", source)
    lean, drivers = _DRIVER.subn("", lean)
    lean, checks = INPUT_CHECKS.subn("", lean)
    lean = _LOADED.sub(r"kernels_.\1 = loadKernel(cubin_\1, \2, \3);", _COMMENT.sub("", lean))
    lean, lists = _ARGUMENTS.subn(_with_sizes, lean)
    strange = (
        "constants_info_[" in lean or "cubin_dir_, &kernels_" in lean or lists != lean.count(" launchKernel(")
    )  # fmt: skip
    if (headers, drivers, checks) != (1, 1, 1) or strange or set(loaded) != set(cubins):
        raise refuse_form(
            name, "a container, a driver, input checks, no constants and the kernels that it compiled",
            f"{headers}, {drivers}, {checks}, {sorted(set(loaded) ^ set(cubins))}", INSTEAD,
        )  # fmt: skip
    arrays = "".join(
        f"alignas(16) static const unsigned char cubin_{n}[] = {{{','.join(map(str, cubins[n]))}}};\n"
        for n in loaded
    )
    return f'#include "leaf_cuda.h"\n{arrays}{lean}'
