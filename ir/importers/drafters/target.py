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


@dataclass(frozen=True, eq=False)
class Target:
    """What a drafter is checked against.

    `embedding` f32[rows, H] and `head` f32[rows, H] may have more rows than there are tokens (padding).
    """

    name: str
    architecture: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    embedding: Weight
    head: Weight

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
        embedding = next(
            (n.args[0] for n in graph.nodes if n.target is _EMBEDDING and _from(n.args[1]) is tokens),
            None,
        )  # fmt: skip
        output = next(n for n in reversed(graph.nodes) if n.op == "output")
        head = _head(output)
        if embedding is None or head is None:
            raise ModelError(
                "SPECC-E0270", "the target has no embedding or head that a drafter could share",
                where=program.name, expected="an embedding of tokens, and a linear at the end",
                cure="use --method ngram or suffix",
            )  # fmt: skip
        info = program.model
        return cls(
            program.name, info.architecture, info.hidden_size, info.num_layers, info.vocab_size,
            program.weights[str(weight_name(embedding))], program.weights[str(weight_name(head))],
        )  # fmt: skip


def _from(node: object) -> fx.Node:
    """The node that `node` is a view of."""
    assert isinstance(node, fx.Node)
    while node.op == "call_function" and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node


def _head(node: fx.Node) -> fx.Node | None:
    """The weight of the last linear before `node`, through what does not mix channels (scales, caps, views)."""
    while len(node.all_input_nodes) >= 1:
        node = node.all_input_nodes[0]
        if node.target is _LINEAR:
            weight = node.args[1]
            return weight if isinstance(weight, fx.Node) and weight.op == "get_attr" else None
        if node.op != "call_function":
            return None
    return None
