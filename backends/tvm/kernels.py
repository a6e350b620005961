"""A Relax function -> kernels in an object file, and the list of calls that the runtime plays.

Relax fuses what is elementwise; TVM's virtual machine and its memory planning are not used. What is left of the
function is a straight line of calls over values, as runtime/cpp/tvm/kernels.h describes it, so the artifact needs
nothing of TVM.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, s_tir, tirx

from specc.backends.tvm import templates
from specc.backends.tvm.converter import LEAF, Converter
from specc.errors import BackendError, SpeccError
from specc.ir import Function, TensorType
from specc.ir.graphs import copy_graph, type_of
from specc.ir.infer import infer_types

_PASSES = tvm.transform.Sequential([
    relax.transform.LegalizeOps(),
    relax.transform.AnnotateTIROpPattern(),
    relax.transform.FuseOps(),
    relax.transform.FuseTIR(),
    relax.transform.ToNonDataflow(),
    relax.transform.DeadCodeElimination([LEAF]),
    relax.transform.CanonicalizeBindings(),
])  # fmt: skip

_RESHAPE = re.compile(r"reshape\d*")
"""What Relax calls a reshape that nothing is fused with: a view is enough. (Its pass for that fails on our kernels.)"""

_NAMES = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i32", "int8": "i8", "uint8": "u8", "bool": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A call of a kernel that makes its last `made` arguments; without a kernel, a view of another shape."""

    kernel: str
    args: tuple[int, ...]
    made: int


@dataclass(frozen=True)
class Kernels:
    """A leaf as kernels over numbered values, inputs first. `module`: the kernels, by their names in the object."""

    name: str
    inputs: int
    written: tuple[bool, ...]
    values: tuple[TensorType, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    module: Any

    def text(self) -> str:
        """What compiling depends on."""
        return str(self.module.script(show_meta=True))


def target(isa: str) -> Any:
    """TVM's target for an instruction set. Without `fast-math` flags LLVM keeps every rounding; see tests."""
    return tvm.target.Target(
        {"kind": "llvm", "mcpu": isa, "mtriple": "x86_64-unknown-linux-gnu", "opt-level": 3}
    )


def lowered(function: Function, isa: str) -> Kernels:
    """The kernels of a leaf.

    Raises BackendError: SPECC-E0441 for an operation without a form, E0442 where TVM fails, E0443 for a lost write.
    """
    return lowered_for(target(isa), function, Converter, inlined)


def lowered_for(
    target: Any, function: Function, converter: type[Converter], scheduled: Callable[[Any], Any]
) -> Kernels:
    """The kernels of a leaf for any target: what operations become there, and how TVM's own kernels are scheduled."""
    with told(function.name), target:
        function = typed(function)
        module = _PASSES(converter(function).module())
        return _Walk(function, module, scheduled).kernels()


@contextmanager
def told(where: str) -> Iterator[None]:
    """Within it, what TVM fails with becomes a BackendError (SPECC-E0442)."""
    try:
        yield
    except SpeccError:
        raise
    except Exception as error:
        raise _failed(where, error) from error


def typed(function: Function) -> Function:
    """`function` with the type of every value: a pass that makes sizes numbers leaves those of values as they were."""
    graph, _ = copy_graph(function.graph)
    infer_types(graph, function.name)
    return replace(function, graph=graph)


def compile_kernels(kernels: Kernels, isa: str, path: Path) -> None:
    """Write the object file `path`. Raises BackendError (SPECC-E0442) where TVM fails."""
    with told(kernels.name):
        built = tvm.tirx.build(kernels.module, target=target(isa))
        built.write_to_file(str(path), "o")


def _failed(name: str, error: Exception) -> BackendError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return BackendError(
        "SPECC-E0442", f"TVM cannot compile {name}", where=name, found=lines[-1][:300] if lines else repr(error),
        cure="leave out --backend tvm, and report the model's architecture",
    )  # fmt: skip


class _Walk:
    """From the bindings of the lowered function to steps."""

    def __init__(self, function: Function, module: Any, scheduled: Callable[[Any], Any]) -> None:
        self.function, self.module, self.scheduled = function, module, scheduled
        self.values = [type_of(n) for n in function.inputs]
        self.numbers: dict[Any, tuple[int, ...]] = {}
        self.steps: list[Step] = []
        self.written: set[int] = set()
        # Equal kernels of different leaves may be there twice; their names must not meet.
        digest = hashlib.sha256(module.script().encode()).hexdigest()[:8]
        self.prefix = f"specc_{digest}_"

    def kernels(self) -> Kernels:
        leaf = self.module[LEAF]
        for number, parameter in enumerate(leaf.params):
            self.numbers[parameter] = (number,)
        for block in leaf.body.blocks:
            for binding in block.bindings:
                self.numbers[binding.var] = self._bind(binding.value)
        results = self._numbers(leaf.body.body)
        inputs = self.function.inputs
        outputs = results[: len(self.function.outputs)]
        self._check_writes()
        return Kernels(
            self.function.name, len(inputs), tuple(i in self.written for i in range(len(inputs))),
            tuple(self.values), tuple(self.steps), outputs, self._prim_functions(),
        )  # fmt: skip

    def _check_writes(self) -> None:
        """Every write to state that the graph has is there still."""
        wanted = sum(1 for _ in _mutations(self.function))
        found = sum(1 for s in self.steps if s.kernel and not s.made)
        if wanted != found:
            raise BackendError(
                "SPECC-E0443", "a write to state was lost on the way through TVM", where=self.function.name,
                expected=f"{wanted} writes", found=str(found), cure="report this as a bug",
            )  # fmt: skip

    def _numbers(self, value: Any) -> tuple[int, ...]:
        """The values that an expression stands for."""
        if isinstance(value, relax.Tuple):
            return tuple(n for field in value.fields for n in self._numbers(field))
        if value in self.numbers:
            return self.numbers[value]
        raise BackendError(
            "SPECC-E0442", f"TVM cannot compile {self.function.name}", where=self.function.name,
            found=f"a value of another kind: {type(value).__name__}", cure="report this as a bug",
        )  # fmt: skip

    def _bind(self, value: Any) -> tuple[int, ...]:
        if isinstance(value, relax.TupleGetItem):
            return (self._numbers(value.tuple_value)[value.index],)
        if not isinstance(value, relax.Call):
            return self._numbers(value)
        name = str(getattr(value.op, "name", ""))
        if name == "relax.call_tir" and len(value.args) == 2:
            args = self._numbers(value.args[1])
            if _RESHAPE.fullmatch(_global(value)):
                view = self._new(value.ty_args[0])
                self.steps.append(Step("", (*args, view), 1))
                return (view,)
            made = tuple(map(self._new, _types(value.ty_args[0])))
            self.steps.append(Step(self.prefix + _global(value), args + made, len(made)))
            return made
        if name == "relax.call_tir_inplace" and len(value.args) == 2:
            args = self._numbers(value.args[1])
            self.steps.append(Step(self.prefix + _global(value), args, 0))
            self.written.add(args[0])
            return args[:1]
        raise BackendError(
            "SPECC-E0442", f"TVM cannot compile {self.function.name}", where=self.function.name,
            found=f"a call of {name or type(value.op).__name__} is left", cure="report this as a bug",
        )  # fmt: skip

    def _new(self, type_: Any) -> int:
        shape = tuple(int(d) if isinstance(d, tirx.IntImm) else "T" for d in type_.shape)
        odd = [d for d in type_.shape if not isinstance(d, tirx.IntImm | tirx.Var)]
        if odd:
            raise BackendError(
                "SPECC-E0442", f"TVM cannot compile {self.function.name}", where=self.function.name,
                found=f"a dimension that is neither a number nor T: {odd[0]}", cure="report this as a bug",
            )  # fmt: skip
        self.values.append(TensorType(_NAMES[str(type_.dtype)], shape))
        return len(self.values) - 1

    def _prim_functions(self) -> Any:
        """The kernels that are called, scheduled, by the names that they have in the object file."""
        called = {step.kernel for step in self.steps}
        found: Mapping[Any, Any] = {
            gv.name_hint: f
            for gv, f in self.module.functions.items()
            if isinstance(f, tirx.PrimFunc) and self.prefix + gv.name_hint in called
        }
        named = {}
        for name, function in found.items():
            symbol = self.prefix + name
            named[symbol] = self.scheduled(function).with_attr("global_symbol", symbol)
        return tvm.IRModule(named)


def _mutations(function: Function) -> Sequence[Any]:
    return [
        n for n in function.graph.nodes
        if n.op == "call_function" and getattr(getattr(n.target, "_schema", None), "is_mutable", False)
    ]  # fmt: skip


def _global(call: Any) -> str:
    return str(call.args[0].name_hint)


def _types(type_: Any) -> list[Any]:
    return list(type_.fields) if isinstance(type_, relax.TupleType) else [type_]


def inlined(function: Any) -> Any:
    """A fused kernel whose intermediate values are computed where they are used, not stored."""
    if function.attrs.get(templates.OWN, False):
        return function
    schedule = s_tir.Schedule(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))
    root = schedule.get_sblock("root")
    for block in schedule.get_child_blocks(root):
        try:
            schedule.compute_inline(block)
        except s_tir.ScheduleError:
            continue  # what is reduced, or a result, stays
    return schedule.mod["main"]
