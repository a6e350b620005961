"""What a drafter's layer does after attention: an MLP, or a mixture of experts."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from specc.ir.importers.drafters import Experts, Mlp
from specc.passes.leaf_writer import LeafWriter

aten = torch.ops.aten
ACTIVATIONS: dict[str, tuple[Any, dict[str, str]]] = {
    "silu": (aten.silu.default, {}), "swish": (aten.silu.default, {}), "relu": (aten.relu.default, {}),
    "gelu": (aten.gelu.default, {}), "gelu_pytorch_tanh": (aten.gelu.default, {"approximate": "tanh"}),
}  # fmt: skip
_NO_SHARE = 1e-20
"""What transformers adds to a sum of shares before it divides by it."""


def after_attention(writer: LeafWriter, name: str, mlp: Mlp | Experts, x: fx.Node) -> fx.Node:
    """The MLP or the experts of weights `name`.* for normed rows x [T, H] -> [T, H]."""
    if isinstance(mlp, Mlp):
        return _one(writer, name, mlp.activation, x)
    chosen, shares = _chosen(writer, name, mlp, x)
    mixed = _mixed(writer, name, mlp, x, chosen, shares)
    if not mlp.shared_size:
        return mixed
    shared = _one(writer, f"{name}.shared_expert", mlp.activation, x)
    if mlp.shared_gate:
        gate = writer.op(aten.sigmoid.default, writer.linear(x, f"{name}.shared_gate"))
        shared = writer.op(aten.mul.Tensor, shared, gate)
    return writer.op(aten.add.Tensor, mixed, shared)


def _one(writer: LeafWriter, name: str, activation: str, x: fx.Node) -> fx.Node:
    gate = _activated(writer, activation, writer.linear(x, f"{name}.gate_proj"))
    wide = writer.op(aten.mul.Tensor, gate, writer.linear(x, f"{name}.up_proj"))
    return writer.linear(wide, f"{name}.down_proj")


def _activated(writer: LeafWriter, activation: str, gate: fx.Node) -> fx.Node:
    function, how = ACTIVATIONS[activation]
    return writer.builder.graph.call_function(function, (gate,), dict(how))


def _chosen(writer: LeafWriter, name: str, experts: Experts, x: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The experts of each row, i64[T, k], and by what their results are multiplied, f32[T, k]."""
    logits = writer.linear(x, f"{name}.gate")
    sigmoid = experts.scoring == "sigmoid"
    scores = wanted = (
        writer.op(aten.sigmoid.default, logits)
        if sigmoid
        else writer.op(aten.softmax.int, logits, -1)
    )
    if experts.correction:
        wanted = writer.op(aten.add.Tensor, scores, writer.weight(f"{name}.gate.correction"))
    if experts.groups > 1:
        wanted = _of_best_groups(writer, experts, wanted)
    shares, chosen = _most(writer, wanted, experts.per_token)
    if wanted is not scores:
        shares = writer.op(aten.gather.default, scores, 1, chosen)
    if experts.normalise:
        total = writer.op(aten.sum.dim_IntList, shares, [-1], True)
        shares = writer.op(aten.div.Tensor, shares, writer.op(aten.add.Tensor, total, _NO_SHARE))
    if experts.scale != 1:
        shares = writer.op(aten.mul.Tensor, shares, experts.scale)
    return chosen, shares


def _of_best_groups(writer: LeafWriter, experts: Experts, wanted: fx.Node) -> fx.Node:
    """`wanted` [T, E], -inf for experts of groups that are not among the best by the sum of their two best."""
    size = experts.count // experts.groups
    grouped = writer.op(aten.reshape.default, wanted, [-1, experts.groups, size])
    of_groups = writer.op(aten.sum.dim_IntList, _most(writer, grouped, 2)[0], [-1])
    best = _most(writer, of_groups, experts.groups_per_token)[1]
    inside = writer.op(
        aten.scatter.value, writer.op(aten.full_like.default, of_groups, 0.0), 1, best, 1.0
    )
    outside = writer.op(aten.unsqueeze.default, writer.op(aten.eq.Scalar, inside, 0.0), -1)
    kept = writer.op(aten.masked_fill.Scalar, grouped, outside, -torch.inf)
    return writer.op(aten.reshape.default, kept, [-1, experts.count])


def _most(writer: LeafWriter, x: fx.Node, count: int) -> tuple[fx.Node, fx.Node]:
    """The `count` largest of the last dimension, and where they are."""
    both = writer.op(aten.topk.default, x, count, -1, True, False)
    return writer.op(operator.getitem, both, 0), writer.op(operator.getitem, both, 1)


def _mixed(
    writer: LeafWriter, name: str, experts: Experts, x: fx.Node, chosen: fx.Node, shares: fx.Node
) -> fx.Node:
    """The sum of the chosen experts' results, in the form that a target's have (`ir.importers.experts`).

    Each row gathers the matrices of its own experts, so its result depends on that row alone.
    """

    def products(x: fx.Node, matrices: str) -> fx.Node:
        """X [T, 1 or k, I] with `matrices` [E, O, I] of the chosen -> [T, k, O]."""
        taken = writer.op(aten.index.Tensor, writer.weight(f"{name}.experts.{matrices}"), [chosen])
        by_row = writer.op(aten.mul.Tensor, writer.op(aten.unsqueeze.default, x, 2), taken)
        return writer.op(aten.sum.dim_IntList, by_row, [-1])

    size = experts.intermediate_size
    both = products(writer.op(aten.unsqueeze.default, x, 1), "gate_up_proj")
    gate, up = (writer.op(aten.slice.Tensor, both, -1, i * size, (i + 1) * size) for i in range(2))
    wide = writer.op(aten.mul.Tensor, _activated(writer, experts.activation, gate), up)
    results = products(wide, "down_proj")
    weighted = writer.op(aten.mul.Tensor, results, writer.op(aten.unsqueeze.default, shares, -1))
    return writer.op(aten.sum.dim_IntList, weighted, [1])
