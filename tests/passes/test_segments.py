"""Where decoders of other shapes than the toy's fall apart."""

import operator

import pytest
import torch
from torch import fx

from specc.ir import SpeculativeProgram
from specc.ir.dialect import ops
from specc.ir.graphs import Builder
from specc.passes.outline_layers import OutlineLayers
from specc.passes.segments import cut
from tests.passes import toy

aten = torch.ops.aten
EYE = torch.eye(6)


def _attend(builder: Builder, x: fx.Node, layer: int) -> fx.Node:
    y = builder.op(aten.unsqueeze.default, x, 1)
    y = builder.op(ops.attention.default, y, y, y, None, 1.0, 0, 0.0, layer)
    return builder.op(aten.select.int, y, 2, 0)


def _norm(builder: Builder, x: fx.Node) -> fx.Node:
    (y, *_) = (
        builder.graph.call_function(operator.getitem, (n, 0))
        for n in [builder.op(aten.native_layer_norm.default, x, [6], None, None, 1e-5)]
    )
    return y


def _mlp(builder: Builder, x: fx.Node) -> fx.Node:
    return builder.op(
        aten.tanh.default, builder.op(aten.linear.default, x, toy.weight(builder, "e", EYE))
    )


def _add(builder: Builder, x: fx.Node, y: fx.Node) -> fx.Node:
    return builder.op(aten.add.Tensor, x, y)


def _pre_norm(builder: Builder, x: fx.Node, layer: int) -> fx.Node:
    x = _add(builder, x, _attend(builder, _norm(builder, x), layer))
    return _add(builder, x, _mlp(builder, _norm(builder, x)))


def _parallel(builder: Builder, x: fx.Node, layer: int) -> fx.Node:
    y = _norm(builder, x)
    return _add(builder, _add(builder, x, _attend(builder, y, layer)), _mlp(builder, y))


def _norm_after_branch(builder: Builder, x: fx.Node, layer: int) -> fx.Node:
    x = _add(builder, x, _norm(builder, _attend(builder, x, layer)))
    return _add(builder, x, _norm(builder, _mlp(builder, x)))


def _norm_after_sum(builder: Builder, x: fx.Node, layer: int) -> fx.Node:
    x = _norm(builder, _add(builder, x, _attend(builder, x, layer)))
    return _norm(builder, _add(builder, x, _mlp(builder, x)))


def _experts(builder: Builder, x: fx.Node, layer: int) -> fx.Node:
    x = _add(builder, x, _attend(builder, _norm(builder, x), layer))
    y = _norm(builder, x)
    gates = builder.op(aten.softmax.int, y, -1)
    top = builder.op(aten.topk.default, gates, 2)
    best = builder.graph.call_function(operator.getitem, (top, 0))
    share = builder.op(aten.sum.dim_IntList, best, [-1], True)
    return _add(builder, x, builder.op(aten.mul.Tensor, _mlp(builder, y), share))


LAYERS = [_pre_norm, _parallel, _norm_after_branch, _norm_after_sum, _experts]


def _model(layer, count: int, last=None) -> SpeculativeProgram:  # type: ignore[no-untyped-def]
    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        one = builder.op(aten.unsqueeze.default, tokens, 0)
        x = builder.op(aten.embedding.default, toy.weight(builder, "e", EYE), one)
        for j in range(count):
            before = set(builder.graph.nodes)
            x = (last if last and j == count - 1 else layer)(builder, x, j)
            for node in set(builder.graph.nodes) - before:
                node.meta["origin"] = (
                    f"layers.{j}.self_attn" if "attention" in str(node.target) else f"layers.{j}"
                )
        x = builder.op(aten.linear.default, _norm(builder, x), toy.weight(builder, "e", EYE))
        return builder.op(aten.select.int, x, 0, 0)

    return toy.build(body, {"e": EYE})


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("layer", LAYERS)
def test_equal_layers_are_one_leaf(layer, count: int) -> None:  # type: ignore[no-untyped-def]
    program = _model(layer, count)
    rewritten = OutlineLayers()(toy.after("make-stateful", program)).program
    toy.assert_same_target(program, rewritten)
    assert sorted(rewritten.functions) == ["embed", "head", "layer.0", "target"]
    head = [
        str(n.target) for n in rewritten.functions["head"].graph.nodes if n.op == "call_function"
    ]
    assert head == [
        "aten.unsqueeze.default", "aten.native_layer_norm.default", "<built-in function getitem>",
        "aten.linear.default", "aten.select.int",
    ]  # fmt: skip


@pytest.mark.parametrize("last", LAYERS)
def test_the_last_layer_may_differ(last) -> None:  # type: ignore[no-untyped-def]
    program = _model(_pre_norm, 3, last)
    stateful = toy.after("make-stateful", program)
    parts = cut(stateful.functions["target"].graph)
    assert [p.part for p in parts] == ["embed", "layer", "layer", "layer", "head"]
    assert parts[3].kind == (last is not _pre_norm)
    assert len(parts[4].nodes) == 4
    toy.assert_same_target(program, OutlineLayers()(stateful).program)


def _per_layer(count: int, everywhere: bool = True) -> SpeculativeProgram:
    """Every layer adds a row of its own for the token, gathered once for all, as gemma4 does."""
    table = torch.randn(6, count * 6, generator=torch.Generator().manual_seed(3))

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        one = builder.op(aten.unsqueeze.default, tokens, 0)
        x = builder.op(aten.embedding.default, toy.weight(builder, "e", EYE), one)
        rows = builder.op(aten.embedding.default, toy.weight(builder, "t", table), one)
        rows = builder.op(aten.reshape.default, rows, [1, -1, count, 6])
        for j in range(count):
            x = _pre_norm(builder, x, j)
            if everywhere or j:
                x = _add(builder, x, builder.op(aten.select.int, rows, 2, j))
        x = builder.op(aten.linear.default, _norm(builder, x), toy.weight(builder, "e", EYE))
        return builder.op(aten.select.int, x, 0, 0)

    return toy.build(body, {"e": EYE, "t": table})


@pytest.mark.parametrize("count", [2, 3])
def test_embeddings_per_layer_are_shared_values(count: int) -> None:
    program = _per_layer(count)
    stateful = toy.after("make-stateful", program)
    rewritten = OutlineLayers()(stateful).program
    toy.assert_same_target(program, rewritten)
    assert sorted(rewritten.functions) == ["embed", "head", "layer.0", "target"]
    # The stream, and a row for each layer.
    assert len(rewritten.functions["embed"].outputs) == 1 + count


def test_embeddings_per_layer_of_one_layer_are_refused() -> None:
    """Nothing tells them from what the layer computes itself."""
    refused = toy.refusal(OutlineLayers(), toy.after("make-stateful", _per_layer(1)))
    assert refused.startswith("SPECC-E0342")


def test_embeddings_per_layer_that_one_layer_does_not_read() -> None:
    program = _per_layer(3, everywhere=False)
    rewritten = OutlineLayers()(toy.after("make-stateful", program)).program
    toy.assert_same_target(program, rewritten)
    assert sorted(rewritten.functions) == ["embed", "head", "layer.0", "layer.1", "target"]


def test_what_the_embedding_gave_may_be_read_by_every_layer() -> None:
    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        one = builder.op(aten.unsqueeze.default, tokens, 0)
        x = first = builder.op(aten.embedding.default, toy.weight(builder, "e", EYE), one)
        for layer in range(3):
            x = _add(builder, _attend(builder, x, layer), first)
        return builder.op(aten.select.int, x, 0, 0)

    program = toy.build(body, {"e": EYE})
    rewritten = OutlineLayers()(toy.after("make-stateful", program)).program
    toy.assert_same_target(program, rewritten)
