"""A library's module as machine code: a .so for this machine, or objects of a static library for a phone."""

from __future__ import annotations

import hashlib
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, tirx

from specc.backends.tvm.kernels import inlined
from specc.cache import Pieces
from specc.errors import BackendError

TARGETS = {
    "host": {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "opt-level": 3},
    "iphone": {"kind": "llvm", "mtriple": "arm64-apple-darwin", "mattr": ["+neon"], "opt-level": 3},
    "android": {
        "kind": "llvm", "mtriple": "aarch64-linux-android", "mattr": ["+neon"], "opt-level": 3,
    },
}  # fmt: skip
"""By `--mlc-target`, what LLVM compiles for. Without `fast-math` flags it keeps every rounding."""


def target_of(name: str, isa: str) -> Any:
    """TVM's target; `isa` is that of the host."""
    found = TARGETS[name]
    return tvm.target.Target({**found, "mcpu": isa} if name == "host" else found)


def _inline(module: Any, context: Any) -> Any:
    del context
    for name, function in module.functions.items():
        if isinstance(function, tirx.PrimFunc):
            module.update_func(name, _alike(inlined(function), function))
    return module


def _alike(function: Any, before: Any) -> Any:
    """A scheduled function by the name that it had, or without one."""
    symbol = (before.attrs or {}).get("global_symbol")
    if symbol is None:
        return function.without_attr("global_symbol")
    return function.with_attr("global_symbol", symbol)


def _prefixed(prefix: str) -> Any:
    """Kernels by names of their own, for several libraries in one program.

    TVM's pass does so by itself where the module has the attribute before, but fails on kernels that are not in its
    script's style (0.27: "Cannot treat type `ir.Call` as type `ir.Expr`").
    """

    def rename(module: Any, context: Any) -> Any:
        del context
        for name, function in module.functions.items():
            if isinstance(function, tirx.PrimFunc):
                symbol = prefix + str(function.attrs["global_symbol"])
                module.update_func(name, function.with_attr("global_symbol", symbol))
        return module.with_attr("system_lib_prefix", prefix)

    return tvm.transform.module_pass(rename, opt_level=0)


def passes(prefix: str = "") -> Any:
    """Relax to what TVM's virtual machine runs: fused, inlined, memory planned; symbols begin with `prefix`."""
    t = relax.transform
    inline = tvm.transform.module_pass(_inline, opt_level=0)
    return tvm.transform.Sequential([
        t.LegalizeOps(), t.AnnotateTIROpPattern(), t.FuseOps(), t.FuseTIR(), inline,
        t.ToNonDataflow(), t.RemovePurityChecking(), t.CallTIRRewrite(), t.StaticPlanBlockMemory(),
        t.LowerAllocTensor(), t.KillAfterLastUse(), t.LowerRuntimeBuiltin(), t.ComputePrimValue(),
        t.VMShapeLower(), t.AttachGlobalSymbol(), *([_prefixed(prefix)] if prefix else []),
    ])  # fmt: skip


def compile_library(module: Any, target: Any, path: Path, prefix: str = "") -> None:
    """Write the library `path`: a .so, or with `prefix` a .tar of objects for `system://`.

    It comes from the cache if it was compiled before: a library depends on shapes, not on weights.
    Raises BackendError (SPECC-E0442) where TVM or the linker fails.
    """
    identity = "\0".join([module.script(show_meta=True), str(target), prefix, tvm.__version__])
    key = hashlib.sha256(identity.encode()).hexdigest()[:32]
    made = Pieces("mlc").get(key + path.suffix, partial(_compile, module, target, prefix))
    shutil.copy(made, path)


def _compile(module: Any, target: Any, prefix: str, path: Path) -> None:
    try:
        with target:
            built = tvm.compile(module, target=target, relax_pipeline=passes(prefix))
        built.export_library(str(path))
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise BackendError(
            "SPECC-E0442", "TVM cannot compile a library for MLC", where=path.name,
            found=lines[-1][:300] if lines else repr(error),
            cure="use --backend tvm, and report the model's architecture",
        ) from error  # fmt: skip
