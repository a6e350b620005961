"""Pieces of a program as Relax functions, and the functions that an engine calls around them.

n is the tokens of a call. Activations are f32 at every border, whatever the model computes in.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx
from tvm import relax, tirx

from specc.backends.tvm.converter import dtype_of
from specc.backends.tvm.kernels import typed
from specc.backends.tvm.mlc.leaf import PagedLeaf
from specc.errors import BackendError
from specc.ir import Function, Role, SpeculativeProgram
from specc.ir.graphs import results_of, type_of, weight_name

QUERY_POSITIONS = "vm.builtin.attention_kv_cache_get_query_positions"


@dataclass(frozen=True)
class Limits:
    """Tokens of a text, tokens of a call, texts of a call."""

    context: int
    chunk: int
    batch: int


@dataclass
class _Made:
    """A piece of the program as a Relax function."""

    variable: Any
    cache: bool
    results: int


@dataclass
class LibraryWriter:
    """The module while it is written."""

    program: SpeculativeProgram
    limits: Limits
    builder: Any = field(default_factory=relax.BlockBuilder)
    leaves: dict[str, PagedLeaf] = field(default_factory=dict)
    pieces: dict[str, _Made] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        used = {
            name for piece in self.program.functions.values() if piece.role is not Role.LEAF
            for node in piece.graph.nodes if (name := weight_name(node)) is not None
        }  # fmt: skip
        self.names = sorted(used)
        types = [
            relax.TensorType(list(self.program.weights[n].type.at()), dtype_of(self.program.weights[n].type.dtype))
            for n in self.names
        ]  # fmt: skip
        self.parameters = relax.TupleType(types)

    def piece(self, function: Function) -> None:
        """Add a piece of the program: (its f32 and i64 inputs, cache if it attends, params) -> f32 results."""
        rows = tirx.Var("n", "int64")
        inputs = {n: n.name for n in function.inputs if n.name not in ("positions", "rows")}
        params = relax.Var("params", self.parameters)
        cache = relax.Var("cache", relax.AnyType())
        values: dict[fx.Node, Any] = {}
        taken = []
        for node, name in inputs.items():
            type_ = type_of(node)
            dtype = "int64" if type_.dtype == "i64" else "float32"
            shape = [rows if d == "T" else tirx.IntImm("int64", d) for d in type_.shape]
            values[node] = relax.Var(name, relax.TensorType(shape, dtype))
            taken.append(values[node])
        calls = [str(n.target) for n in function.graph.nodes if n.op == "call_module"]
        for leaf in calls:
            self._leaf(leaf)
        attends = any(self.leaves[leaf].attends for leaf in calls)
        handles = [cache] if attends else []
        name = f"piece_{function.name}"
        with self.builder.function(name, [*taken, *handles, params], private=True):
            with self.builder.dataflow():
                for node in values:
                    values[node] = self.cast(values[node], type_of(node).dtype)
                if attends:
                    at = relax.call_pure_packed(
                        QUERY_POSITIONS, cache, ty_args=relax.TensorType([rows], "int32")
                    )
                    at = self.cast(self.builder.emit(at), "i64")
                    values |= {n: at for n in function.inputs if n.name == "positions"}
                results = self._body(function, values, cache, params)
                given = self.builder.emit_output(relax.Tuple(results))
            variable = self.builder.emit_func_output(given)
        self.pieces[function.name] = _Made(variable, attends, len(results))

    def _leaf(self, name: str) -> None:
        if name not in self.leaves:
            leaf = typed(self.program.functions[name])
            self.leaves[name] = PagedLeaf(leaf, self.builder, self.limits.context)

    def _body(
        self, function: Function, values: dict[fx.Node, Any], cache: Any, params: Any
    ) -> list[Any]:
        emit = self.builder.emit
        for node in function.graph.nodes:
            if (weight := weight_name(node)) is not None:
                values[node] = emit(relax.TupleGetItem(params, self.names.index(weight)))
            elif node.op == "call_module":
                leaf = self.leaves[str(node.target)]
                given = [values[node.args[i]] for i in leaf.kept]
                if leaf.attends:
                    given += [cache, relax.prim_value(_layer(node))]
                values[node] = emit(relax.Call(leaf.variable, given))
            elif node.target is operator.getitem:
                values[node] = emit(relax.TupleGetItem(values[node.args[0]], node.args[1]))
            elif node.op == "call_function":
                raise BackendError(
                    "SPECC-E0441", f"there is no TVM form of {node.target} outside of leaves", where=function.name,
                    cure="report this as a bug",
                )  # fmt: skip
        return [self.cast(values[n], "f32") for n in results_of(function.graph)]

    def cast(self, value: Any, dtype: str) -> Any:
        """`value` in a type of specc's name."""
        name = dtype_of(dtype)
        return value if value.ty.dtype == name else self.builder.emit(relax.op.astype(value, name))

    def call(self, piece: str, *args: Any) -> list[Any]:
        """Call a piece: its results."""
        made = self.pieces[piece]
        found = self.builder.emit(relax.Call(made.variable, list(args)))
        return [self.builder.emit(relax.TupleGetItem(found, i)) for i in range(made.results)]

    def shaped(self, value: Any, *shape: Any) -> Any:
        """`value` in another shape."""
        sizes = [tirx.IntImm("int64", d) if isinstance(d, int) else d for d in shape]
        return self.builder.emit(relax.op.reshape(value, relax.ShapeExpr(sizes)))

    def kernel(self, function: Any, name: str, args: Sequence[Any], *shape: Any) -> Any:
        """Call a kernel that makes one f32 tensor."""
        sizes = [tirx.IntImm("int64", d) if isinstance(d, int) else d for d in shape]
        target = self.builder.add_func(function, name)
        return self.builder.emit(
            relax.call_tir(target, list(args), relax.TensorType(sizes, "float32"))
        )

    def public(
        self, name: str, inputs: Mapping[str, Any], body: Callable[..., Any], *,
        cache: bool = False, params: bool = True,
    ) -> None:  # fmt: skip
        """Add a function that the engine calls: (inputs, cache, params) -> what `body` gives, with the cache."""
        variables = {n: relax.Var(n, t) for n, t in inputs.items()}
        handle, weights = (
            relax.Var("paged_kv_cache", relax.AnyType()),
            relax.Var("params", self.parameters),
        )
        more = [*([handle] if cache else []), *([weights] if params else [])]
        with self.builder.function(name, [*variables.values(), *more]):
            with self.builder.dataflow():
                found = body(*variables.values(), *more)
                found = relax.Tuple([found, handle]) if cache else found
                given = self.builder.emit_output(found)
            self.builder.emit_func_output(given)
        self.functions.append(name)


def _layer(call: fx.Node) -> int:
    return int(call.meta["layer"])


def tensor(dtype: str, *shape: Any) -> Any:
    """A tensor's type."""
    sizes = [tirx.IntImm("int64", d) if isinstance(d, int) else d for d in shape]
    return relax.TensorType(sizes, dtype)
