"""TIR of a leaf's kernels -> CUDA's language, and how each kernel is launched.

TVM lowers, splits host from device and writes the device's part as text. The host's part is not compiled: what it says
of launches is read instead, as expressions of the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import expr as ir_expr
from tvm.ir.prim import expr as prim

from specc.backends.tvm.kernels import Kernels, told
from specc.backends.tvm.templates import OWN
from specc.errors import BackendError

ROWS = "T"
"""The rows of a call, in what `Launch` has of text."""


@dataclass(frozen=True)
class Launch:
    """One launch. Of `arguments`, a number is the place of an argument of the step, text a C++ expression of T.

    `grid`: blocks in x, y and z, by expressions of T too; `threads` of a block.
    """

    kernel: str
    arguments: tuple[int | str, ...]
    grid: tuple[str, str, str]
    threads: int


@dataclass(frozen=True)
class DeviceCode:
    """`source`: CUDA C++ of a leaf's kernels. `launches`: by the name of the step, one for each."""

    source: str
    launches: Mapping[str, Launch]


def target(arch: str) -> Any:
    """TVM's target for an architecture as sm_90."""
    return tvm.target.Target({"kind": "cuda", "arch": arch})


def scheduled(function: Any) -> Any:
    """A kernel of Relax's with its loops bound to threads, by TVM's rules for GPUs; templates are as they should be.

    A rule is chosen by what a kernel computes, never by how many rows a call has.
    """
    if function.attrs.get(OWN, False):
        return function
    rules = s_tir.dlight.gpu
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    chosen = s_tir.dlight.ApplyDefaultSchedule(
        rules.Reduction(), rules.GeneralReduction(), rules.Fallback()
    )
    return chosen(module)["main"]


def device_code(kernels: Kernels, arch: str) -> DeviceCode:
    """What the device runs of a leaf. Raises BackendError (SPECC-E0442) where TVM fails, or does what is not known."""
    split: list[Any] = []

    @tvm.ir.instrument.pass_instrument
    class Watch:
        """Keeps the module as it is when host and device have been split, and calls are calls still."""

        def run_before_pass(self, module: Any, info: Any) -> None:
            if str(info.name).endswith("MakePackedAPI"):
                split.append(module)

    with told(kernels.name), text_alone(), tvm.transform.PassContext(instruments=[Watch()]):
        (device,) = tvm.tirx.build(kernels.module, target=target(arch)).imports
        source = str(device.inspect_source())
    launches = {}
    for name, function in split[-1].functions.items() if split else ():
        if function.attrs.get("calling_conv", 0) == _DEVICE:
            continue
        calls = list(_launches(function, kernels.name))
        if len(calls) != 1:
            raise strange(kernels.name, f"{len(calls)} launches of {name.name_hint}")
        launches[name.name_hint] = calls[0]
    return DeviceCode(source, launches)


@contextmanager
def text_alone() -> Iterator[None]:
    """Within it TVM writes CUDA's language and compiles none of it.

    Where it finds NVIDIA's driver it would, by a package (cuda-bindings) that nothing here needs.
    """
    usual = tvm_ffi.get_global_func(_COMPILE)
    tvm_ffi.register_global_func(_COMPILE, lambda _: b"", override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(_COMPILE, usual, override=True)


_COMPILE = "tvm_callback_cuda_compile"
"""What TVM asks for machine code of a module's text."""

_DEVICE = 2
"""The calling convention of kernels (tvm/ir/function.h)."""


def _launches(function: Any, where: str) -> Iterator[Launch]:
    """The launches of a host function, whose statements are names for numbers, views of buffers and calls."""
    places = {buffer: number for number, buffer in enumerate(function.params)}
    known: dict[Any, str] = {}
    body = function.body.seq if isinstance(function.body, tirx.SeqStmt) else [function.body]
    for statement in body:
        if isinstance(statement, tirx.Bind):
            known[statement.var] = _text(statement.value, known, where)
        elif isinstance(statement, tirx.DeclBuffer):
            places[statement.buffer] = _place(statement.data, places, where)
        elif isinstance(statement, tirx.Evaluate) and _is(statement.value, "tirx.call_ffi_kernel"):
            yield _launch(statement.value, places, known, where)
        else:
            raise strange(where, f"a statement of {type(statement).__name__}")


def _launch(call: Any, places: Mapping[Any, int], known: Mapping[Any, str], where: str) -> Launch:
    name, *rest = call.args
    axes = list(call.attrs.launch_params)
    split = len(rest) - len(axes)
    sizes = {axis: _text(size, known, where) for axis, size in zip(axes, rest[split:], strict=True)}
    threads = sizes.pop("threadIdx.x", "1")
    grid = tuple(sizes.pop(f"blockIdx.{axis}", "1") for axis in "xyz")
    if sizes or not threads.isdigit():
        raise strange(where, f"threads {threads}, and {sorted(sizes)}")
    arguments = tuple(
        _place(a, places, where) if _is(a, "tirx.buffer_data") else _argument(a, known, where)
        for a in rest[:split]
    )
    return Launch(str(name.value), arguments, grid, int(threads))  # type: ignore[arg-type]


def _is(value: Any, name: str) -> bool:
    return isinstance(value, ir_expr.Call) and getattr(value.op, "name", "") == name


def _place(data: Any, places: Mapping[Any, int], where: str) -> int:
    buffer = data.args[0] if _is(data, "tirx.buffer_data") else None
    for known, place in places.items():
        if buffer is not None and known.same_as(buffer):
            return place
    raise strange(where, "memory that is no argument")


def _argument(value: Any, known: Mapping[Any, str], where: str) -> str:
    """A number for a kernel, as C++ of its type."""
    kind = str(value.ty.dtype)
    if kind not in ("int32", "int64"):
        raise strange(where, f"an argument of {kind}")
    return f"{kind}_t{{{_text(value, known, where)}}}"


_SIGNS = {prim.Add: "+", prim.Sub: "-", prim.Mul: "*", prim.FloorDiv: "/", prim.FloorMod: "%"}
"""(All numbers are sizes: nothing is below 0, so that C++ divides alike.)"""


def _text(value: Any, known: Mapping[Any, str], where: str) -> str:
    """A size as C++. Variables that are no names for something else are the rows of the call."""
    if isinstance(value, prim.IntImm):
        return str(int(value.value))
    if isinstance(value, ir_expr.Var):
        return next((text for var, text in known.items() if var.same_as(value)), ROWS)
    if isinstance(value, prim.Cast):
        return _text(value.value, known, where)
    if sign := _SIGNS.get(type(value)):
        return f"({_text(value.a, known, where)} {sign} {_text(value.b, known, where)})"
    raise strange(where, f"a size of {type(value).__name__}")


def strange(where: str, found: str) -> BackendError:
    """The error for what TVM made that nothing here can play."""
    return BackendError(
        "SPECC-E0442", f"TVM compiled {where} in a way that specc does not know", where=where,
        expected="a launch for each kernel, of arguments and sizes by rows", found=found,
        cure="leave out --backend tvm, and report this as a bug",
    )  # fmt: skip
