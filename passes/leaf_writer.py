"""Writes the leaves of a drafter operation by operation, and calls them with their weights and state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from specc.ir import Function, Role, SpeculativeProgram, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import Builder, type_of
from specc.ir.infer import infer_types
from specc.ir.printer import function_lines
from specc.passes.replay import mark

aten = torch.ops.aten
PREFIX = "draft."
"""Begins the names of a drafter's weights and leaves."""


@dataclass(frozen=True)
class Leaf:
    """A leaf, and the weights (`@name`) and state (`$name`) that follow the values in its inputs."""

    function: Function
    part: str
    layer: int
    constants: tuple[str, ...]

    def call(
        self, builder: Builder, program: SpeculativeProgram, *values: fx.Node,
        rows: int | None = None,
    ) -> list[fx.Node]:  # fmt: skip
        """Append a call; `rows` is T as a number, or None to keep it open."""
        constants = [
            builder.weight(name[1:], program.weights[name[1:]].type)
            if name[0] == "@"
            else builder.state(name[1:], program.state[name[1:]].type)
            for name in self.constants
        ]
        results = builder.call(self.function, [*values, *constants], rows)
        mark(results[0], self.part, self.layer)
        return results


class LeafWriter:
    """The graph of one leaf while it is written. Shapes: T rows, H width, D head width."""

    def __init__(self, program: SpeculativeProgram, name: str, part: str, layer: int = -1) -> None:
        self.program, self.name, self.part, self.layer = program, name, part, layer
        self.builder = Builder()
        self._constants: dict[str, fx.Node] = {}
        self._last: fx.Node | None = None

    def value(self, name: str, dtype: str, *shape: int | str) -> fx.Node:
        """An input that each call gives. All values come before the first weight or state."""
        assert not self._constants
        self._last = self.builder.input(name, TensorType(dtype, shape))
        return self._last

    def weight(self, name: str) -> fx.Node:
        """The weight `name` of the program, as an input."""
        return self._constant(f"@{name}", self.program.weights[name].type)

    def state(self, name: str) -> fx.Node:
        """The state buffer `name` of the program, as an input."""
        return self._constant(f"${name}", self.program.state[name].type)

    def _constant(self, name: str, type_: TensorType) -> fx.Node:
        if name not in self._constants:
            assert self._last is not None
            with self.builder.graph.inserting_after(self._last):
                node = self.builder.graph.placeholder(f"constant_{len(self._constants)}")
            node.meta["type"] = type_
            self._constants[name] = self._last = node
        return self._constants[name]

    def op(self, target: Any, *args: Any) -> fx.Node:
        """An operation; its type is found at the end."""
        return self.builder.op(target, *args)

    def linear(self, x: fx.Node, name: str) -> fx.Node:
        """X @ W.T + b of `name`.weight and, where there is one, `name`.bias."""
        bias = f"{name}.bias"
        more = (self.weight(bias),) if bias in self.program.weights else ()
        return self.op(aten.linear.default, x, self.weight(f"{name}.weight"), *more)

    def norm(self, x: fx.Node, name: str, eps: float) -> fx.Node:
        """RMSNorm over the last dimension with `name`.weight."""
        squares = self.op(aten.mean.dim, self.op(aten.pow.Tensor_Scalar, x, 2), [-1], True)
        scale = self.op(aten.rsqrt.default, self.op(aten.add.Tensor, squares, eps))
        normed = self.op(aten.mul.Tensor, x, scale)
        return self.op(aten.mul.Tensor, normed, self.weight(f"{name}.weight"))

    def cat(self, *parts: fx.Node) -> fx.Node:
        """Side by side along the last dimension."""
        return parts[0] if len(parts) == 1 else self.op(aten.cat.default, list(parts), -1)

    def heads(self, x: fx.Node, width: int) -> fx.Node:
        """[T, heads * D] -> [T, heads, D]."""
        return self.op(aten.reshape.default, x, [-1, self.width(x) // width, width])

    def width(self, x: fx.Node) -> int:
        """Of the last dimension of x."""
        infer_types(self.builder.graph)
        return int(type_of(x).shape[-1])

    def rotate(
        self, x: fx.Node, positions: fx.Node, table: str, *, interleaved: bool = False
    ) -> fx.Node:
        """Rotary embedding of x [T, heads, D] by @table.cos, @table.sin [S, R], R <= D, halves paired.

        `interleaved`: channels 0 and 1, 2 and 3, ... are pairs; they leave as halves, queries and keys alike.
        """
        rotary = int(self.program.weights[f"{table}.cos"].type.shape[1])
        width = self.width(x)
        turned = self.op(aten.slice.Tensor, x, -1, 0, rotary) if rotary < width else x
        if interleaved:
            pairs = (self.op(aten.slice.Tensor, turned, -1, i, rotary, 2) for i in range(2))
            turned = self.cat(*pairs)
        cos, sin = (
            self.op(
                aten.unsqueeze.default,
                self.op(aten.index_select.default, self.weight(f"{table}.{f}"), 0, positions), 1,
            )
            for f in ("cos", "sin")
        )  # fmt: skip
        low = self.op(aten.slice.Tensor, turned, -1, 0, rotary // 2)
        high = self.op(aten.slice.Tensor, turned, -1, rotary // 2, rotary)
        across = self.cat(self.op(aten.neg.default, high), low)
        turned = self.op(
            aten.add.Tensor, self.op(aten.mul.Tensor, turned, cos),
            self.op(aten.mul.Tensor, across, sin),
        )  # fmt: skip
        if rotary == width:
            return turned
        return self.cat(turned, self.op(aten.slice.Tensor, x, -1, rotary, width))

    def keep(self, cache: str, x: fx.Node, rows: fx.Node) -> None:
        """Write x [T, heads, D] to $cache at `rows`."""
        self.op(ops.cache_write.default, self.state(cache), x, rows)

    def end(self, *results: fx.Node, names: Sequence[str]) -> Leaf:
        """The leaf that returns `results`."""
        graph = self.builder.output(*results)
        infer_types(graph, self.name)
        function = Function(self.name, Role.LEAF, graph, tuple(names))
        return Leaf(function, self.part, self.layer, tuple(self._constants))


def shared(leaves: Sequence[Leaf]) -> list[Leaf]:
    """The same leaves, of which those with equal text call one function."""
    functions: dict[str, Function] = {}
    found = []
    for leaf in leaves:
        text = "\n".join(function_lines(replace(leaf.function, name="leaf")))
        found.append(replace(leaf, function=functions.setdefault(text, leaf.function)))
    return found
