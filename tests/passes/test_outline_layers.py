# ruff: noqa: E501 (programs as they print)
import pytest
import torch
from expecttest import assert_expected_inline
from torch import fx

from specc.ir.dialect import ops
from specc.ir.graphs import Builder
from specc.passes.outline_layers import OutlineLayers
from specc.passes.tap_hidden_states import TapHiddenStates
from tests.passes import toy

aten = torch.ops.aten


def test_layers_become_calls_of_one_leaf() -> None:
    program = toy.after("make-stateful")
    toy.assert_twice_is_once(OutlineLayers(), program)
    rewritten = OutlineLayers()(program).program
    toy.assert_same_target(program, rewritten)
    assert rewritten.model.num_layers == 2
    assert_expected_inline(
        toy.text(program),
        """\
fn target(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {target}:
  %0 = aten.unsqueeze(%tokens, 0) : i64[1, T]
  %1 = aten.index_select(@table.0, 0, %positions) : f32[T, 4]
  %2 = aten.embedding(@wte, %0) : f32[1, T, 4]
  %3 = aten.add.Tensor(%2, %1) : f32[1, T, 4]
  %4 = aten.linear(%3, @w0) : f32[1, T, 4]
  %5 = aten.unsqueeze(%4, 1) : f32[1, 1, T, 4]
  %6 = aten.select.int(%5, 0, 0) : f32[1, T, 4]
  %7 = aten.transpose.int(%6, 0, 1) : f32[T, 1, 4]
  specc.cache_write($target.k.0, %7, %rows)
  %8 = aten.select.int(%5, 0, 0) : f32[1, T, 4]
  %9 = aten.transpose.int(%8, 0, 1) : f32[T, 1, 4]
  specc.cache_write($target.v.0, %9, %rows)
  %10 = aten.select.int(%5, 0, 0) : f32[1, T, 4]
  %11 = aten.transpose.int(%10, 0, 1) : f32[T, 1, 4]
  %12 = specc.cached_attention(%11, $target.k.0, $target.v.0, %positions, %rows, None, 0.5, 0, 0.0, None) : f32[T, 1, 4]
  %13 = aten.unsqueeze(%12, 0) : f32[1, T, 1, 4]
  %14 = aten.select.int(%13, 2, 0) : f32[1, T, 4]
  %15 = aten.add.Tensor(%3, %14) : f32[1, T, 4]
  %16 = aten.linear(%15, @w1) : f32[1, T, 4]
  %17 = aten.unsqueeze(%16, 1) : f32[1, 1, T, 4]
  %18 = aten.select.int(%17, 0, 0) : f32[1, T, 4]
  %19 = aten.transpose.int(%18, 0, 1) : f32[T, 1, 4]
  specc.cache_write($target.k.1, %19, %rows)
  %20 = aten.select.int(%17, 0, 0) : f32[1, T, 4]
  %21 = aten.transpose.int(%20, 0, 1) : f32[T, 1, 4]
  specc.cache_write($target.v.1, %21, %rows)
  %22 = aten.select.int(%17, 0, 0) : f32[1, T, 4]
  %23 = aten.transpose.int(%22, 0, 1) : f32[T, 1, 4]
  %24 = specc.cached_attention(%23, $target.k.1, $target.v.1, %positions, %rows, None, 0.5, 0, 0.0, None) : f32[T, 1, 4]
  %25 = aten.unsqueeze(%24, 0) : f32[1, T, 1, 4]
  %26 = aten.select.int(%25, 2, 0) : f32[1, T, 4]
  %27 = aten.add.Tensor(%15, %26) : f32[1, T, 4]
  %28 = aten.linear(%27, @head) : f32[1, T, 6]
  %29 = aten.select.int(%28, 0, 0) : f32[T, 6]
  return logits=%29
""",
    )
    assert_expected_inline(
        toy.text(rewritten),
        """\
fn target(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {target}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[T, 4])
  %3 = %2[0] : f32[T, 4]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1) : (f32[T, 4])
  %5 = %4[0] : f32[T, 4]
  %6 = call head {head}(%5, @head) : (f32[T, 6])
  %7 = %6[0] : f32[T, 6]
  return logits=%7
fn embed(%positions: i64[T], %tokens: i64[T], %weight_2: f32[16, 4], %weight_3: f32[6, 4]) {leaf}:
  %0 = aten.index_select(%weight_2, 0, %positions) : f32[T, 4]
  %1 = aten.unsqueeze(%tokens, 0) : i64[1, T]
  %2 = aten.embedding(%weight_3, %1) : f32[1, T, 4]
  %3 = aten.add.Tensor(%2, %0) : f32[1, T, 4]
  %4 = aten.select.int(%3, 0, 0) : f32[T, 4]
  return x=%4
fn layer.0(%x: f32[T, 4], %rows: i64[T], %positions: i64[T], %state_3: f32[1, S, 4], %state_4: f32[1, S, 4], %weight_5: f32[4, 4]) {leaf}:
  %0 = aten.unsqueeze(%x, 0) : f32[1, T, 4]
  %1 = aten.linear(%0, %weight_5) : f32[1, T, 4]
  %2 = aten.unsqueeze(%1, 1) : f32[1, 1, T, 4]
  %3 = aten.select.int(%2, 0, 0) : f32[1, T, 4]
  %4 = aten.transpose.int(%3, 0, 1) : f32[T, 1, 4]
  specc.cache_write(%state_3, %4, %rows)
  %5 = aten.select.int(%2, 0, 0) : f32[1, T, 4]
  %6 = aten.transpose.int(%5, 0, 1) : f32[T, 1, 4]
  specc.cache_write(%state_4, %6, %rows)
  %7 = aten.select.int(%2, 0, 0) : f32[1, T, 4]
  %8 = aten.transpose.int(%7, 0, 1) : f32[T, 1, 4]
  %9 = specc.cached_attention(%8, %state_3, %state_4, %positions, %rows, None, 0.5, 0, 0.0, None) : f32[T, 1, 4]
  %10 = aten.unsqueeze(%9, 0) : f32[1, T, 1, 4]
  %11 = aten.select.int(%10, 2, 0) : f32[1, T, 4]
  %12 = aten.add.Tensor(%0, %11) : f32[1, T, 4]
  %13 = aten.select.int(%12, 0, 0) : f32[T, 4]
  return x=%13
fn head(%x: f32[T, 4], %weight_1: f32[6, 4]) {leaf}:
  %0 = aten.unsqueeze(%x, 0) : f32[1, T, 4]
  %1 = aten.linear(%0, %weight_1) : f32[1, T, 6]
  %2 = aten.select.int(%1, 0, 0) : f32[T, 6]
  return logits=%2
""",
    )


@pytest.mark.parametrize(
    ("windows", "leaves"),
    [((0, 0, 0), "0 0 0"), ((2, 0, 2, 0), "0 1 0 1"), ((2, 2, 0), "0 0 1"), ((0,), "0")],
)
def test_a_leaf_for_each_kind_of_layer(windows: tuple[int, ...], leaves: str) -> None:
    program = toy.after("make-stateful", toy.decoder(len(windows), windows=windows))
    rewritten = OutlineLayers()(program).program
    toy.assert_same_target(program, rewritten)
    calls = [
        str(n.target) for n in rewritten.functions["target"].graph.nodes if n.op == "call_module"
    ]
    assert calls == ["embed", *(f"layer.{k}" for k in leaves.split()), "head"]


def test_the_prefix_names_the_leaves() -> None:
    rewritten = OutlineLayers("draft.")(toy.after("make-stateful")).program
    assert sorted(rewritten.functions) == ["draft.embed", "draft.head", "draft.layer.0", "target"]


def test_taps_do_not_stop_a_second_run() -> None:
    tapped = TapHiddenStates((1,))(toy.after("outline-layers")).program
    assert not OutlineLayers()(tapped).modified


def test_refuses() -> None:
    assert (
        toy.refusal(OutlineLayers(), toy.empty())
        == "SPECC-E0330 outline-layers: there is no target"
    )
    assert toy.refusal(OutlineLayers(), toy.decoder()) == (
        "SPECC-E0330 outline-layers: the target has no state yet"
    )

    def nothing(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        return builder.op(aten.embedding.default, toy.weight(builder, "e", torch.eye(6)), tokens)

    assert toy.refusal(OutlineLayers(), toy.build(nothing, {"e": torch.eye(6)})) == (
        "SPECC-E0341 outline-layers: the target has no attention"
    )


def test_refuses_two_streams() -> None:
    """Every layer adds what entered the layer before it."""

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        one = builder.op(aten.unsqueeze.default, tokens, 0)
        x = builder.op(aten.embedding.default, toy.weight(builder, "e", torch.eye(6)), one)
        before = x
        for layer in range(3):
            y = builder.op(aten.unsqueeze.default, x, 1)
            y = builder.op(ops.attention.default, y, y, y, None, 1.0, 0, 0.0, layer)
            y = builder.op(aten.add.Tensor, builder.op(aten.select.int, y, 2, 0), before)
            before, x = x, y
        return builder.op(aten.select.int, x, 0, 0)

    program = toy.after("make-stateful", toy.build(body, {"e": torch.eye(6)}))
    assert toy.refusal(OutlineLayers(), program) == (
        "SPECC-E0342 outline-layers: more than one tensor flows between two layers"
    )
