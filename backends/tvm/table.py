"""The C++ file that lists leaves as kernels, for runtime/cpp/tvm/kernels.h."""

from __future__ import annotations

from collections.abc import Sequence

from specc.backends.toolchain import c_dtype, played_leaves
from specc.backends.tvm.kernels import Kernels
from specc.ir import TensorType


def leaf_table(leaves: Sequence[Kernels], isa: str) -> str:
    """`specc_leaves`, and behind each its values and steps."""
    kernels = dict.fromkeys(s.kernel for leaf in leaves for s in leaf.steps if s.kernel)
    declared = [
        f"int __tvm_ffi_{k}(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);" for k in kernels
    ]
    parts = [_leaf(number, leaf) for number, leaf in enumerate(leaves)]
    calls = [
        (leaf.name, f"run_kernels(leaf{number}, in, n, out, m)")
        for number, leaf in enumerate(leaves)
    ]
    return "\n".join([
        '#include "kernels.h"', '#include "leaf_table.h"', 'extern "C" {', *declared, "}", "namespace {",
        *parts, "}", played_leaves(calls, isa),
    ])  # fmt: skip


def _leaf(number: int, leaf: Kernels) -> str:
    dropped = drops(leaf)
    lines = [
        f"const specc::KernelValue values{number}[] = {{{', '.join(map(_value, leaf.values))}}};"
    ]
    lines.append(f"const uint8_t written{number}[] = {{{_listed(map(int, leaf.written))}}};")
    steps = []
    for index, (step, drop) in enumerate(zip(leaf.steps, dropped, strict=True)):
        name = f"{number}_{index}"
        lines.append(
            f"const int32_t args{name}[] = {{{_listed(step.args)}}}, drop{name}[] = {{{_listed(drop)}}};"
        )
        kernel = f"__tvm_ffi_{step.kernel}" if step.kernel else "nullptr"
        steps.append(
            f'    {{"{step.kernel}", {kernel}, {len(step.args)}, {step.made}, args{name}, {len(drop)}, drop{name}}},'
        )
    rows = rows_of(leaf) or (-1, 0)
    lines += [
        f"const specc::KernelStep steps{number}[] = {{", *(steps or ["    {}"]), "};",
        f"const int32_t out{number}[] = {{{_listed(leaf.outputs)}}};",
        f'const specc::KernelLeaf leaf{number} = {{"{leaf.name}", {leaf.inputs}, {len(leaf.outputs)}, '
        f"{len(leaf.values)}, {len(leaf.steps)}, values{number}, written{number}, steps{number}, out{number}, "
        f"{rows[0]}, {rows[1]}}};",
    ]  # fmt: skip
    return "\n".join(lines)


def rows_of(leaf: Kernels) -> tuple[int, int] | None:
    """The first input that has the rows of the call, and which of its dimensions; None for none."""
    inputs = enumerate(leaf.values[: leaf.inputs])
    return next(((i, t.shape.index("T")) for i, t in inputs if "T" in t.shape), None)


def drops(leaf: Kernels) -> list[list[int]]:
    """After each step, the values made on the way that nothing reads any more."""
    last = {value: index for index, step in enumerate(leaf.steps) for value in step.args}
    dropped: list[list[int]] = [[] for _ in leaf.steps]
    for value, index in last.items():
        if value >= leaf.inputs and value not in leaf.outputs:
            dropped[index].append(value)
    return dropped


def _listed(numbers: object) -> str:
    return ", ".join(map(str, numbers)) or "0"  # type: ignore[call-overload]


def _value(type_: TensorType) -> str:
    shape = ", ".join("specc::kRows" if d == "T" else str(d) for d in type_.shape)
    return f"{{{c_dtype(type_.dtype)}, {len(type_.shape)}, {{{shape}}}}}"
