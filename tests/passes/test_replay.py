"""Calls written again: what is not a call goes along, and a layer that others read stays."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Function, Role, SpeculativeProgram, TensorType
from specc.ir.graphs import Builder, copy_graph, output_of, type_of
from specc.passes.replay import mark, replay, token_inputs
from tests.passes import toy

aten = torch.ops.aten


def _target(program: SpeculativeProgram, edit) -> SpeculativeProgram:  # type: ignore[no-untyped-def]
    graph, _ = copy_graph(program.functions["target"].graph)
    edit(graph)
    return program.replacing(Function("target", Role.TARGET, graph, ("logits",)))


def _scale(graph: fx.Graph) -> None:
    """logits = logits * 2, to half and back: an operation outside leaves, with keywords."""
    end = output_of(graph)
    (logits,) = end.args[0]  # type: ignore[misc]
    type_ = type_of(logits)  # type: ignore[arg-type]
    with graph.inserting_before(end):
        node = graph.call_function(aten.add.Tensor, (logits, logits), {"alpha": 3})
        node.meta["type"] = type_
    end.args = ((node,),)


@pytest.mark.parametrize("head", [True, False])
def test_other_operations_are_copied(head: bool) -> None:
    program = toy.after("outline-layers")
    scaled = _target(program, _scale)
    builder = Builder()
    logits = replay(builder, scaled, "target", token_inputs(builder, 3), 3, head=head)
    if not head:
        assert logits is None
        assert "aten.add.Tensor" not in str(builder.graph)
        return
    assert logits is not None
    assert logits.kwargs == {"alpha": 3}
    assert logits.meta["type"] == TensorType("f32", (3, toy.VOCAB))
    verify = Function("verify", Role.VERIFY, builder.output(logits), ("logits",))
    both = program.with_functions(verify)
    at = torch.arange(3)
    plain, got = (
        toy.evaluate(both, name, [toy.TOKENS[:3], at, at], toy.poisoned_state(both))[0]
        for name in ("target", "verify")
    )
    torch.testing.assert_close(got, plain * 4)


def _two_results() -> SpeculativeProgram:
    """Layers of a leaf that gives what came in beside what goes out; the second layer reads it."""
    rows = TensorType("f32", ("T", 4))
    builder = Builder()
    x = builder.input("x", rows)
    y = builder.op(aten.tanh.default, x, type_=rows)
    leaf = Function("layer.0", Role.LEAF, builder.output(y, x), ("x", "shared"))
    builder = Builder()
    x = builder.input("tokens", rows)
    builder.input("positions", TensorType("i64", ("T",)))
    first = builder.call(leaf, [x])
    mark(first[0], "layer", 0)
    total = builder.op(aten.add.Tensor, first[0], first[1], type_=rows)
    second = builder.call(leaf, [total])
    mark(second[0], "layer", 1)
    target = Function("target", Role.TARGET, builder.output(second[0]), ("logits",))
    return toy.empty().with_functions(leaf, target)


def test_a_layer_whose_other_results_are_read_is_not_left_out() -> None:
    program = _two_results()
    builder = Builder()
    inputs = {"tokens": builder.input("tokens", TensorType("f32", (1, 4)))}
    inputs["positions"] = builder.input("positions", TensorType("i64", (1,)))
    with pytest.raises(PassError, match="SPECC-E0336") as refused:
        replay(builder, program, "target", inputs, 1, layers=(1,))
    assert "layer 0" in refused.value.what
    assert replay(builder, program, "target", inputs, 1, layers=(0,)) is not None
