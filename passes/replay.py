"""Write a model's calls again in another function, with other rows, or layers or head left out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass

from torch import fx

from specc.errors import PassError
from specc.ir import Function, SpeculativeProgram, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import (
    Builder,
    at_rows,
    results_of,
    state_name,
    type_of,
    weight_name,
    written,
)
from specc.passes.base import need


@dataclass(frozen=True)
class Part:
    """One call of the target: `part` is embed, layer or head; results by index."""

    node: fx.Node
    part: str
    layer: int


def parts_of(program: SpeculativeProgram, name: str = "target") -> list[Part]:
    """The calls of a target, or of a function made of one. PassError before outline-layers."""
    need(name in program.functions, f"there is no {name}", "an importer")
    calls = [n for n in program.functions[name].graph.nodes if n.op == "call_module"]
    need(calls, f"{name} is one piece", "outline-layers")
    return [Part(n, str(n.meta["part"]), int(n.meta["layer"])) for n in calls]


def written_state(program: SpeculativeProgram, function: Function) -> list[str]:
    """The state that leaves called by `function` write, in the program's order."""
    names: set[str | None] = set()
    for call in function.graph.nodes:
        if call.op == "call_module":
            leaf = program.functions[str(call.target)]
            inside = {value for node in leaf.graph.nodes for value in written(node)}
            pairs = zip(call.args, leaf.inputs, strict=True)
            names |= {state_name(given) for given, taken in pairs if taken in inside}
    return [name for name in program.state if name in names]


def replay(
    builder: Builder, program: SpeculativeProgram, function: str, inputs: dict[str, fx.Node],
    rows: int | None, *, layers: Collection[int] | None = None, head: bool = True,
    taps: bool = True, stream: Callable[[fx.Node], fx.Node] | None = None,
    head_row: fx.Node | None = None,
) -> fx.Node | None:  # fmt: skip
    """Append the body of `function` to `builder`; returns its logits, or None without the head.

    `inputs`: values for `tokens`, `positions` and `rows`, and for `parents` where rows are a tree; a model that takes
    parents is told of roots alone without. `rows`: T as a number, or None to keep it open.
    `layers`: those that run; a layer left out passes its input on. `stream` makes what enters the
    first layer from the embedding's output [rows, H]. `head_row`: i64[1], the only row whose logits
    are computed.
    """
    source = program.functions[function]
    if "parents" not in inputs and any(n.name == "parents" for n in source.inputs):
        known = inputs["rows"]
        inputs |= {"parents": builder.op(ops.roots.default, known, type_=type_of(known))}
    values: dict[fx.Node, fx.Node] = {n: inputs[n.name] for n in source.inputs}
    for node in source.graph.nodes:
        if node.op == "placeholder":
            continue
        if (weight := weight_name(node)) is not None:
            values[node] = builder.weight(weight, type_of(node))
        elif (state := state_name(node)) is not None:
            values[node] = builder.state(state, program.state[state].type)
        elif node.op == "call_module":
            part = node.meta["part"]
            if part == "head" and not head:
                continue
            if part == "layer" and layers is not None and node.meta["layer"] not in layers:
                _pass_on(node, values)
                continue
            _call(builder, program, node, values, rows, head_row if part == "head" else None)
            if part == "embed" and stream is not None:
                values[_items(node)[0]] = stream(values[_items(node)[0]])
        elif node.op == "call_function" and node not in values:
            _copy(builder, node, values, rows, taps)
    results = results_of(source.graph)
    return values.get(results[0]) if results else None


def _copy(
    builder: Builder, node: fx.Node, values: dict[fx.Node, fx.Node], rows: int | None, taps: bool
) -> None:
    """Another operation than a call. What read the head goes with it, and taps if none are wanted."""
    left_out = any(source not in values for source in node.all_input_nodes)
    if left_out or (node.target is ops.cache_copy.default and not taps):
        return
    values[node] = builder.graph.node_copy(node, values.__getitem__)
    values[node].meta = {**node.meta, "type": at_rows(node.meta.get("type"), rows)}


def _pass_on(node: fx.Node, values: dict[fx.Node, fx.Node]) -> None:
    """Leave a layer out: its stream is what came in."""
    stream_in = node.args[0]
    assert isinstance(stream_in, fx.Node)
    for item in _items(node):
        if _index(item) == 0:
            values[item] = values[stream_in]
        elif item.users:
            raise PassError(
                "SPECC-E0336", f"layer {node.meta['layer']} cannot be left out",
                expected="a layer that gives the residual stream alone",
                found=f"result {_index(item)} of {node.target} is used elsewhere",
                cure="keep this layer with --draft-layers",
            )  # fmt: skip


def _items(node: fx.Node) -> list[fx.Node]:
    """The results of a call, in order."""
    return sorted((u for u in node.users if u.target is operator.getitem), key=_index)


def _index(item: fx.Node) -> int:
    index = item.args[1]
    assert isinstance(index, int)
    return index


def _call(
    builder: Builder, program: SpeculativeProgram, node: fx.Node, values: dict[fx.Node, fx.Node],
    rows: int | None, only_row: fx.Node | None,
) -> None:  # fmt: skip
    args = [values[a] for a in node.args if isinstance(a, fx.Node)]
    if only_row is not None:
        one = TensorType(type_of(args[0]).dtype, (1, *type_of(args[0]).shape[1:]))
        args[0], rows = builder.op(ops.row.default, args[0], only_row, type_=one), 1
    results = builder.call(program.functions[str(node.target)], args, rows)
    mark(results[0], node.meta["part"], node.meta["layer"])
    for item in _items(node):
        values[item] = results[_index(item)]


def mark(result: fx.Node, part: str, layer: int) -> None:
    """Note on the call that gave `result` which part of a model it is."""
    call = result.args[0]
    assert isinstance(call, fx.Node)
    call.meta["part"], call.meta["layer"] = part, layer


def token_inputs(builder: Builder, rows: int | str, tree: bool = False) -> dict[str, fx.Node]:
    """Inputs `tokens`, `positions` and (cache) `rows`, and of a tree `parents`, i64[rows] each."""
    type_ = TensorType("i64", (rows,))
    names = ("tokens", "positions", "rows", *(("parents",) if tree else ()))
    return {name: builder.input(name, type_) for name in names}
