from dataclasses import replace

import torch
from expecttest import assert_expected_inline
from torch import fx

from specc.ir import SpeculativeProgram
from specc.ir.graphs import Builder
from specc.passes.tabulate_positions import TabulatePositions
from tests.passes import toy

aten = torch.ops.aten
FREQUENCIES = torch.tensor([1.0, 0.1])
E = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))


def _rotary(angles: toy.Body) -> SpeculativeProgram:
    """Embedding [1, T, 2] times `angles`, which is made of positions."""

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        x = builder.op(aten.embedding.default, toy.weight(builder, "e", E), tokens)
        x = builder.op(aten.unsqueeze.default, x, 0)
        x = builder.op(aten.mul.Tensor, x, angles(builder, tokens, positions))
        return builder.op(aten.select.int, x, 0, 0)

    return toy.build(body, {"e": E, "f": FREQUENCIES})


def _cosines(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
    column = builder.op(aten.unsqueeze.default, positions, 1)
    angles = builder.op(aten.mul.Tensor, column, toy.weight(builder, "f", FREQUENCIES))
    return builder.op(aten.unsqueeze.default, builder.op(aten.cos.default, angles), 0)


def _dynamic(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
    longest = builder.op(aten.amax.default, positions)
    part = builder.op(aten.div.Tensor, positions, longest)
    return builder.op(aten.unsqueeze.default, part, 1)


def test_cosines_become_a_table() -> None:
    program, pass_ = _rotary(_cosines), TabulatePositions(toy.POSITIONS)
    toy.assert_twice_is_once(pass_, program)
    rewritten = pass_(program).program
    toy.assert_same_target(program, rewritten)
    assert_expected_inline(
        toy.text(program),
        """\
fn target(%tokens: i64[T], %positions: i64[T]) {target}:
  %0 = aten.embedding(@e, %tokens) : f32[T, 2]
  %1 = aten.unsqueeze(%0, 0) : f32[1, T, 2]
  %2 = aten.unsqueeze(%positions, 1) : i64[T, 1]
  %3 = aten.mul.Tensor(%2, @f) : f32[T, 2]
  %4 = aten.cos(%3) : f32[T, 2]
  %5 = aten.unsqueeze(%4, 0) : f32[1, T, 2]
  %6 = aten.mul.Tensor(%1, %5) : f32[1, T, 2]
  %7 = aten.select.int(%6, 0, 0) : f32[T, 2]
  return logits=%7
""",
    )
    assert_expected_inline(
        toy.text(rewritten),
        """\
fn target(%tokens: i64[T], %positions: i64[T]) {target}:
  %0 = aten.embedding(@e, %tokens) : f32[T, 2]
  %1 = aten.unsqueeze(%0, 0) : f32[1, T, 2]
  %2 = aten.index_select(@table.0, 0, %positions) : f32[T, 1, 2]
  %3 = aten.permute(%2, [1, 0, 2]) : f32[1, T, 2]
  %4 = aten.mul.Tensor(%1, %3) : f32[1, T, 2]
  %5 = aten.select.int(%4, 0, 0) : f32[T, 2]
  return logits=%5
""",
    )
    want = torch.cos(torch.arange(16)[:, None] * FREQUENCIES)
    assert torch.equal(rewritten.weights["table.0"].load().reshape(16, 2), want)


def test_learned_positions_become_a_table() -> None:
    program = toy.decoder(layers=1)
    toy.assert_twice_is_once(TabulatePositions(8), program)
    rewritten = TabulatePositions(8)(program).program
    toy.assert_same_target(program, rewritten)
    assert "wpe" not in rewritten.weights
    assert torch.equal(rewritten.weights["table.0"].load(), program.weights["wpe"].load()[:8])


def test_a_lookup_at_shifted_positions_becomes_one_at_positions() -> None:
    table = torch.randn(20, 2, generator=torch.Generator().manual_seed(2))

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        x = builder.op(aten.embedding.default, toy.weight(builder, "e", E), tokens)
        shifted = builder.op(aten.add.Tensor, positions, 2)
        where = builder.op(aten.index_select.default, toy.weight(builder, "t", table), 0, shifted)
        return builder.op(aten.add.Tensor, x, where)

    program = toy.build(body, {"e": E, "t": table})
    rewritten = TabulatePositions(toy.POSITIONS)(program).program
    toy.assert_same_target(program, rewritten)
    assert torch.equal(rewritten.weights["table.0"].load(), table[2:18])


def test_leaves_alone() -> None:
    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        return builder.op(aten.embedding.default, toy.weight(builder, "e", E), tokens)

    program = toy.build(body, {"e": E})
    result = TabulatePositions(toy.POSITIONS)(program)
    assert not result.modified
    assert result.program is program


def test_refuses() -> None:
    pass_ = TabulatePositions(toy.POSITIONS)
    assert toy.refusal(pass_, toy.empty()) == "SPECC-E0330 tabulate-positions: there is no target"
    assert toy.refusal(pass_, _rotary(_dynamic)) == (
        "SPECC-E0332 tabulate-positions: "
        "a position's value depends on the other positions of the call"
    )
    assert toy.refusal(TabulatePositions(17), toy.decoder()) == (
        "SPECC-E0353 tabulate-positions: toy has no 17 positions"
    )
    square = _rotary(
        lambda builder, tokens, positions: builder.op(
            aten.unsqueeze.default,
            builder.op(
                aten.sum.dim_IntList,
                builder.op(
                    aten.mul.Tensor, builder.op(aten.unsqueeze.default, positions, 1), positions
                ),
                [0],
            ),
            1,
        )
    )
    assert toy.refusal(pass_, square).startswith("SPECC-E0332")


def test_positions_of_a_model_without_a_limit() -> None:
    program = _rotary(_cosines)
    free = replace(program, model=replace(program.model, max_position=0))
    assert TabulatePositions(64)(free).modified
