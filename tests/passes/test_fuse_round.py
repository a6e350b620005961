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
  %0 = call propose_2(%root, %length, %first_row, %temperature, %seed) : (i64[2], f32[1, 6], f32[1, 6])
  %1 = %0[0] : i64[2]
  %2 = %0[1] : f32[1, 6]
  %3 = %0[2] : f32[1, 6]
  %4 = aten.cat([%root, %1]) : i64[3]
  %5 = specc.positions(%length, 3, 0) : i64[3]
  %6 = specc.rows(%5, %first_row) : i64[3]
  %7 = call verify_2(%4, %5, %6) : (f32[3, 6])
  %8 = %7[0] : f32[3, 6]
  %9 = call accept_2(%4, %8, %length, %temperature, %seed) : (i64[3], i64[1])
  %10 = %9[0] : i64[3]
  %11 = %9[1] : i64[1]
  return tokens=%10, accepted=%11
""",
    )


def test_rounds_of_a_draft_model() -> None:
    program = toy.after("plan-state", method="draft_model")
    assert_expected_inline(
        toy.text(FuseRound()(program).program, "round_2"),
        """\
fn round_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1], %previous: i64[1]) {round}:
  %0 = call propose_2(%root, %length, %first_row, %temperature, %seed, %previous) : (i64[2], f32[1, 6], f32[1, 6])
  %1 = %0[0] : i64[2]
  %2 = %0[1] : f32[1, 6]
  %3 = %0[2] : f32[1, 6]
  %4 = aten.cat([%root, %1]) : i64[3]
  %5 = specc.positions(%length, 3, 0) : i64[3]
  %6 = specc.rows(%5, %first_row) : i64[3]
  %7 = call verify_2(%4, %5, %6) : (f32[3, 6])
  %8 = %7[0] : f32[3, 6]
  %9 = call accept_2(%4, %8, %length, %temperature, %seed) : (i64[3], i64[1])
  %10 = %9[0] : i64[3]
  %11 = %9[1] : i64[1]
  return tokens=%10, accepted=%11
""",
    )


def test_rounds_of_a_tree_end_with_its_path_in_place() -> None:
    program = toy.after("plan-state", method="medusa", tree=toy.TREE)
    rewritten = FuseRound()(program).program
    (played,) = [r for r in rewritten.rounds if r.k]
    assert (played.nodes, played.propose, played.verify) == (4, None, None)
    assert_expected_inline(
        toy.text(rewritten, "round_2"),
        """\
fn round_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1]) {round}:
  %0 = call propose_2(%root, %length, %first_row, %temperature, %seed) : (i64[5], i64[5], i64[5])
  %1 = %0[0] : i64[5]
  %2 = %0[1] : i64[5]
  %3 = %0[2] : i64[5]
  %4 = specc.rows(%3, %length) : i64[5]
  %5 = specc.positions(%length, 5, 0) : i64[5]
  %6 = specc.rows(%5, %first_row) : i64[5]
  %7 = call verify_2(%1, %4, %6, %2) : (f32[5, 6])
  %8 = %7[0] : f32[5, 6]
  %9 = call accept_2(%1, %2, %8, %length, %temperature, %seed) : (i64[3], i64[1], i64[3])
  %10 = %9[0] : i64[3]
  %11 = %9[1] : i64[1]
  %12 = %9[2] : i64[3]
  %13 = specc.positions(%length, 3, 0) : i64[3]
  %14 = specc.rows(%13, %first_row) : i64[3]
  %15 = specc.take(%6, %12) : i64[3]
  specc.cache_move($target.k.0, %15, %14)
  specc.cache_move($target.v.0, %15, %14)
  specc.cache_move($target.k.1, %15, %14)
  specc.cache_move($target.v.1, %15, %14)
  specc.cache_move($features, %15, %14)
  return tokens=%10, accepted=%11
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
  %0 = call propose_2_d1(%root, %length, %first_row, %temperature, %seed, %tap_row) : (i64[2], f32[1, 6], f32[1, 6])
  %1 = %0[0] : i64[2]
  %2 = %0[1] : f32[1, 6]
  %3 = %0[2] : f32[1, 6]
  %4 = aten.cat([%root, %1]) : i64[3]
  %5 = specc.positions(%length, 3, 0) : i64[3]
  %6 = specc.rows(%5, %first_row) : i64[3]
  %7 = call verify_2(%4, %5, %6) : (f32[3, 6])
  %8 = %7[0] : f32[3, 6]
  %9 = call accept_2(%4, %8, %length, %temperature, %seed) : (i64[3], i64[1])
  %10 = %9[0] : i64[3]
  %11 = %9[1] : i64[1]
  return tokens=%10, accepted=%11
""",
    )


@pytest.mark.parametrize("method", ["ngram", "layerskip", "draft_model", "eagle:adaptive"])
def test_twice_is_once(method: str) -> None:
    toy.assert_twice_is_once(FuseRound(), toy.after("plan-state", method=method))


def test_every_round_has_its_pieces() -> None:
    program = toy.after("fuse-round", method="eagle:adaptive")
    assert [(r.k, r.depth, r.propose, r.verify) for r in program.rounds] == [
        (0, 0, None, "verify_0"), (2, 1, "propose_2_d1", "verify_2"),
    ]  # fmt: skip
    assert {r.propose for r in toy.after("fuse-round").rounds} == {None}


def test_refuses() -> None:
    assert toy.refusal(FuseRound(), toy.after("build-verify")) == (
        "SPECC-E0330 fuse-round: there is no accept"
    )
    program = toy.after("plan-state")
    undrafted = replace(program, contract=replace(program.contract, state=DraftState.TARGET))
    assert toy.refusal(FuseRound(), undrafted) == "SPECC-E0330 fuse-round: nothing drafts"
    stepping = toy.after("build-accept", method="layerskip")
    assert toy.refusal(FuseRound(), stepping) == (
        "SPECC-E0330 fuse-round: nothing proposes a block"
    )
