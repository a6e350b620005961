"""A model in three pieces, for engines that embed tokens and read logits by calls of their own (MLC)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Function, Role, SpeculativeProgram, TensorType
from specc.ir.graphs import Builder, results_of, type_of
from specc.ir.infer import infer_types
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.replay import Part, mark, parts_of

aten = torch.ops.aten
EMBEDDING, HIDDEN, LOGITS = "embedding", "hidden", "logits"
PIECES = (EMBEDDING, HIDDEN, LOGITS)


@dataclass(frozen=True)
class SplitEnds(Pass):
    """Cut the embedding where positions come in, and the head before its last product.

    Before: target(tokens[T], positions[T], rows[T]) -> logits[T, V] = head(layers(embed(tokens, positions)))
    After:  the same, and embedding(tokens[T]) -> x[T, H]
            hidden(x[T, H], positions[T], rows[T]) -> hidden[T, H], after the final norm: what the head multiplies
            logits(hidden[T, H]) -> logits[T, V]

    Learned positions that are added to embeddings are added in `hidden`. Where tokens reach the layers by more than
    one value, nothing can be cut: SPECC-E0378.
    """

    name: ClassVar[str] = "split-ends"

    def requires(self, program: SpeculativeProgram) -> None:
        parts_of(program)
        taken = [n.name for n in program.functions["target"].inputs]
        need(taken == ["tokens", "positions", "rows"], f"the target takes {taken}", "make-stateful")

    def call(self, program: SpeculativeProgram) -> PassResult:
        if HIDDEN in program.functions:
            return PassResult(program, modified=False)
        embed, *layers, head = parts_of(program)
        entry, exit_ = (program.functions[str(p.node.target)] for p in (embed, head))
        token = entry.inputs[[n.name for n in _passed(embed)].index("tokens")]
        embedded, product = _embedded(entry, token), _product(exit_)
        size = (program.model.hidden_size,)
        pieces = [
            _Piece(entry, embed, "embed.tokens", [embedded], flat=size),
            _Piece(entry, embed, "embed.places", results_of(entry.graph), given=embedded),
            _Piece(exit_, head, "head.norm", [product], flat=size),
            _Piece(exit_, head, "head.product", results_of(exit_.graph), given=product),
        ]
        tokens, places, norm, logits = pieces
        program = program.with_functions(*(p.function for p in pieces))
        stream = {n: type_of(p.function.inputs[0]) for n, p in (("x", places), ("h", logits))}
        return PassResult(program.with_functions(
            _end(EMBEDDING, tokens, "tokens", TensorType("i64", ("T",))),
            _middle(program, places, layers, norm, stream["x"]),
            _end(LOGITS, logits, HIDDEN, stream["h"]),
        ), modified=True)  # fmt: skip

    def ensures(self, program: SpeculativeProgram) -> None:
        promise(all(name in program.functions for name in PIECES), "a piece is missing")


def _passed(part: Part) -> list[fx.Node]:
    """What the target passes to a leaf."""
    return [a for a in part.node.args if isinstance(a, fx.Node)]


def _embedded(leaf: Function, token: fx.Node) -> fx.Node:
    """The one value of the embedding's leaf that is made of tokens alone, and that all others get them by."""
    others = {n for n in leaf.inputs if n is not token and _moves(n)}
    of_tokens, mixed = {token}, set(others)
    for node in leaf.graph.nodes:
        if any(s in mixed for s in node.all_input_nodes):
            mixed.add(node)
        elif any(s in of_tokens for s in node.all_input_nodes):
            of_tokens.add(node)
    results = results_of(leaf.graph)
    border = {s for n in mixed for s in n.all_input_nodes if s in of_tokens}
    border |= {r for r in results if r in of_tokens}
    if len(border) != 1 or token in border:
        raise PassError(
            "SPECC-E0378", "tokens reach the layers by more than one embedding", where=leaf.name,
            expected="one value of [T, H]", found=f"{len(border)} values",
            cure="use another format: --backend tvm or inductor have no such limit",
        )  # fmt: skip
    return border.pop()


def _moves(node: fx.Node) -> bool:
    """Whether an input of a leaf differs from row to row."""
    return "T" in type_of(node).shape


def _product(leaf: Function) -> fx.Node:
    """What the head's matrix is multiplied with."""
    last = next(n for n in reversed(leaf.graph.nodes) if n.target is aten.linear.default)
    source = last.args[0]
    assert isinstance(source, fx.Node)
    return source


class _Piece:
    """A part of a leaf as a leaf of its own: what computes `wanted`, from `given` on, which comes as [T, H] and first.

    `passed`: the target's values for its other inputs. `flat`: results are given as [T, *flat].
    """

    def __init__(
        self, leaf: Function, part: Part, name: str, wanted: Sequence[fx.Node], *,
        given: fx.Node | None = None, flat: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        builder = Builder()
        values: dict[fx.Node, fx.Node] = {}
        self.part, self.passed = part, list[fx.Node]()
        needed = set(wanted)
        for node in reversed(leaf.graph.nodes):
            if node in needed and node is not given:
                needed.update(node.all_input_nodes)
        if given is not None:
            type_ = type_of(given)
            width = type_.shape[-1]
            x = builder.input("x", TensorType(type_.dtype, ("T", width)))
        for input_, value in zip(leaf.inputs, _passed(part), strict=True):
            if input_ in needed and input_ is not given:
                values[input_] = builder.input(input_.name, type_of(input_))
                self.passed.append(value)
        if given is not None:
            sizes = [-1 if d == "T" else int(d) for d in type_.shape]
            values[given] = builder.op(aten.reshape.default, x, sizes)
        for node in leaf.graph.nodes:
            if node.op == "call_function" and node in needed and node not in values:
                values[node] = builder.graph.node_copy(node, values.__getitem__)
        results = [values[n] for n in wanted]
        if flat:
            results = [builder.op(aten.reshape.default, r, [-1, *flat]) for r in results]
        graph = builder.output(*results)
        infer_types(graph, name)
        prefix = leaf.name.rpartition(".")[0]
        named = f"{prefix}.{name}" if prefix else name
        self.function = Function(
            named, Role.LEAF, graph, tuple(f"y{i}" for i in range(len(results)))
        )

    def call(
        self, builder: Builder, first: fx.Node | None, values: dict[fx.Node, fx.Node]
    ) -> list[fx.Node]:
        """Append a call; `values` has the target's values in the new function."""
        args = [builder.taken(n, values) for n in self.passed]
        results = builder.call(self.function, [*([first] if first is not None else []), *args])
        mark(results[0], self.part.part, self.part.layer)
        return results


def _end(name: str, piece: _Piece, taken: str, type_: TensorType) -> Function:
    """A function that calls one piece on its one input."""
    builder = Builder()
    given = builder.input(taken, type_)
    inputs = {n: given for n in piece.passed if n.op == "placeholder"}
    (result,) = piece.call(builder, None if inputs else given, inputs)
    return Function(name, Role.TARGET, builder.output(result), (name,))


def _middle(
    program: SpeculativeProgram, places: _Piece, layers: list[Part], norm: _Piece, stream: TensorType
) -> Function:  # fmt: skip
    builder = Builder()
    x = builder.input("x", stream)
    known = {n: builder.input(n, TensorType("i64", ("T",))) for n in ("positions", "rows")}
    source = program.functions["target"]
    values = {n: known[n.name] for n in source.inputs if n.name in known}
    _bind(values, places.part, places.call(builder, x, values))
    for layer in layers:
        leaf = program.functions[str(layer.node.target)]
        results = builder.call(leaf, [builder.taken(n, values) for n in _passed(layer)])
        mark(results[0], layer.part, layer.layer)
        _bind(values, layer, results)
    (result,) = norm.call(builder, None, values)
    return Function(HIDDEN, Role.TARGET, builder.output(result), (HIDDEN,))


def _bind(values: dict[fx.Node, fx.Node], part: Part, results: list[fx.Node]) -> None:
    """The results of a call in the target are `results` from here on."""
    for item in part.node.users:
        values[item] = results[int(item.args[1])]  # type: ignore[arg-type]
