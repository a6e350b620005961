"""One leaf -> a Relax function. What operations become is in conversions.py; what is not there is refused by name.

TVM's own importer is not used: it drops writes to state without a word, hard-codes types of products, and fails on
others (github.com/apache/tvm, relax/frontend/torch). Here state is an input, a write to it is `call_tir_inplace`, and
what was written is a result of the function, so that no pass can take the write for dead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch import fx
from tvm import IRModule, relax, tirx

from specc.errors import BackendError
from specc.ir import Function, TensorType
from specc.ir.graphs import results_of, type_of

LEAF = "leaf"
"""The name of the function in its module."""

_DTYPES = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "i64": "int64",
    "i32": "int32", "i8": "int8", "u8": "uint8", "bool": "bool",
}  # fmt: skip

Conversion = Callable[["Converter", fx.Node], Any]
CONVERSIONS: dict[Any, Conversion] = {}
"""Operation -> what emits it: a Relax value, or a list of them."""


def converts(
    *targets: Any, into: dict[Any, Conversion] = CONVERSIONS
) -> Callable[[Conversion], Conversion]:
    """The decorated function converts `targets`, in the table `into`."""

    def register(function: Conversion) -> Conversion:
        into.update(dict.fromkeys(targets, function))
        return function

    return register


def dtype_of(name: str) -> str:
    """TVM's name of a dtype of specc's."""
    return _DTYPES[name]


class Converter:
    """A leaf in the making. T is one symbolic dimension; all else are numbers."""

    conversions: ClassVar[Mapping[Any, Conversion]] = CONVERSIONS

    def __init__(self, function: Function, builder: Any = None) -> None:
        self.function = function
        self.builder = builder or relax.BlockBuilder()
        self.rows = tirx.Var("T", "int64")
        self.values: dict[fx.Node, Any] = {}
        self.bundles: dict[fx.Node, list[Any]] = {}
        self.written: dict[fx.Node, Any] = {}
        self._node: fx.Node | None = None

    def module(self) -> IRModule:
        """The module: `leaf`, and the kernels that it calls. Its results are the leaf's, then the state it wrote."""
        parameters = []
        for node in self.function.inputs:
            self.values[node] = relax.Var(node.name, self.type(type_of(node)))
            parameters.append(self.values[node])
        self.define(LEAF, parameters)
        return self.builder.get()

    def define(self, name: str, parameters: Sequence[Any]) -> Any:
        """Add the function, whose `parameters` are among `values`, to the module: the variable that names it."""
        refused: Exception | None = None
        results: list[Any] = []
        with self.builder.function(name, list(parameters)):
            with self.builder.dataflow():
                try:
                    results = self._results()
                except Exception as error:
                    refused = error  # TVM complains of a function that is not ended
                given = self.builder.emit_output(relax.Tuple(results))
            made = self.builder.emit_func_output(given)
        if refused is not None:
            raise refused
        return made

    def _results(self) -> list[Any]:
        for node in self.function.graph.nodes:
            if node.op == "call_function":
                self._convert(node)
        return [*(self.values[n] for n in results_of(self.function.graph)), *self.written.values()]

    def _convert(self, node: fx.Node) -> None:
        self._node = node
        if node.target is operator.getitem:
            source, index = node.args
            self.values[node] = self.bundles[source][index]  # type: ignore[index]
            return
        conversion = self.conversions.get(node.target)
        if conversion is None:
            raise self.refuse(f"there is no TVM form of {node.target}")
        result = conversion(self, node)
        if isinstance(result, list):
            self.bundles[node] = result
        else:
            self.values[node] = result

    def where(self) -> str:
        """The leaf, and what in the model the operation at hand comes from."""
        node = self._node
        origin = "" if node is None else str(node.meta.get("origin") or "")
        return f"{self.function.name}{f': {origin}' if origin else ''}"

    def refuse(self, what: str) -> BackendError:
        """The error for the operation at hand."""
        return BackendError(
            "SPECC-E0441", what, where=self.where(), expected="operations in backends/tvm/conversions.py",
            cure="use --backend inductor, and report the model's architecture",
        )  # fmt: skip

    def dims(self, shape: Sequence[int | str]) -> list[Any]:
        """A shape as Relax has it."""
        return [self.rows if d == "T" else tirx.IntImm("int64", d) for d in shape]

    def type(self, type_: TensorType) -> Any:
        """A type as Relax has it."""
        return relax.TensorType(self.dims(type_.shape), dtype_of(type_.dtype))

    def emit(self, expression: Any) -> Any:
        """A name for `expression`."""
        return self.builder.emit(expression)

    def value(self, x: Any, dtype: str) -> Any:
        """A node's value or a number, as `dtype` (one of specc's names)."""
        if not isinstance(x, fx.Node):
            return relax.const(x, dtype_of(dtype))
        found = self.values[x]
        if type_of(x).dtype == dtype:
            return found
        return self.emit(relax.op.astype(found, dtype_of(dtype)))

    def reshaped(self, value: Any, shape: Sequence[int | str]) -> Any:
        """`value` in another shape, of as many elements."""
        return self.emit(relax.op.reshape(value, relax.ShapeExpr(self.dims(shape))))

    def call(self, kernel: Any, name: str, args: Sequence[Any], *types: TensorType) -> list[Any]:
        """Call `kernel` of ours: its results."""
        target = self.builder.add_func(kernel, name)
        out = [self.type(t) for t in types]
        called = self.emit(relax.call_tir(target, list(args), out if len(out) > 1 else out[0]))
        if len(out) == 1:
            return [called]
        return [self.emit(relax.TupleGetItem(called, i)) for i in range(len(out))]

    def write(self, kernel: Any, name: str, state: fx.Node, args: Sequence[Any]) -> None:
        """Call `kernel`, which writes to `state` in place; from here on `state` is what it wrote."""
        if state.op != "placeholder":
            raise self.refuse(f"{name} writes to what is no state")
        target = self.builder.add_func(kernel, name)
        operands, type_ = [self.values[state], *args], self.type(type_of(state))
        self.values[state] = self.emit(relax.op.call_tir_inplace(target, operands, 0, type_))
        self.written[state] = self.values[state]


def arguments(node: fx.Node) -> list[Any]:
    """All arguments of an operation, by its schema."""
    given: list[Any] = [*node.args]
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    for argument in schema[len(given) :]:
        given.append(node.kwargs.get(argument.name, argument.default_value))
    return given
