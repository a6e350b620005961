# ruff: noqa: E501 (programs as they print)
import pytest
from expecttest import assert_expected_inline

from specc.ir import Role
from specc.ir.dialect import ops
from specc.passes.part_proposals import PartProposals
from tests.passes import toy
from tests.passes.driver import generate

PROMPT = [3, 1, 4, 1]


def test_what_is_computed_before_a_choice_is_a_step() -> None:
    program = toy.after("fuse-round", method="medusa")
    toy.assert_twice_is_once(PartProposals(), program)
    rewritten = PartProposals()(program).program
    assert_expected_inline(
        toy.text(program, "propose_2"),
        """\
fn propose_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1]) {draft}:
  %0 = specc.positions(%length, 1, -1) : i64[1]
  %1 = specc.rows(%0, %first_row) : i64[1]
  %2 = call draft.features {features}(%1, $features) : (f32[1, 4])
  %3 = %2[0] : f32[1, 4]
  %4 = call draft.head.0 {head}(%3, @draft.heads.0.blocks.0.weight, @draft.heads.0.lm_head.weight) : (f32[1, 6])
  %5 = %4[0] : f32[1, 6]
  %6 = specc.accept(%root, %5, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %7 = %6[0] : i64[1]
  %8 = %6[1] : i64[1]
  %9 = call draft.head.0 {head}(%3, @draft.heads.1.blocks.0.weight, @draft.heads.1.lm_head.weight) : (f32[1, 6])
  %10 = %9[0] : f32[1, 6]
  %11 = specc.positions(%length, 1, 1) : i64[1]
  %12 = specc.accept(%7, %10, %11, %temperature, %seed, 6) : (i64[1], i64[1])
  %13 = %12[0] : i64[1]
  %14 = %12[1] : i64[1]
  %15 = aten.cat([%7, %13]) : i64[2]
  return drafts=%15, logits_0=%5, logits_1=%10
""",
    )
    assert_expected_inline(
        toy.text(rewritten, "propose_2", "propose_2.step_0"),
        """\
fn propose_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1]) {draft}:
  %0 = specc.positions(%length, 1, -1) : i64[1]
  %1 = specc.rows(%0, %first_row) : i64[1]
  %2 = specc.positions(%length, 1, 1) : i64[1]
  %3 = call propose_2.step_0(%1) : (f32[1, 6], f32[1, 6])
  %4 = %3[0] : f32[1, 6]
  %5 = %3[1] : f32[1, 6]
  %6 = specc.accept(%root, %4, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %7 = %6[0] : i64[1]
  %8 = %6[1] : i64[1]
  %9 = specc.accept(%7, %5, %2, %temperature, %seed, 6) : (i64[1], i64[1])
  %10 = %9[0] : i64[1]
  %11 = %9[1] : i64[1]
  %12 = aten.cat([%7, %10]) : i64[2]
  return drafts=%12, logits_0=%4, logits_1=%5
fn propose_2.step_0(%rows: i64[1]) {draft}:
  %0 = call draft.features {features}(%rows, $features) : (f32[1, 4])
  %1 = %0[0] : f32[1, 4]
  %2 = call draft.head.0 {head}(%1, @draft.heads.0.blocks.0.weight, @draft.heads.0.lm_head.weight) : (f32[1, 6])
  %3 = %2[0] : f32[1, 6]
  %4 = call draft.head.0 {head}(%1, @draft.heads.1.blocks.0.weight, @draft.heads.1.lm_head.weight) : (f32[1, 6])
  %5 = %4[0] : f32[1, 6]
  return result_0=%3, result_1=%5
""",
    )


def test_a_step_waits_for_the_choice_that_it_reads() -> None:
    """DSpark's Markov head reads the draft before: one step for the block, one for each draft behind the first."""
    program = PartProposals()(toy.after("fuse-round", method="dspark")).program
    assert_expected_inline(
        toy.text(program, "propose_2", "propose_2.step_1"),
        """\
fn propose_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1]) {draft}:
  %0 = specc.positions(%length, 3, 0) : i64[3]
  %1 = specc.rows(%0, %first_row) : i64[3]
  %2 = specc.positions(%length, 1, 2) : i64[1]
  %3 = specc.rows(%2, %first_row) : i64[1]
  %4 = aten.cat([%2, %2, %2]) : i64[3]
  %5 = aten.cat([%3, %3, %3]) : i64[3]
  %6 = specc.positions(%length, 1, 1) : i64[1]
  %7 = call propose_2.step_0(%root, %0, %1, %4, %5) : (f32[1, 6], f32[1, 6], f32[1, 4])
  %8 = %7[0] : f32[1, 6]
  %9 = %7[1] : f32[1, 6]
  %10 = %7[2] : f32[1, 4]
  %11 = specc.accept(%root, %8, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %12 = %11[0] : i64[1]
  %13 = %11[1] : i64[1]
  %14 = call propose_2.step_1(%9, %12, %10) : (f32[1, 6])
  %15 = %14[0] : f32[1, 6]
  %16 = specc.accept(%12, %15, %6, %temperature, %seed, 6) : (i64[1], i64[1])
  %17 = %16[0] : i64[1]
  %18 = %16[1] : i64[1]
  %19 = aten.cat([%12, %17]) : i64[2]
  return drafts=%19, logits_0=%8, logits_1=%15
fn propose_2.step_1(%logits: f32[1, 6], %tokens: i64[1], %hidden: f32[1, 4]) {draft}:
  %0 = call draft.choose {head}(%logits, %tokens, %hidden, @draft.markov_head.markov_w1.weight, @draft.markov_head.markov_w2.weight) : (f32[1, 6])
  %1 = %0[0] : f32[1, 6]
  return result_0=%1
""",
    )


def test_a_step_comes_behind_what_writes_the_state_that_it_reads() -> None:
    """P-EAGLE's mask rows see what draft_first has just written."""
    program = PartProposals()(toy.after("fuse-round", method="peagle")).program
    calls = [
        str(n.target) for n in program.functions["propose_2"].graph.nodes if n.op == "call_module"
    ]
    assert calls == ["draft_first", "propose_2.step_0"]


@pytest.mark.parametrize("method", ["medusa", "dspark", "peagle", "eagle:adaptive"])
def test_rounds_say_the_same(method: str) -> None:
    program = toy.after("fuse-round", method=method)
    parted = PartProposals()(program).program
    depth = 1 if method == "eagle:adaptive" else 0
    for heat in (0.0, 1.0):
        want = generate(program, PROMPT, 6, [2, 0], heat=heat, depth=depth)
        assert generate(parted, PROMPT, 6, [2, 0], heat=heat, depth=depth) == want
    for function in parted.functions.values():
        nodes = function.graph.nodes
        leaves = [
            n
            for n in nodes
            if n.op == "call_module" and parted.functions[str(n.target)].role is Role.LEAF
        ]
        assert not leaves or not any(n.target is ops.accept.default for n in nodes)


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle3"])
def test_functions_that_choose_between_functions_stay(method: str) -> None:
    program = toy.after("fuse-round", method=method)
    assert not PartProposals()(program).modified


def test_refuses() -> None:
    assert toy.refusal(PartProposals(), toy.after("outline-layers")).startswith("SPECC-E0330")
