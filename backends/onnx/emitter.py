"""Writes one graph of a program as an ONNX model. What operations become is in lowerings.py."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import fx

from specc.backends.onnx.store import WeightFiles, dtype_number, numpy_of
from specc.backends.onnx.table import refusal
from specc.errors import BackendError
from specc.ir import Function, TensorType
from specc.ir.graphs import results_of, type_of

IR_VERSION = 8

Lowering = Callable[["Emitter", fx.Node], "str | list[str]"]
Emission = Callable[["Emitter", "list[str]"], str]
"""Emits a value from results of the graph, by name; returns the value's name."""
LOWERINGS: dict[Any, Lowering] = {}
"""Operation -> what emits it: names of its results."""


def lowers(*targets: Any) -> Callable[[Lowering], Lowering]:
    """The decorated function lowers `targets`."""

    def register(function: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(targets, function))
        return function

    return register


class Emitter:
    """One model in the making. Integers are int32, but for shapes, which ONNX wants as int64."""

    def __init__(self, function: Function, opset: int, weights: WeightFiles) -> None:
        self.function, self.opset, self.weights = function, opset, weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.values: dict[fx.Node, str] = {}
        self.bundles: dict[fx.Node, list[str]] = {}
        self.constants: dict[tuple[Any, ...], str] = {}
        self.node: fx.Node | None = None
        self.bound: dict[fx.Node, str] = {}

    def model(
        self, bound: Mapping[str, str], more: Sequence[tuple[str, TensorType, Emission]] = ()
    ) -> onnx.ModelProto:
        """The model; `bound` maps inputs of the function to the weights that they are.

        `more`: results to add after the function's, made from the names of those.
        """
        inputs = []
        for node in self.function.inputs:
            if node.name in bound:
                self.bound[node] = bound[node.name]
                self.values[node] = self._weight(bound[node.name])
            else:
                self.values[node] = node.name
                inputs.append(_described(node.name, type_of(node)))
        for node in self.function.graph.nodes:
            if node.op == "call_function":
                self._lower(node)
        self.node = None
        outputs = []
        for name, result in zip(
            self.function.outputs, results_of(self.function.graph), strict=True
        ):
            self._append("Identity", [self.values[result]], [f"out_{name}"], {})
            outputs.append(_described(f"out_{name}", type_of(result)))
        own = [o.name for o in outputs]
        for name, type_, emit in more:
            self._append("Identity", [emit(self, own)], [f"out_{name}"], {})
            outputs.append(_described(f"out_{name}", type_))
        graph = helper.make_graph(
            self.nodes, self.function.name, inputs, outputs,
            initializer=[self.initializers[n] for n in self.initializers],
        )  # fmt: skip
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=IR_VERSION,
            producer_name="specc",
        )  # fmt: skip

    def _lower(self, node: fx.Node) -> None:
        self.node = node
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            assert isinstance(index, int)
            self.values[node] = self.bundles[source][index]
            return
        lowering = LOWERINGS.get(node.target)
        if lowering is None:
            raise self.refuse(f"there is no ONNX form of {node.target}")
        result = lowering(self, node)
        if isinstance(result, list):
            self.bundles[node] = result
        else:
            self.values[node] = result

    def refuse(self, what: str) -> BackendError:
        """The error for the operation at hand."""
        return BackendError(
            "SPECC-E0421", what, where=f"{self.function.name}: {place(self.node)}",
            expected="operators that CANN's ONNX parser registers (backends/onnx/ops.json)",
            cure="use --device cpu, and report the model's architecture",
        )  # fmt: skip

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append an operator with one result."""
        return self.add_many(op, inputs, 1, **attributes)[0]

    def add_many(
        self, op: str, inputs: tuple[str, ...], results: int, **attributes: Any
    ) -> list[str]:
        """Append an operator with several results."""
        names = [
            f"v{len(self.nodes)}" if results == 1 else f"v{len(self.nodes)}_{i}"
            for i in range(results)
        ]
        self._append(op, list(inputs), names, attributes)
        return names

    def _append(
        self, op: str, inputs: list[str], outputs: list[str], attributes: dict[str, Any]
    ) -> None:
        if why := refusal(op, self.opset):
            raise self.refuse(why)
        name = f"{place(self.node)}/{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, **attributes))

    def value(self, x: Any, dtype: str) -> str:
        """A node's value or a number, as `dtype`."""
        if not isinstance(x, fx.Node):
            return self.scalar(x, dtype)
        return self.cast(self.values[x], type_of(x).dtype, dtype)

    def cast(self, value: str, dtype: str, to: str) -> str:
        """`value` of `dtype` as `to`."""
        if dtype_number(dtype) == dtype_number(to):
            return value
        return self.add("Cast", value, to=dtype_number(to))

    def scalar(self, x: float, dtype: str) -> str:
        """A constant of no dimensions."""
        return self.constant(torch.tensor(x, dtype=torch.float64), dtype)

    def constant(self, tensor: torch.Tensor, dtype: str) -> str:
        """A small constant, each content once."""
        array = numpy_of(tensor, dtype)
        return self._constant(array, dtype_number(dtype))

    def constant_of(self, node: fx.Node) -> int:
        """The number that a weight of one element holds."""
        if node not in self.bound:
            raise self.refuse("a row is chosen by a number that is computed")
        return int(self.weights.load(self.bound[node]))

    def ints(self, *values: int) -> str:
        """A shape, or bounds: int64."""
        return self._constant(np.array(values, np.int64), TensorProto.INT64)

    def _constant(self, array: np.ndarray[Any, Any], number: int) -> str:
        key = (number, array.shape, array.tobytes())
        if key not in self.constants:
            name = self.constants[key] = f"c{len(self.constants)}"
            self.initializers[name] = helper.make_tensor(
                name, number, array.shape, array.tobytes(), raw=True
            )
        return self.constants[key]

    def _weight(self, name: str) -> str:
        tensor = self.weights.initializer(name)
        self.initializers.setdefault(tensor.name, tensor)
        return str(tensor.name)


def place(node: fx.Node | None) -> str:
    """Which layer and module an operation belongs to, as names of nodes begin."""
    if node is None:
        return "results"
    layer, part = node.meta.get("layer", -1), node.meta.get("part", "graph")
    where = f"layer.{layer}" if layer >= 0 else str(part)
    module = str(node.meta.get("origin") or "")
    return f"{where}/{module}" if module else where


def _described(name: str, type_: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype_number(type_.dtype), list(type_.at()))


def write_model(model: onnx.ModelProto, path: Path) -> None:
    """Write and check `model`. Raises BackendError (SPECC-E0422) if the checker or shape inference complain."""
    onnx.save(model, path)
    try:
        onnx.checker.check_model(str(path))
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        raise BackendError(
            "SPECC-E0422", f"{path.name} is no valid ONNX model", found=str(error).strip()[:300],
            cure="report this as a bug",
        ) from error  # fmt: skip
