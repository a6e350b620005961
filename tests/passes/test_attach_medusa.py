from __future__ import annotations

from expecttest import assert_expected_inline

from specc.ir.importers.drafters import Kind
from specc.passes.attach_medusa import AttachMedusa
from tests.passes import toy

DRAFTER = toy.checkpoint(Kind.MEDUSA)
PASS = AttachMedusa(DRAFTER, (0, 2))


def test_text() -> None:
    before = toy.after("declare-drafter", method="medusa")
    after = PASS(before).program
    assert "propose_2" not in before.functions
    assert_expected_inline(
        toy.text(after, "draft.head.0", "propose_2"),
        """\
fn draft.head.0(%x: f32[T, 4], %constant_0: f32[4, 4], %constant_1: f32[6, 4]) {leaf}:
  %0 = aten.linear(%x, %constant_0) : f32[T, 4]
  %1 = aten.silu(%0) : f32[T, 4]
  %2 = aten.add.Tensor(%x, %1) : f32[T, 4]
  %3 = aten.linear(%2, %constant_1) : f32[T, 6]
  return logits=%3
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
    assert "draft.head.1" not in after.functions, "equal heads are one leaf"
    assert (after.contract.extend, after.contract.min_length) == (None, 1)
    toy.assert_twice_is_once(PASS, before)


def test_refuses() -> None:
    program = toy.after("declare-drafter", method="medusa")
    cases = [
        (PASS, toy.after("gather-logits")),
        (AttachMedusa(), program),
        (AttachMedusa(toy.checkpoint(Kind.EAGLE3)), program),
        (AttachMedusa(DRAFTER, (0, 3)), program),
        (AttachMedusa(DRAFTER, (0, 1)), PASS(program).program),
    ]
    assert_expected_inline(
        "\n".join(toy.refusal(*c) for c in cases),
        """\
SPECC-E0330 attach-medusa: the target keeps no features
SPECC-E0354 attach-medusa: no drafter was given
SPECC-E0367 attach-medusa: a eagle3 drafter has no Medusa heads
SPECC-E0368 attach-medusa: the drafter has 2 heads
SPECC-E0334 attach-medusa: this was done before, with other options: K""",
    )
