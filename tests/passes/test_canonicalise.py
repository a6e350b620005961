import torch
from expecttest import assert_expected_inline
from torch import fx

from specc.ir import SpeculativeProgram
from specc.ir.graphs import Builder
from specc.passes.canonicalise import Canonicalise
from tests.passes import toy

aten = torch.ops.aten
W = torch.arange(24.0).reshape(4, 6)
E = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
B = torch.arange(6.0)


def _head(tail: toy.Body) -> SpeculativeProgram:
    """Embedding, then `tail`, which sees x [T, 4] in place of the tokens."""

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        x = builder.op(aten.embedding.default, toy.weight(builder, "e", E), tokens)
        return tail(builder, x, positions)

    return toy.build(body, {"e": E, "w": W, "b": B})


def _check(program: SpeculativeProgram) -> SpeculativeProgram:
    toy.assert_twice_is_once(Canonicalise(), program)
    rewritten = Canonicalise()(program).program
    toy.assert_same_target(program, rewritten)
    return rewritten


def test_drops_what_does_nothing() -> None:
    def tail(builder: Builder, x: fx.Node, positions: fx.Node) -> fx.Node:
        x = builder.op(aten.clone.default, x)
        x = builder.op(aten.mul.Tensor, x, 1.0)
        x = builder.op(aten.reshape.default, x, [-1, 4])
        x = builder.op(aten.add.Tensor, x, 0)
        return builder.op(aten.mul.Tensor, x, 2.0)

    program = _head(tail)
    assert_expected_inline(
        toy.text(program),
        """\
fn target(%tokens: i64[T], %positions: i64[T]) {target}:
  %0 = aten.embedding(@e, %tokens) : f32[T, 4]
  %1 = aten.clone(%0) : f32[T, 4]
  %2 = aten.mul.Tensor(%1, 1.0) : f32[T, 4]
  %3 = aten.reshape(%2, [-1, 4]) : f32[T, 4]
  %4 = aten.add.Tensor(%3, 0) : f32[T, 4]
  %5 = aten.mul.Tensor(%4, 2.0) : f32[T, 4]
  return logits=%5
""",
    )
    assert_expected_inline(
        toy.text(_check(program)),
        """\
fn target(%tokens: i64[T], %positions: i64[T]) {target}:
  %0 = aten.embedding(@e, %tokens) : f32[T, 4]
  %1 = aten.mul.Tensor(%0, 2.0) : f32[T, 4]
  return logits=%1
""",
    )


def test_products_become_linear() -> None:
    def tail(builder: Builder, x: fx.Node, positions: fx.Node) -> fx.Node:
        w, b = toy.weight(builder, "w", W), toy.weight(builder, "b", B)
        first = builder.op(aten.addmm.default, b, x, w)
        second = builder.op(aten.mm.default, first, builder.op(aten.permute.default, w, [1, 0]))
        return builder.op(aten.matmul.default, second, w)

    assert_expected_inline(
        toy.text(_check(_head(tail))),
        """\
fn target(%tokens: i64[T], %positions: i64[T]) {target}:
  %0 = aten.embedding(@e, %tokens) : f32[T, 4]
  %1 = aten.linear(%0, @w.T, @b) : f32[T, 6]
  %2 = aten.linear(%1, @w) : f32[T, 4]
  %3 = aten.linear(%2, @w.T) : f32[T, 6]
  return logits=%3
""",
    )


def test_a_permutation_that_swaps_nothing_is_no_transpose() -> None:
    square = torch.arange(16.0).reshape(4, 4)

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        x = builder.op(aten.embedding.default, toy.weight(builder, "e", E), tokens)
        same = builder.op(aten.permute.default, toy.weight(builder, "s", square), [0, 1])
        return builder.op(aten.mm.default, x, same)

    _check(toy.build(body, {"e": E, "s": square}))


def test_constants_are_folded_once() -> None:
    def tail(builder: Builder, x: fx.Node, positions: fx.Node) -> fx.Node:
        b = toy.weight(builder, "b", B)
        scale = builder.op(aten.exp.default, builder.op(aten.neg.default, b))
        return builder.op(
            aten.mul.Tensor, builder.op(aten.linear.default, x, toy.weight(builder, "e", E)), scale
        )

    rewritten = _check(_head(tail))
    assert_expected_inline(
        toy.text(rewritten),
        """\
fn target(%tokens: i64[T], %positions: i64[T]) {target}:
  %0 = aten.embedding(@e, %tokens) : f32[T, 4]
  %1 = aten.linear(%0, @e) : f32[T, 6]
  %2 = aten.mul.Tensor(%1, @folded.exp_default) : f32[T, 6]
  return logits=%2
""",
    )
    assert set(rewritten.weights) == {"e", "folded.exp_default"}


def test_a_constant_that_outgrows_its_weights_stays() -> None:
    def tail(builder: Builder, x: fx.Node, positions: fx.Node) -> fx.Node:
        wide = builder.op(
            aten.expand.default, toy.weight(builder, "one", torch.ones(1, 1)), [1 << 19, 4]
        )
        return builder.op(aten.add.Tensor, x, builder.op(aten.sum.dim_IntList, wide, [0], True))

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        return tail(
            builder,
            builder.op(aten.embedding.default, toy.weight(builder, "e", E), tokens),
            positions,
        )

    program = toy.build(body, {"e": E, "one": torch.ones(1, 1)})
    small = Canonicalise()(
        program
    ).program  # the sum is small again: folded, but never the wide one
    assert sum(w.type.at()[0] for w in small.weights.values()) < 100

    def wide_body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        x = builder.op(aten.embedding.default, toy.weight(builder, "e", E), tokens)
        wide = builder.op(
            aten.expand.default, toy.weight(builder, "one", torch.ones(1, 1)), [1 << 19, 4]
        )
        return builder.op(aten.matmul.default, x, builder.op(aten.permute.default, wide, [1, 0]))

    program = toy.build(wide_body, {"e": E, "one": torch.ones(1, 1)})
    assert not Canonicalise()(program).modified


def test_equal_operations_are_shared() -> None:
    def tail(builder: Builder, x: fx.Node, positions: fx.Node) -> fx.Node:
        left, right = (builder.op(aten.cos.default, x) for _ in range(2))
        return builder.op(aten.add.Tensor, left, right)

    assert_expected_inline(
        toy.text(_check(_head(tail))),
        """\
fn target(%tokens: i64[T], %positions: i64[T]) {target}:
  %0 = aten.embedding(@e, %tokens) : f32[T, 4]
  %1 = aten.cos(%0) : f32[T, 4]
  %2 = aten.add.Tensor(%1, %1) : f32[T, 4]
  return logits=%2
""",
    )


def test_leaves_alone() -> None:
    for program in (
        Canonicalise()(toy.decoder()).program,
        toy.after("make-stateful"),
        toy.after("outline-layers"),
    ):
        result = Canonicalise()(program)
        assert not result.modified
        assert result.program is program


def test_refuses() -> None:
    assert (
        toy.refusal(Canonicalise(), toy.empty()) == "SPECC-E0330 canonicalise: there is no target"
    )
