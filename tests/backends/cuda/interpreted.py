"""Plays an artifact for CUDA on a double of the driver, Triton's kernels by its interpreter, TVM's compiled here.

A program of its own:

TRITON_INTERPRET=1 python -m tests.backends.cuda.interpreted FOLDER LIBCUDA < JSON > JSON
"""

from __future__ import annotations

import ctypes as c
import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


class libdevice:  # noqa: N801 - as Inductor calls it
    """What Triton's interpreter lacks of CUDA's library of functions."""

    @staticmethod
    def rsqrt(x: Any) -> Any:
        return 1.0 / tl.sqrt(x)

    @staticmethod
    def exp(x: Any) -> Any:
        return tl.exp(x)

    @staticmethod
    def tanh(x: Any) -> Any:
        return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


_SCALARS = {"i32": c.c_int32, "i64": c.c_int64, "fp32": c.c_float, "fp64": c.c_double}
_POINTERS = {
    "*fp32": torch.float32,
    "*fp64": torch.float64,
    "*i64": torch.int64,
    "*i32": torch.int32,
    "*fp16": torch.float16,
    "*bf16": torch.bfloat16,
    "*i1": torch.bool,
    "*u8": torch.uint8,
}


class Gpu:
    """The double, and what runs when something is launched on it."""

    def __init__(self, library: str, kernels: Path | None) -> None:
        self.library = c.CDLL(library, mode=c.RTLD_GLOBAL)
        self.library.nullgpu_count.restype = c.c_longlong
        self.kernels, self.loaded = kernels, {}
        self.index = {} if kernels is None else json.loads((kernels / "index.json").read_text())
        self.failure: BaseException | None = None
        self.launched: list[str] = []
        if kernels is not None:
            kind = c.CFUNCTYPE(
                None, c.c_void_p, c.c_char_p, c.POINTER(c.c_uint), c.POINTER(c.c_void_p)
            )
            self._kept = kind(self._launch)
            self.library.nullgpu_on_launch(self._kept)

    def check(self) -> None:
        """Raise what a kernel failed with: the driver's double only knows that something did."""
        if self.failure is not None:
            raise self.failure from None

    def count(self, call: str) -> int:
        return int(self.library.nullgpu_count(call.encode()))

    def _launch(self, cubin: int, name: bytes, grid: Any, arguments: Any) -> None:
        self.launched.append(name.decode())
        if self.failure is not None:
            return
        try:
            key = hashlib.sha256(_elf(cubin)).hexdigest()
            if library := self.index[key].get("library"):
                run = getattr(c.CDLL(str(self.kernels / library)), f"run_{name.decode()}")
                run(grid, arguments)
                return
            kernel, entry = self._kernel(cubin, key)
            values: dict[str, Any] = {}
            place = 0
            for argument, type_ in entry["signature"].items():
                if type_ == "constexpr":
                    values[argument] = entry["constants"][argument]
                    continue
                values[argument] = _argument(type_, arguments[place])
                place += 1
            kernel[(grid[0], grid[1], grid[2])](**values)
        except BaseException as error:
            self.failure = error

    def _kernel(self, cubin: int, key: str) -> tuple[Any, dict[str, Any]]:
        if cubin not in self.loaded:
            spec = importlib.util.spec_from_file_location(
                f"kernel_{key}", self.kernels / f"kernel_{key}.py"
            )
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            entry = self.index[key]
            self.loaded[cubin] = getattr(module, entry["function"]), entry
        return self.loaded[cubin]


def _argument(type_: str, at: int) -> Any:
    if type_ in _SCALARS:
        return _SCALARS[type_].from_address(at).value
    address = c.c_uint64.from_address(at).value
    kind = _POINTERS[type_]
    # One element is enough: the interpreter takes the address and the dtype of it.
    return torch.frombuffer((c.c_char * kind.itemsize).from_address(address), dtype=kind)


def _elf(at: int) -> bytes:
    """The whole of an ELF64 file in memory: section headers are its end, or program headers behind them."""
    head = c.string_at(at, 64)
    number = lambda place, size: int.from_bytes(head[place : place + size], "little")  # noqa: E731
    ends = [
        number(40, 8) + number(58, 2) * number(60, 2),
        number(32, 8) + number(54, 2) * number(56, 2),
    ]
    return c.string_at(at, max(ends))


def in_place() -> None:
    """The interpreter copies what it is given, and back; here memory is where it is."""
    executor = interpreter.GridExecutor
    executor._init_args_hst = lambda self, args, kwargs: (args, kwargs)
    executor._restore_args_dev = lambda self, *given: None


def bfloat16() -> None:
    """The interpreter multiplies the bits of bf16 as integers, and rounds to it towards zero; GPUs to nearest even."""
    builder, convert, multiply = (
        interpreter.InterpreterBuilder, interpreter._convert_float, interpreter.InterpreterBuilder.create_dot
    )  # fmt: skip

    def converted(x: Any, source: Any, to: Any, rounding: Any) -> Any:
        if (source, to) == (tl.float32, tl.bfloat16):
            halves = torch.from_numpy(np.ascontiguousarray(x)).to(torch.bfloat16)
            return halves.view(torch.uint16).numpy()
        return convert(x, source, to, rounding)

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = [
            self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)
        ]
        return multiply(self, *wide, *rest)

    interpreter._convert_float, builder.create_dot = converted, dot


def fused() -> None:
    """The interpreter rounds the product of a fused multiply-add as well."""

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        wide = x.data.astype(np.float64) * y.data + z.data
        return interpreter.TensorHandle(wide.astype(z.data.dtype), z.dtype.scalar)

    interpreter.InterpreterBuilder.create_fma = fma


_CALLS = (
    "cuLaunchKernel",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuStreamSynchronize",
    "cuMemcpyHtoDAsync_v2",
    "cuMemAlloc_v2",
    "cuMemcpyDtoDAsync_v2",
)


def _by_rounds(artifact: Any, gpu: Gpu, request: dict[str, Any]) -> dict[str, Any]:
    """What each round gives, of the K that `rounds` lists in turn."""
    del gpu
    with artifact.session() as session:
        session.configure(ignore_eos=True)
        session.append(request["prompt"])
        rounds = []
        for k in request["rounds"]:
            session.set("num_speculative_tokens", k)
            before = session.stat("accepted_tokens")
            tokens = [session.next()]
            tokens += [session.next() for _ in range(int(session.stat("accepted_tokens") - before))]
            rounds.append(tokens)
        return {"rounds": rounds}


def _played(artifact: Any, gpu: Gpu, request: dict[str, Any]) -> dict[str, Any]:
    """The text, and what the driver was asked for after the round that gave the first token."""
    prompt = request.pop("prompt")
    with artifact.session() as session:
        session.configure(ignore_eos=True, **request)
        session.append(prompt)
        tokens = [session.next()]
        before, rounds = {k: gpu.count(k) for k in _CALLS}, session.stat("rounds")
        tokens += list(session.iterate())
        counted = {k: gpu.count(k) - before[k] for k in _CALLS}
        played = session.stat("rounds") - rounds
        return {
            "tokens": tokens,
            "rounds": played,
            "counts": counted,
            "accepted": session.stats.accepted_tokens,
            "guard_checks": session.stat("guard_checks"),
        }


def main() -> None:
    folder, library = Path(sys.argv[1]), sys.argv[2]
    asked = json.load(sys.stdin)
    in_place()
    bfloat16()
    fused()
    gpu = Gpu(library, folder / "kernels")
    from specc.runtime import Artifact, Manifest

    code = Manifest.read(folder / "artifact").cuda
    assert code is not None
    gpu.library.nullgpu_capability(int(code.arch.removeprefix("sm_")))
    answers = []
    with Artifact.load(folder / "artifact", threads=1) as artifact:
        for request in asked:
            played = _by_rounds if "rounds" in request else _played
            try:
                answers.append(played(artifact, gpu, request))
            except Exception:
                gpu.check()
                raise
            gpu.check()
    json.dump({"answers": answers, "living": int(gpu.library.nullgpu_living())}, sys.stdout)


if __name__ == "__main__":
    main()
