from dataclasses import replace

import pytest
import torch
from expecttest import assert_expected_inline
from torch import fx

from specc.ir import SpeculativeProgram
from specc.ir.dialect import ops
from specc.ir.graphs import Builder
from specc.passes.fuse_linears import FuseLinears, joined_name
from tests.passes import toy

aten = torch.ops.aten
SIZES = {"q": 4, "k": 4, "v": 4, "gate": 3, "up": 3}


def block(
    bias: bool = False, tied: bool = False, dtype: torch.dtype = torch.float32
) -> SpeculativeProgram:
    """One layer with matrices of its own for q, k, v, and a gated product after it; `dtype` of v alone."""
    draw = torch.Generator().manual_seed(2)
    weights = {f"{n}.w": torch.randn(size, 4, generator=draw) for n, size in SIZES.items()}
    weights |= {f"{n}.b": torch.randn(size, generator=draw) for n, size in SIZES.items() if bias}
    weights |= {"wte": torch.randn(6, 4, generator=draw), "head": torch.randn(6, 3, generator=draw)}
    weights["v.w"] = weights["v.w"].to(dtype)

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        def linear(x: fx.Node, name: str) -> fx.Node:
            refs = [toy.weight(builder, f"{name}.{part}", weights[f"{name}.{part}"])
                    for part in ("w", *(("b",) if bias else ()))]  # fmt: skip
            if refs[0].meta["type"].dtype != "f32":
                refs[0] = builder.op(aten._to_copy.default, refs[0])
                refs[0].kwargs = {"dtype": torch.float32}
            return builder.op(aten.linear.default, x, *refs)

        one = builder.op(aten.unsqueeze.default, tokens, 0)
        x = builder.op(aten.embedding.default, toy.weight(builder, "wte", weights["wte"]), one)
        heads = [builder.op(aten.unsqueeze.default, linear(x, n), 1) for n in "qkv"]
        y = builder.op(ops.attention.default, *heads, None, 0.5, 0, 0.0, 0)
        x = builder.op(aten.add.Tensor, x, builder.op(aten.select.int, y, 2, 0))
        if tied:
            x = builder.op(aten.add.Tensor, x, linear(x, "q"))
        gate = builder.op(aten.silu.default, linear(x, "gate"))
        x = builder.op(aten.mul.Tensor, gate, linear(x, "up"))
        y = builder.op(aten.linear.default, x, toy.weight(builder, "head", weights["head"]))
        return builder.op(aten.select.int, y, 0, 0)

    return toy.build(body, weights, 1)


def test_one_product_for_each_input() -> None:
    program = block()
    toy.assert_twice_is_once(FuseLinears(), program)
    rewritten = FuseLinears()(program).program
    toy.assert_same_target(program, rewritten)
    assert_expected_inline(
        toy.text(program),
        """\
fn target(%tokens: i64[T], %positions: i64[T]) {target}:
  %0 = aten.unsqueeze(%tokens, 0) : i64[1, T]
  %1 = aten.embedding(@wte, %0) : f32[1, T, 4]
  %2 = aten.linear(%1, @q.w) : f32[1, T, 4]
  %3 = aten.unsqueeze(%2, 1) : f32[1, 1, T, 4]
  %4 = aten.linear(%1, @k.w) : f32[1, T, 4]
  %5 = aten.unsqueeze(%4, 1) : f32[1, 1, T, 4]
  %6 = aten.linear(%1, @v.w) : f32[1, T, 4]
  %7 = aten.unsqueeze(%6, 1) : f32[1, 1, T, 4]
  %8 = specc.attention(%3, %5, %7, None, 0.5, 0, 0.0, 0) : f32[1, T, 1, 4]
  %9 = aten.select.int(%8, 2, 0) : f32[1, T, 4]
  %10 = aten.add.Tensor(%1, %9) : f32[1, T, 4]
  %11 = aten.linear(%10, @gate.w) : f32[1, T, 3]
  %12 = aten.silu(%11) : f32[1, T, 3]
  %13 = aten.linear(%10, @up.w) : f32[1, T, 3]
  %14 = aten.mul.Tensor(%12, %13) : f32[1, T, 3]
  %15 = aten.linear(%14, @head) : f32[1, T, 6]
  %16 = aten.select.int(%15, 0, 0) : f32[T, 6]
  return logits=%16
""",
    )
    assert_expected_inline(
        toy.text(rewritten),
        """\
fn target(%tokens: i64[T], %positions: i64[T]) {target}:
  %0 = aten.unsqueeze(%tokens, 0) : i64[1, T]
  %1 = aten.embedding(@wte, %0) : f32[1, T, 4]
  %2 = aten.linear(%1, @(q+k+v).w) : f32[1, T, 12]
  %3 = aten.slice.Tensor(%2, 2, 0, 4) : f32[1, T, 4]
  %4 = aten.slice.Tensor(%2, 2, 4, 8) : f32[1, T, 4]
  %5 = aten.slice.Tensor(%2, 2, 8, 12) : f32[1, T, 4]
  %6 = aten.unsqueeze(%3, 1) : f32[1, 1, T, 4]
  %7 = aten.unsqueeze(%4, 1) : f32[1, 1, T, 4]
  %8 = aten.unsqueeze(%5, 1) : f32[1, 1, T, 4]
  %9 = specc.attention(%6, %7, %8, None, 0.5, 0, 0.0, 0) : f32[1, T, 1, 4]
  %10 = aten.select.int(%9, 2, 0) : f32[1, T, 4]
  %11 = aten.add.Tensor(%1, %10) : f32[1, T, 4]
  %12 = aten.linear(%11, @(gate+up).w) : f32[1, T, 6]
  %13 = aten.slice.Tensor(%12, 2, 0, 3) : f32[1, T, 3]
  %14 = aten.slice.Tensor(%12, 2, 3, 6) : f32[1, T, 3]
  %15 = aten.silu(%13) : f32[1, T, 3]
  %16 = aten.mul.Tensor(%15, %14) : f32[1, T, 3]
  %17 = aten.linear(%16, @head) : f32[1, T, 6]
  %18 = aten.select.int(%17, 0, 0) : f32[T, 6]
  return logits=%18
""",
    )
    want = torch.cat([program.weights[f"{n}.w"].load() for n in "qkv"])
    assert torch.equal(rewritten.weights["(q+k+v).w"].load(), want)


def test_biases_go_along() -> None:
    program = block(bias=True)
    rewritten = FuseLinears()(program).program
    toy.assert_same_target(program, rewritten)
    assert sorted(rewritten.weights) == [
        "(gate+up).b", "(gate+up).w", "(q+k+v).b", "(q+k+v).w", "head", "wte",
    ]  # fmt: skip


def test_a_matrix_that_is_read_elsewhere_stays_alone() -> None:
    """`q` multiplies a second time after the attention: fused, it would be stored twice."""
    program = block(tied=True)
    rewritten = FuseLinears()(program).program
    toy.assert_same_target(program, rewritten)
    assert {"q.w", "(k+v).w", "(gate+up).w"} < set(rewritten.weights)


def test_matrices_of_other_types_stay_alone() -> None:
    program = block(dtype=torch.float64)
    rewritten = FuseLinears()(program).program
    toy.assert_same_target(program, rewritten)
    assert {"(q+k).w", "v.w"} < set(rewritten.weights)


def test_layers_stay_apart() -> None:
    """Two layers that project the same embedding are still two."""
    first = toy.weight

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        one = builder.op(aten.unsqueeze.default, tokens, 0)
        x = e = builder.op(aten.embedding.default, first(builder, "e", table), one)
        for j in range(2):
            y = builder.op(aten.linear.default, e, first(builder, f"w{j}", square[j]))
            y = builder.op(aten.unsqueeze.default, y, 1)
            y = builder.op(ops.attention.default, y, y, y, None, 0.5, 0, 0.0, j)
            x = builder.op(aten.add.Tensor, x, builder.op(aten.select.int, y, 2, 0))
        return builder.op(
            aten.select.int, builder.op(aten.linear.default, x, first(builder, "h", table)), 0, 0
        )

    table, square = torch.randn(6, 4), torch.randn(2, 4, 4)
    program = toy.build(body, {"e": table, "h": table, "w0": square[0], "w1": square[1]}, 2)
    assert not FuseLinears()(program).modified


def test_a_router_stays_alone() -> None:
    router, other = torch.randn(6, 4), torch.randn(6, 4)

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        x = builder.op(aten.embedding.default, toy.weight(builder, "e", table), tokens)
        ranked = builder.op(
            aten.softmax.int,
            builder.op(aten.linear.default, x, toy.weight(builder, "r", router)),
            -1,
        )
        best = builder.op(torch.ops.aten.topk.default, ranked, 1)
        y = builder.op(aten.linear.default, x, toy.weight(builder, "o", other))
        import operator

        return builder.op(aten.mul.Tensor, y, builder.op(operator.getitem, best, 0))

    table = torch.randn(6, 4)
    program = toy.build(body, {"e": table, "r": router, "o": other})
    assert not FuseLinears()(program).modified


def test_a_target_of_leaves_is_left_alone() -> None:
    assert not FuseLinears()(toy.after("outline-layers")).modified


@pytest.mark.parametrize(
    ("names", "joined"),
    [
        (["a.q.weight", "a.k.weight"], "a.(q+k).weight"),
        (["a.b.q", "a.c.k"], "a.(b.q+c.k)"),
        (["w0", "w1"], "(w0+w1)"),
        (["a.w", "b.c.w"], "(a+b.c).w"),
        (["x.w", "y.x.w"], "(x+y.x).w"),
    ],
)
def test_names(names: list[str], joined: str) -> None:
    assert joined_name(names) == joined


def test_refuses() -> None:
    assert toy.refusal(FuseLinears(), toy.empty()) == "SPECC-E0330 fuse-linears: there is no target"
    program = block()
    mine = {"(q+k+v).w": program.weights["head"]}
    taken = replace(program, weights=program.weights.added(mine))
    assert toy.refusal(FuseLinears(), taken).startswith("SPECC-E0303")
