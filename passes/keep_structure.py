"""Keep a small vector of each position, for a drafter on the host that looks for positions like the last."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, fx

from specc.errors import PassError
from specc.ir import Owner, Role, SpeculativeProgram, StateBuffer, StateKind, TensorType, Weight
from specc.ir.dialect import ops
from specc.ir.graphs import Builder, copy_graph, type_of, weight_name
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise, same
from specc.passes.leaf_writer import Leaf, LeafWriter
from specc.passes.replay import Part, parts_of

aten = torch.ops.aten
STRUCTURE = "structure"
WEIGHT, BIAS = f"{STRUCTURE}.weight", f"{STRUCTURE}.bias"
FIRST, SECOND = f"{STRUCTURE}.head.0", f"{STRUCTURE}.head.1"


@dataclass(frozen=True)
class Basis:
    """z = weight @ f + bias: f32 [D, F] and [D]. The first columns of z say most, so that some of them may do."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Head:
    """Two layers over z: second @ silu(first @ z + bias). f32 [M, D], [M] and [E, M]."""

    first: Tensor
    bias: Tensor
    second: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        """Of z [N, D] -> [N, E], as the graph has it."""
        return torch.nn.functional.silu(z @ self.first.T + self.bias) @ self.second.T


@dataclass(frozen=True)
class KeepStructure(Pass):
    """Every call of the target leaves, for each of its rows, the last layer's key and value in a few numbers.

    Before: x2 = call layer.1(x1, rows, ...)
    After:  call structure(x1, rows, @structure.weight, @structure.bias, ..., $structure)
            x2 = call layer.1(x1, rows, ...)

    f = [key; value] of all heads, the key before its rotation, which would mix the position into what it
    says; z is f in `basis`. With a `head` z goes through its two layers, and what they make is kept instead.
    They are computed by the layer's own operations, from what enters it, and kept
    like rows of a cache. A layer that has no keys of its own is passed over for the last one that has.
    """

    name: ClassVar[str] = "keep-structure"

    basis: Basis | None = None
    head: Head | None = None

    def requires(self, program: SpeculativeProgram) -> None:
        need(self.basis is not None, "there is no basis", "calibration")
        width = feature_width(program)
        assert self.basis is not None
        if self.basis.weight.shape[1] != width:
            raise PassError(
                "SPECC-E0380", "the basis is of other features than the target's", expected=f"{width} numbers",
                found=str(list(self.basis.weight.shape)), cure="fit it on this target",
            )  # fmt: skip
        if self.head is not None and self.head.first.shape[1] != len(self.basis.weight):
            raise PassError(
                "SPECC-E0380", "the head is of other vectors than the basis makes",
                expected=f"{len(self.basis.weight)} numbers", found=str(list(self.head.first.shape)),
                cure="train it on this basis",
            )  # fmt: skip
        if STRUCTURE not in program.functions:
            need("prefill" not in program.functions, "prefill keeps no structure",
                 "keep-structure before gather-logits")  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        assert self.basis is not None
        fitted = {WEIGHT: Weight.of(self.basis.weight), BIAS: Weight.of(self.basis.bias)}
        width = self.basis.weight.shape[0]
        if self.head is not None:
            fitted |= {
                f"{FIRST}.weight": Weight.of(self.head.first), f"{FIRST}.bias": Weight.of(self.head.bias),
                f"{SECOND}.weight": Weight.of(self.head.second),
            }  # fmt: skip
            width = self.head.second.shape[0]
        known = program.weights.added(fitted)  # refuses other contents
        if STRUCTURE in program.functions:
            same("a head", f"{FIRST}.weight" in program.weights, self.head is not None)
            return PassResult(program, modified=False)
        buffer = StateBuffer(
            STRUCTURE, TensorType("f32", (1, "S", width)), StateKind.FEATURES, Owner.DRAFTER
        )
        program = replace(program, weights=known).with_state(buffer)
        leaf, layer = structure_leaf(program, projected=True)
        program = program.with_functions(leaf.function)
        graph, copies = copy_graph(program.functions["target"].graph)
        (rows,) = (n for n in graph.nodes if n.op == "placeholder" and n.name == "rows")
        stream = layer.node.args[0]
        assert isinstance(stream, fx.Node)
        with graph.inserting_before(copies[layer.node]):
            leaf.call(Builder(graph), program, copies[stream], rows)
        target = Function("target", Role.TARGET, graph, program.functions["target"].outputs)
        return PassResult(program.replacing(target), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        promise(any(p.part == STRUCTURE for p in parts_of(program)), "nothing is kept")


def structure_leaf(program: SpeculativeProgram, *, projected: bool) -> tuple[Leaf, Part]:
    """The leaf x [T, H] -> f [T, F], or, `projected`, x, rows -> z [T, D], kept; and the layer that it is of."""
    layer, key, value = _key_and_value(program)
    writer = LeafWriter(program, STRUCTURE, STRUCTURE, -1)
    source = program.functions[str(layer.node.target)]
    x = writer.value("x", type_of(source.inputs[0]).dtype, "T", program.model.hidden_size)
    rows = writer.value("rows", "i64", "T") if projected else None
    values: dict[fx.Node, fx.Node] = {source.inputs[0]: x}
    weights = {
        taken: name
        for taken, given in zip(source.inputs, layer.node.args, strict=True)
        if isinstance(given, fx.Node) and (name := weight_name(given)) is not None
    }
    needed = _ancestors(key) | _ancestors(value)
    for node in source.graph.nodes:
        if node not in needed or node in values:
            continue
        if node in weights:
            values[node] = writer.weight(weights[node])
        else:
            values[node] = writer.builder.graph.node_copy(node, values.__getitem__)
    result = writer.cat(*(_by_row(writer, values[node], node) for node in (key, value)))
    if rows is not None:
        result = writer.linear(result, STRUCTURE)
        if f"{FIRST}.weight" in program.weights:
            result = writer.linear(
                writer.op(aten.silu.default, writer.linear(result, FIRST)), SECOND
            )
        writer.keep(STRUCTURE, writer.op(aten.unsqueeze.default, result, 1), rows)
    return writer.end(result, names=(STRUCTURE,)), layer


def feature_width(program: SpeculativeProgram) -> int:
    """F: numbers of a position's key and value, over all heads."""
    _, key, value = _key_and_value(program)
    return sum(_numbers(node) for node in (key, value))


def _key_and_value(program: SpeculativeProgram) -> tuple[Part, fx.Node, fx.Node]:
    """Of the last layer that writes a cache: the key before its rotation and the value, as values of its leaf."""
    for part in reversed(
        parts_of(program, "target" if "target" in program.functions else "prefill")
    ):
        leaf = program.functions[str(part.node.target)]
        written = {
            n.args[0]: n.args[1] for n in leaf.graph.nodes if n.target is ops.cache_write.default
        }
        for node in leaf.graph.nodes:
            found = node.target is ops.cached_attention.default and {*node.args[1:3]} <= set(
                written
            )
            if part.part == "layer" and found:
                key, value = (written[cache] for cache in node.args[1:3])
                before = _before_rotation(leaf, part, key)
                if _before_rotation(leaf, part, value) is not value:
                    raise _inseparable(leaf)
                return part, before, value
    raise PassError(
        "SPECC-E0381", "no layer keeps keys and values of its own", where=program.name,
        cure="use --method suffix",
    )  # fmt: skip


def _before_rotation(leaf: Function, part: Part, key: Any) -> fx.Node:
    """The last value on the way to `key` that all of it comes from, and that knows no position.

    A rotation multiplies it, or halves of it, by tables of the row's position, which come from outside of the
    layer. What depends on the layer's input and weights alone knows none.
    """
    weights = {
        taken for taken, given in zip(leaf.inputs, part.node.args, strict=True)
        if isinstance(given, fx.Node) and weight_name(given) is not None
    }  # fmt: skip
    stream, needed = leaf.inputs[0], _ancestors(key)
    content: dict[fx.Node, bool] = {}  # of the stream, and of nothing but the stream and weights
    for node in leaf.graph.nodes:
        if node in needed:
            sources = node.all_input_nodes
            pure = (
                all(s in content for s in sources) if sources else node is stream or node in weights
            )
            if pure:
                content[node] = node is stream or any(content[s] for s in sources)
    if content.get(key):
        return key  # type: ignore[no-any-return]
    ends = [
        n for n, streams in content.items()
        if streams and any(u in needed and u not in content for u in n.users)
    ]  # fmt: skip
    common = [
        n for n, streams in content.items() if streams and all(n in _ancestors(e) for e in ends)
    ]
    if not ends or common[-1] is stream:
        raise _inseparable(leaf)
    return common[-1]


def _inseparable(leaf: Function) -> PassError:
    return PassError(
        "SPECC-E0382", "the last layer's keys and values cannot be told from their position", where=leaf.name,
        cure="use --method suffix",
    )  # fmt: skip


def _ancestors(node: fx.Node) -> set[fx.Node]:
    """`node` and all that it is computed from."""
    found, waiting = {node}, [node]
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                waiting.append(source)
    return found


def _numbers(node: fx.Node) -> int:
    """Of a row."""
    total = 1
    for dim in type_of(node).shape:
        total *= 1 if dim == "T" else int(dim)
    return total


def _by_row(writer: LeafWriter, value: fx.Node, like: fx.Node) -> fx.Node:
    """A value of any layout -> [T, numbers], in f32."""
    shape = type_of(like).shape
    rows = shape.index("T")
    if rows:
        order = [rows, *(i for i in range(len(shape)) if i != rows)]
        value = writer.op(aten.permute.default, value, order)
    return writer.op(aten.reshape.default, value, [-1, _numbers(like)])
