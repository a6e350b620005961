"""torch.export programs -> functions without symbolic sizes.

An exported graph computes sizes as it goes (sym_size, mul, view with symbolic arguments). A specc graph has none: a
view names at most one size as -1 and every other as a number. What cannot be written so is refused with its layer.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from specc.errors import InvalidProgramError, ModelError
from specc.ir.graphs import WEIGHT, Builder, drop_dead
from specc.ir.importers.filled import filled
from specc.ir.importers.masks import resolve_masks
from specc.ir.importers.quiet import quiet
from specc.ir.infer import infer_types
from specc.ir.program import Function, Role
from specc.ir.types import TensorType
from specc.ir.weights import Weight

aten = torch.ops.aten

_RESHAPES = {aten.view.default, aten.reshape.default, aten._unsafe_view.default}
_SIZED = {aten.expand.default}


def import_exported(program: ExportedProgram) -> tuple[Function, dict[str, Weight]]:
    """The function `target` and its weights.

    `program` takes tokens i64[T] and positions i64[T] and returns logits [T, V].
    Raises ModelError for a symbolic size that cannot be removed or an input of another kind.
    """
    if _mutates(program.graph):
        with quiet():
            program = program.run_decompositions(
                {}
            )  # functionalises; three times the cost of tracing
    weights: dict[str, Weight] = {}
    builder = Builder()
    values: dict[fx.Node, Any] = {}
    specs = {s.arg.name: s for s in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            values[node] = _input(program, specs[node.name], node, builder, weights)
        elif node.op == "output":
            builder.graph.output((values[node.args[0][0]],))
        elif node.op == "call_function":
            values[node] = _operation(node, builder, values)
        else:
            raise ModelError(
                "SPECC-E0221",
                f"the exported graph holds a {node.op} node ({node.target}), such as control flow",
                where=layer_of(node),
                cure="export the model without torch.cond or while_loop",
            )
    resolve_masks(builder.graph)
    drop_dead(builder.graph)
    _refuse_symbols(builder.graph)
    try:
        infer_types(builder.graph)
    except InvalidProgramError as error:
        raise ModelError(
            "SPECC-E0225",
            error.what,
            where=error.where,
            expected=error.expected,
            found=error.found,
            cure="choose another architecture; `specc doctor` lists those that work",
        ) from error
    return Function("target", Role.TARGET, builder.graph, ("logits",)), weights


def _mutates(graph: fx.Graph) -> bool:
    """Whether some operation writes to its argument, or the graph has parts that need flattening."""
    return any(
        n.op == "call_function"
        and (not isinstance(n.target, torch._ops.OpOverload) or n.target._schema.is_mutable)
        and getattr(n.target, "__module__", "") not in ("_operator", "math", "builtins")
        and "sym_" not in str(n.target)
        for n in graph.nodes
    )


def layer_of(node: fx.Node) -> str:
    """Path of the innermost module that `node` was traced in, such as `model.layers.3.self_attn`."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values()]
    path = str(paths[-1]) if paths else ""
    return path.removeprefix("L['self'].").removeprefix("model.model.").strip(".") or "the model"


def _input(
    program: ExportedProgram, spec: Any, node: fx.Node, builder: Builder, weights: dict[str, Weight]
) -> fx.Node:
    if spec.kind is InputKind.USER_INPUT:
        return builder.input(node.name, TensorType("i64", ("T",)))
    if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
        tensor = program.state_dict.get(spec.target)
        if tensor is None:
            tensor = program.constants[spec.target]
    elif spec.kind is InputKind.CONSTANT_TENSOR:
        tensor = program.constants[spec.target]
    else:
        raise ModelError(
            "SPECC-E0222", f"the export has an input of kind {spec.kind.name}: {spec.target}"
        )
    name = spec.target.removeprefix("model.")
    weights[name] = Weight.of(tensor)
    reference = builder.weight(name, weights[name].type)
    assert reference.target == WEIGHT + name
    return reference


def _operation(node: fx.Node, builder: Builder, values: dict[fx.Node, Any]) -> Any:
    value: Any = node.meta.get("val")
    if isinstance(value, torch.SymInt) or _is_symbolic_arithmetic(node):
        return _Symbol(str(value))
    args = [_resolve(a, values) for a in node.args]
    kwargs = {k: _resolve(v, values) for k, v in node.kwargs.items()}
    if node.target is aten.slice.Tensor and _is_whole(node):
        return args[0]
    if node.target is aten.slice_scatter.default and (parts := filled(node)) is not None:
        cat = builder.graph.call_function(
            aten.cat.default, ([values[part] for part in parts[0]], parts[1])
        )
        cat.meta["origin"] = layer_of(node)
        return cat
    if node.target in _RESHAPES:
        args[1] = _static_sizes(node)
    elif node.target in _SIZED:
        before: Any = node.args[0]
        source = before.meta["val"].shape
        kept = len(args[1]) - len(source)
        args[1] = [
            -1 if i >= kept and source[i - kept] == size else s
            for i, (size, s) in enumerate(zip(value.shape, args[1], strict=True))
        ]
    # Later rewrites change strides, so no view is promised.
    target: Any = aten.reshape.default if node.target in _RESHAPES else node.target
    new = builder.graph.call_function(target, tuple(args), kwargs)
    new.meta["origin"] = layer_of(node)
    return new


class _Symbol:
    """A size that depends on T; must be gone at the end."""

    def __init__(self, text: str) -> None:
        self.text = text


def _is_symbolic_arithmetic(node: fx.Node) -> bool:
    return node.target in (operator.mul, operator.add, operator.floordiv, operator.sub) or (
        "sym_" in str(node.target) or "_assert" in str(node.target)
    )


def _resolve(argument: Any, values: dict[fx.Node, Any]) -> Any:
    if isinstance(argument, fx.Node):
        return values[argument]
    if isinstance(argument, (list, tuple)):
        return [_resolve(a, values) for a in argument]
    return argument


def _is_whole(node: fx.Node) -> bool:
    """Whether a slice keeps everything."""
    source = node.args[0]
    return bool(isinstance(source, fx.Node) and source.meta["val"].shape == node.meta["val"].shape)


def _static_sizes(node: fx.Node) -> list[int]:
    """The sizes of a view: numbers, and -1 for the one that grows with T."""
    sizes = [int(s) if _is_number(s) else -1 for s in node.meta["val"].shape]
    if sizes.count(-1) > 1:
        raise ModelError(
            "SPECC-E0223",
            "a reshape has two sizes that depend on the number of tokens",
            where=layer_of(node),
            found=str(list(node.meta["val"].shape)),
            cure="this layer builds its own mask or positions; choose another architecture",
        )
    return sizes


def _is_number(size: Any) -> bool:
    return isinstance(size, int) or bool(size.node.expr.is_number)


def _refuse_symbols(graph: fx.Graph) -> None:
    for node in graph.nodes:
        flat, _ = torch.utils._pytree.tree_flatten((node.args, node.kwargs))
        if any(isinstance(a, _Symbol) for a in flat):
            raise ModelError(
                "SPECC-E0224",
                f"{node.target} needs the number of tokens as a number",
                where=str(node.meta.get("origin", "")),
                cure="this layer builds its own mask or positions; choose another architecture",
            )
