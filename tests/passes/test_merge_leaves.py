# ruff: noqa: E501 (programs as they print)
import pytest
from expecttest import assert_expected_inline

from specc.ir import Role
from specc.passes.merge_leaves import MergeLeaves
from tests.passes import toy
from tests.passes.driver import generate

PROMPT = [3, 1, 4, 1]


def test_a_function_becomes_one_graph() -> None:
    program = toy.after("fuse-round", toy.decoder(layers=1))
    toy.assert_twice_is_once(MergeLeaves(), program)
    rewritten = MergeLeaves()(program).program
    assert_expected_inline(
        toy.text(program, "verify_2"),
        """\
fn verify_2(%tokens: i64[3], %positions: i64[3], %rows: i64[3]) {verify}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[3, 4])
  %1 = %0[0] : f32[3, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[3, 4])
  %3 = %2[0] : f32[3, 4]
  %4 = call head {head}(%3, @head) : (f32[3, 6])
  %5 = %4[0] : f32[3, 6]
  return logits=%5
""",
    )
    assert_expected_inline(
        toy.text(rewritten, "verify_2", "verify_2.graph"),
        """\
fn verify_2(%tokens: i64[3], %positions: i64[3], %rows: i64[3]) {verify}:
  %0 = call verify_2.graph {graph}(%tokens, %positions, %rows, @table.0, @wte, $target.k.0, $target.v.0, @w0, @head) : (f32[3, 6])
  %1 = %0[0] : f32[3, 6]
  return logits=%1
fn verify_2.graph(%tokens: i64[3], %positions: i64[3], %rows: i64[3], %constant_3: f32[16, 4], %constant_4: f32[6, 4], %constant_5: f32[1, 16, 4], %constant_6: f32[1, 16, 4], %constant_7: f32[4, 4], %constant_8: f32[6, 4]) {leaf}:
  %0 = aten.index_select(%constant_3, 0, %positions) : f32[3, 4]
  %1 = aten.unsqueeze(%tokens, 0) : i64[1, 3]
  %2 = aten.embedding(%constant_4, %1) : f32[1, 3, 4]
  %3 = aten.add.Tensor(%2, %0) : f32[1, 3, 4]
  %4 = aten.select.int(%3, 0, 0) : f32[3, 4]
  %5 = aten.unsqueeze(%4, 0) : f32[1, 3, 4]
  %6 = aten.linear(%5, %constant_7) : f32[1, 3, 4]
  %7 = aten.unsqueeze(%6, 1) : f32[1, 1, 3, 4]
  %8 = aten.select.int(%7, 0, 0) : f32[1, 3, 4]
  %9 = aten.transpose.int(%8, 0, 1) : f32[3, 1, 4]
  specc.cache_write(%constant_5, %9, %rows)
  %10 = aten.select.int(%7, 0, 0) : f32[1, 3, 4]
  %11 = aten.transpose.int(%10, 0, 1) : f32[3, 1, 4]
  specc.cache_write(%constant_6, %11, %rows)
  %12 = aten.select.int(%7, 0, 0) : f32[1, 3, 4]
  %13 = aten.transpose.int(%12, 0, 1) : f32[3, 1, 4]
  %14 = specc.cached_attention(%13, %constant_5, %constant_6, %positions, %rows, None, 0.5, 0, 0.0, None) : f32[3, 1, 4]
  %15 = aten.unsqueeze(%14, 0) : f32[1, 3, 1, 4]
  %16 = aten.select.int(%15, 2, 0) : f32[1, 3, 4]
  %17 = aten.add.Tensor(%5, %16) : f32[1, 3, 4]
  %18 = aten.select.int(%17, 0, 0) : f32[3, 4]
  %19 = aten.unsqueeze(%18, 0) : f32[1, 3, 4]
  %20 = aten.linear(%19, %constant_8) : f32[1, 3, 6]
  %21 = aten.select.int(%20, 0, 0) : f32[3, 6]
  return logits=%21
""",
    )


@pytest.mark.parametrize("method", ["ngram", "layerskip", "draft_model", "eagle3"])
def test_rounds_say_the_same(method: str) -> None:
    program = toy.after("fuse-round", method=method)
    merged = MergeLeaves()(program).program
    assert generate(merged, PROMPT, 6, [2, 0]) == generate(program, PROMPT, 6, [2, 0])


def test_operations_keep_their_layer() -> None:
    program = MergeLeaves()(toy.after("fuse-round", method="draft_model")).program
    for name, layers in (("verify_2.graph", {-1, 0, 1}), ("draft.graph", {-1, 0})):
        nodes = program.functions[name].graph.nodes
        assert {n.meta["layer"] for n in nodes if "layer" in n.meta} == layers


def test_no_leaf_is_left() -> None:
    program = MergeLeaves()(toy.after("fuse-round", method="draft_model")).program
    leaves = sorted(n for n, f in program.functions.items() if f.role is Role.LEAF)
    assert leaves == [
        "draft.graph", "draft_first.graph", "prefill.graph", "verify_0.graph", "verify_2.graph",
    ]  # fmt: skip


def test_refuses() -> None:
    assert toy.refusal(MergeLeaves(), toy.after("outline-layers")).startswith("SPECC-E0330")
    text = toy.refusal(MergeLeaves(), toy.after("fuse-round", method="dspark"))
    assert text.startswith("SPECC-E0371 merge-leaves: propose_2 is no graph for a device")
    text = toy.refusal(MergeLeaves(), toy.after("fuse-round", method="eagle:adaptive"))
    assert text.endswith("specc.cache_copy.default is the host's")
