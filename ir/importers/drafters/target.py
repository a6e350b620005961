"""The target as a drafter checkpoint must fit it: sizes, and the embedding and head that drafters borrow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from specc.errors import ModelError
from specc.ir.graphs import weight_name
from specc.ir.program import SpeculativeProgram
from specc.ir.weights import Weight

_EMBEDDING = torch.ops.aten.embedding.default
_LINEAR = torch.ops.aten.linear.default
_PRODUCTS = (torch.ops.aten.mul.Tensor, torch.ops.aten.mul.Scalar)
_VIEWS = (torch.ops.aten.to.dtype, torch.ops.aten.alias.default, torch.ops.aten.view.default)


@dataclass(frozen=True, eq=False)
class Target:
    """What a drafter is checked against.

    `embedding` f32[rows, H] and `head` f32[rows, H] may have more rows than there are tokens (padding).
    `scales_embedding`: the model multiplies what it looks up; `head_bias`: its head adds a bias.
    """

    name: str
    architecture: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    embedding: Weight
    head: Weight
    scales_embedding: bool = False
    head_bias: bool = False

    @property
    def rows(self) -> int:
        """Rows of the head: ids that a drafter may name."""
        return int(self.head.type.shape[0])

    @classmethod
    def of(cls, program: SpeculativeProgram) -> Target:
        """The facts of an imported program, before any pass.

        Raises ModelError (SPECC-E0270) if it has no embedding looked up by token or no linear head.
        """
        graph = program.functions["target"].graph
        tokens = next(n for n in graph.nodes if n.op == "placeholder")
        looked_up = next(
            (n for n in graph.nodes if n.target is _EMBEDDING and _from(n.args[1]) is tokens),
            None,
        )  # fmt: skip
        output = next(n for n in reversed(graph.nodes) if n.op == "output")
        linear = _head(output)
        if looked_up is None or linear is None:
            raise ModelError(
                "SPECC-E0270", "the target has no embedding or head that a drafter could share",
                where=program.name, expected="an embedding of tokens, and a linear at the end",
                cure="use --method ngram or suffix",
            )  # fmt: skip
        info = program.model
        embedding, head = (str(weight_name(n)) for n in (looked_up.args[0], linear.args[1]))  # type: ignore[arg-type]
        return cls(
            program.name, info.architecture, info.hidden_size, info.num_layers, info.vocab_size,
            program.weights[embedding], program.weights[head], _scaled(looked_up), len(linear.args) > 2,
        )  # fmt: skip


def _from(node: object) -> fx.Node:
    """The node that `node` is a view of."""
    assert isinstance(node, fx.Node)
    while node.op == "call_function" and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node


def _head(node: fx.Node) -> fx.Node | None:
    """The last linear before `node`, through what does not mix channels (scales, caps, views)."""
    while len(node.all_input_nodes) >= 1:
        node = node.all_input_nodes[0]
        if node.target is _LINEAR:
            weight = node.args[1]
            return node if isinstance(weight, fx.Node) and weight.op == "get_attr" else None
        if node.op != "call_function":
            return None
    return None


def _scaled(node: fx.Node) -> bool:
    """Whether `node`, or a view of it, is multiplied by a constant."""
    for user in node.users:
        others = [a for a in user.args if a is not node]
        if user.target in _PRODUCTS:
            return all(not isinstance(a, fx.Node) or _from(a).op == "get_attr" for a in others)
        if len(user.all_input_nodes) == 1 and user.target in _VIEWS:
            return _scaled(user)
    return False
