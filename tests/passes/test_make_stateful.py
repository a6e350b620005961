import pytest
import torch
from expecttest import assert_expected_inline
from torch import fx

from specc.ir import Owner
from specc.ir.dialect import ops
from specc.ir.graphs import Builder
from specc.passes.make_stateful import MakeStateful
from tests.passes import toy

aten = torch.ops.aten


def test_attention_reads_a_cache() -> None:
    program = toy.decoder(layers=1)
    toy.assert_twice_is_once(MakeStateful(), program)
    rewritten = MakeStateful()(program).program
    toy.assert_same_target(program, rewritten)
    assert_expected_inline(
        "\n".join(map(str, rewritten.state.values())),
        """\
state $target.k.0: f32[1, S, 4] (target kv_cache)
state $target.v.0: f32[1, S, 4] (target kv_cache)""",
    )
    assert_expected_inline(
        toy.text(program),
        """\
fn target(%tokens: i64[T], %positions: i64[T]) {target}:
  %0 = aten.unsqueeze(%tokens, 0) : i64[1, T]
  %1 = aten.embedding(@wpe, %positions) : f32[T, 4]
  %2 = aten.embedding(@wte, %0) : f32[1, T, 4]
  %3 = aten.add.Tensor(%2, %1) : f32[1, T, 4]
  %4 = aten.linear(%3, @w0) : f32[1, T, 4]
  %5 = aten.unsqueeze(%4, 1) : f32[1, 1, T, 4]
  %6 = specc.attention(%5, %5, %5, None, 0.5, 0, 0.0, 0) : f32[1, T, 1, 4]
  %7 = aten.select.int(%6, 2, 0) : f32[1, T, 4]
  %8 = aten.add.Tensor(%3, %7) : f32[1, T, 4]
  %9 = aten.linear(%8, @head) : f32[1, T, 6]
  %10 = aten.select.int(%9, 0, 0) : f32[T, 6]
  return logits=%10
""",
    )
    assert_expected_inline(
        toy.text(rewritten),
        """\
fn target(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {target}:
  %0 = aten.unsqueeze(%tokens, 0) : i64[1, T]
  %1 = aten.embedding(@wpe, %positions) : f32[T, 4]
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
  %16 = aten.linear(%15, @head) : f32[1, T, 6]
  %17 = aten.select.int(%16, 0, 0) : f32[T, 6]
  return logits=%17
""",
    )


@pytest.mark.parametrize("windows", [(2, 0), (1, 3), (0, 0)])
def test_windows(windows: tuple[int, int]) -> None:
    program = toy.decoder(windows=windows)
    toy.assert_same_target(program, MakeStateful()(program).program)


def test_attention_takes_parents_where_rows_may_be_a_tree() -> None:
    program = toy.decoder(layers=1)
    toy.assert_twice_is_once(MakeStateful(trees=True), program)
    lines = toy.text(MakeStateful(trees=True)(program).program).splitlines()
    assert_expected_inline(
        "\n".join(x for x in lines if "parents" in x),
        """\
fn target(%tokens: i64[T], %positions: i64[T], %rows: i64[T], %parents: i64[T]) {target}:
  %12 = specc.cached_attention(%11, $target.k.0, $target.v.0, %positions, %rows, %parents, 0.5, 0, 0.0, None) : f32[T, 1, 4]""",  # noqa: E501
    )


def test_layers_on_the_same_keys_share_a_cache() -> None:
    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        x = builder.op(aten.embedding.default, toy.weight(builder, "e", torch.eye(6)), tokens)
        keys = builder.op(aten.reshape.default, x, [1, 1, -1, 6])
        y = keys
        for layer in range(2):
            y = builder.op(ops.attention.default, y, keys, keys, None, 1.0, 0, 0.0, layer)
            y = builder.op(aten.transpose.int, y, 1, 2)
        return builder.op(aten.reshape.default, y, [-1, 6])

    program = toy.build(body, {"e": torch.eye(6)})
    rewritten = MakeStateful()(program).program
    assert list(rewritten.state) == ["target.k.0", "target.v.0"]
    toy.assert_same_target(program, rewritten)


def test_the_owner_names_the_state() -> None:
    state = MakeStateful(Owner.DRAFTER)(toy.decoder(layers=1)).program.state
    assert [(b.name, b.owner) for b in state.values()] == [
        ("drafter.k.0", Owner.DRAFTER),
        ("drafter.v.0", Owner.DRAFTER),
    ]


def test_refuses() -> None:
    assert (
        toy.refusal(MakeStateful(), toy.empty()) == "SPECC-E0330 make-stateful: there is no target"
    )
