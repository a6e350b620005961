# ruff: noqa: E501 (programs as they print)
from dataclasses import replace

import pytest
from expecttest import assert_expected_inline

from specc.ir import DraftState, Role
from specc.passes.fuse_round import FuseRound
from tests.passes import toy


def test_rounds_of_a_host_drafter() -> None:
    program = toy.after("plan-state")
    toy.assert_twice_is_once(FuseRound(), program)
    assert_expected_inline(
        toy.text(FuseRound()(program).program, "round_0", "round_2"),
        """\
fn round_0(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1]) {round}:
  %0 = specc.rows(%length, %first_row) : i64[1]
  %1 = call verify_0(%root, %length, %0) : (f32[1, 6])
  %2 = %1[0] : f32[1, 6]
  %3 = call accept_0(%root, %2, %length, %temperature, %seed) : (i64[1], i64[1])
  %4 = %3[0] : i64[1]
  %5 = %3[1] : i64[1]
  return tokens=%4, accepted=%5
fn round_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1], %drafts: i64[2]) {round}:
  %0 = aten.cat([%root, %drafts]) : i64[3]
  %1 = specc.positions(%length, 3, 0) : i64[3]
  %2 = specc.rows(%1, %first_row) : i64[3]
  %3 = call verify_2(%0, %1, %2) : (f32[3, 6])
  %4 = %3[0] : f32[3, 6]
  %5 = call accept_2(%0, %4, %length, %temperature, %seed) : (i64[3], i64[1])
  %6 = %5[0] : i64[3]
  %7 = %5[1] : i64[1]
  return tokens=%6, accepted=%7
""",
    )


def test_rounds_of_some_layers() -> None:
    program = toy.after("plan-state", method="layerskip")
    assert_expected_inline(
        toy.text(FuseRound()(program).program, "round_2"),
        """\
fn round_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1]) {round}:
  %0 = specc.rows(%length, %first_row) : i64[1]
  %1 = call draft(%root, %length, %0) : (f32[1, 6])
  %2 = %1[0] : f32[1, 6]
  %3 = specc.accept(%root, %2, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %4 = %3[0] : i64[1]
  %5 = %3[1] : i64[1]
  %6 = specc.positions(%length, 1, 1) : i64[1]
  %7 = specc.rows(%6, %first_row) : i64[1]
  %8 = call draft(%4, %6, %7) : (f32[1, 6])
  %9 = %8[0] : f32[1, 6]
  %10 = specc.accept(%4, %9, %6, %temperature, %seed, 6) : (i64[1], i64[1])
  %11 = %10[0] : i64[1]
  %12 = %10[1] : i64[1]
  %13 = aten.cat([%root, %4, %11]) : i64[3]
  %14 = specc.positions(%length, 3, 0) : i64[3]
  %15 = specc.rows(%14, %first_row) : i64[3]
  %16 = call verify_2(%13, %14, %15) : (f32[3, 6])
  %17 = %16[0] : f32[3, 6]
  %18 = call accept_2(%13, %17, %length, %temperature, %seed) : (i64[3], i64[1])
  %19 = %18[0] : i64[3]
  %20 = %18[1] : i64[1]
  return tokens=%19, accepted=%20
""",
    )


def test_rounds_of_a_draft_model() -> None:
    program = toy.after("plan-state", method="draft_model")
    assert_expected_inline(
        toy.text(FuseRound()(program).program, "round_2"),
        """\
fn round_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1], %previous: i64[1]) {round}:
  %0 = aten.cat([%previous, %root]) : i64[2]
  %1 = specc.positions(%length, 2, -1) : i64[2]
  %2 = specc.rows(%1, %first_row) : i64[2]
  %3 = call draft_first(%0, %1, %2) : (f32[1, 6])
  %4 = %3[0] : f32[1, 6]
  %5 = specc.accept(%root, %4, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %6 = %5[0] : i64[1]
  %7 = %5[1] : i64[1]
  %8 = specc.positions(%length, 1, 1) : i64[1]
  %9 = specc.rows(%8, %first_row) : i64[1]
  %10 = call draft(%6, %8, %9) : (f32[1, 6])
  %11 = %10[0] : f32[1, 6]
  %12 = specc.accept(%6, %11, %8, %temperature, %seed, 6) : (i64[1], i64[1])
  %13 = %12[0] : i64[1]
  %14 = %12[1] : i64[1]
  %15 = aten.cat([%root, %6, %13]) : i64[3]
  %16 = specc.positions(%length, 3, 0) : i64[3]
  %17 = specc.rows(%16, %first_row) : i64[3]
  %18 = call verify_2(%15, %16, %17) : (f32[3, 6])
  %19 = %18[0] : f32[3, 6]
  %20 = call accept_2(%15, %19, %length, %temperature, %seed) : (i64[3], i64[1])
  %21 = %20[0] : i64[3]
  %22 = %20[1] : i64[1]
  return tokens=%21, accepted=%22
""",
    )


def test_rounds_of_each_depth() -> None:
    program = toy.after("plan-state", method="eagle:adaptive")
    rewritten = FuseRound()(program).program
    rounds = [n for n, f in rewritten.functions.items() if f.role is Role.ROUND]
    assert rounds == ["round_0", "round_2_d1"]
    assert_expected_inline(
        toy.text(rewritten, "round_2_d1"),
        """\
fn round_2_d1(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1], %tap_row: i64[1]) {round}:
  %0 = specc.row($tap.1, %tap_row) : f32[1, 4]
  %1 = specc.rows(%length, %first_row) : i64[1]
  %2 = call draft_d1(%root, %length, %1, %0) : (f32[1, 6], f32[1, 4])
  %3 = %2[0] : f32[1, 6]
  %4 = %2[1] : f32[1, 4]
  %5 = specc.accept(%root, %3, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %6 = %5[0] : i64[1]
  %7 = %5[1] : i64[1]
  %8 = specc.positions(%length, 1, 1) : i64[1]
  %9 = specc.rows(%8, %first_row) : i64[1]
  %10 = call draft_d1(%6, %8, %9, %4) : (f32[1, 6], f32[1, 4])
  %11 = %10[0] : f32[1, 6]
  %12 = %10[1] : f32[1, 4]
  %13 = specc.accept(%6, %11, %8, %temperature, %seed, 6) : (i64[1], i64[1])
  %14 = %13[0] : i64[1]
  %15 = %13[1] : i64[1]
  %16 = aten.cat([%root, %6, %14]) : i64[3]
  %17 = specc.positions(%length, 3, 0) : i64[3]
  %18 = specc.rows(%17, %first_row) : i64[3]
  %19 = call verify_2(%16, %17, %18) : (f32[3, 6])
  %20 = %19[0] : f32[3, 6]
  %21 = call accept_2(%16, %20, %length, %temperature, %seed) : (i64[3], i64[1])
  %22 = %21[0] : i64[3]
  %23 = %21[1] : i64[1]
  return tokens=%22, accepted=%23
""",
    )


@pytest.mark.parametrize("method", ["ngram", "layerskip", "draft_model", "eagle:adaptive"])
def test_twice_is_once(method: str) -> None:
    toy.assert_twice_is_once(FuseRound(), toy.after("plan-state", method=method))


def test_refuses() -> None:
    assert toy.refusal(FuseRound(), toy.after("build-verify")) == (
        "SPECC-E0330 fuse-round: there is no accept"
    )
    program = toy.after("plan-state")
    undrafted = replace(program, contract=replace(program.contract, state=DraftState.TARGET))
    assert toy.refusal(FuseRound(), undrafted) == "SPECC-E0330 fuse-round: nothing drafts"
