from __future__ import annotations

from expecttest import assert_expected_inline

from specc.ir import DynamicTree, StaticTree
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


def test_text_of_a_tree() -> None:
    before = toy.after("declare-drafter", method="medusa", tree=toy.TREE)
    after = AttachMedusa(DRAFTER, (0, 2), toy.TREE)(before).program
    assert after.contract.tree == toy.TREE
    constants = {
        n: after.weights[n].load().tolist() for n in after.weights if n.startswith("tree.2")
    }
    assert constants == {
        "tree.2.index": [0, 1, 2, 3], "tree.2.parents": [-1, 0, 0, 1, 1], "tree.2.depths": [0, 1, 1, 2, 2],
    }  # fmt: skip
    assert_expected_inline(
        toy.text(after, "propose_2"),
        """\
fn propose_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1]) {draft}:
  %0 = specc.positions(%length, 1, -1) : i64[1]
  %1 = specc.rows(%0, %first_row) : i64[1]
  %2 = call draft.features {features}(%1, $features) : (f32[1, 4])
  %3 = %2[0] : f32[1, 4]
  %4 = call draft.head.0 {head}(%3, @draft.heads.0.blocks.0.weight, @draft.heads.0.lm_head.weight) : (f32[1, 6])
  %5 = %4[0] : f32[1, 6]
  %6 = call draft.head.0 {head}(%3, @draft.heads.1.blocks.0.weight, @draft.heads.1.lm_head.weight) : (f32[1, 6])
  %7 = %6[0] : f32[1, 6]
  %8 = specc.candidates(%5, @tree.zero, @tree.certain, %length, %temperature, %seed, 2, 6) : (i64[2], i64[2], f64[2])
  %9 = %8[0] : i64[2]
  %10 = %8[1] : i64[2]
  %11 = %8[2] : f64[2]
  %12 = specc.positions(%length, 1, 1) : i64[1]
  %13 = specc.candidates(%7, @tree.zero, @tree.certain, %12, %temperature, %seed, 2, 6) : (i64[2], i64[2], f64[2])
  %14 = %13[0] : i64[2]
  %15 = %13[1] : i64[2]
  %16 = %13[2] : f64[2]
  %17 = aten.cat([%9, %14]) : i64[4]
  %18 = specc.take(%17, @tree.2.index) : i64[4]
  %19 = aten.cat([%root, %18]) : i64[5]
  return tokens=%19, parents=@tree.2.parents, depths=@tree.2.depths
""",
    )
    toy.assert_twice_is_once(AttachMedusa(DRAFTER, (0, 2), toy.TREE), before)


def test_text_of_a_tree_that_is_grown() -> None:
    before = toy.after("declare-drafter", method="medusa", tree=DynamicTree(4, 2))
    after = AttachMedusa(DRAFTER, (0, 2), DynamicTree(4, 2))(before).program
    assert_expected_inline(
        toy.text(after, "propose_2"),
        """\
fn propose_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1]) {draft}:
  %0 = specc.positions(%length, 1, -1) : i64[1]
  %1 = specc.rows(%0, %first_row) : i64[1]
  %2 = call draft.features {features}(%1, $features) : (f32[1, 4])
  %3 = %2[0] : f32[1, 4]
  %4 = call draft.head.0 {head}(%3, @draft.heads.0.blocks.0.weight, @draft.heads.0.lm_head.weight) : (f32[1, 6])
  %5 = %4[0] : f32[1, 6]
  %6 = call draft.head.0 {head}(%3, @draft.heads.1.blocks.0.weight, @draft.heads.1.lm_head.weight) : (f32[1, 6])
  %7 = %6[0] : f32[1, 6]
  %8 = specc.candidates(%5, @tree.zero, @tree.certain, %length, %temperature, %seed, 2, 6) : (i64[2], i64[2], f64[2])
  %9 = %8[0] : i64[2]
  %10 = %8[1] : i64[2]
  %11 = %8[2] : f64[2]
  %12 = specc.cross(%9, %11, @tree.zero, @tree.certain) : (i64[2], i64[2], f64[2])
  %13 = %12[0] : i64[2]
  %14 = %12[1] : i64[2]
  %15 = %12[2] : f64[2]
  %16 = specc.best(%15, 2, 2) : (i64[2], i64[2])
  %17 = %16[0] : i64[2]
  %18 = %16[1] : i64[2]
  %19 = specc.take(%13, %17) : i64[2]
  %20 = specc.take(%15, %17) : f64[2]
  %21 = specc.positions(%17, 1, 1) : i64[2]
  %22 = specc.positions(%length, 1, 1) : i64[1]
  %23 = specc.candidates(%7, @tree.zero, @tree.certain, %22, %temperature, %seed, 2, 6) : (i64[2], i64[2], f64[2])
  %24 = %23[0] : i64[2]
  %25 = %23[1] : i64[2]
  %26 = %23[2] : f64[2]
  %27 = specc.cross(%24, %26, %21, %20) : (i64[4], i64[4], f64[4])
  %28 = %27[0] : i64[4]
  %29 = %27[1] : i64[4]
  %30 = %27[2] : f64[4]
  %31 = specc.roots(%root) : i64[1]
  %32 = aten.cat([%root, %13, %28]) : i64[7]
  %33 = aten.cat([%31, %14, %29]) : i64[7]
  %34 = aten.cat([@tree.certain, %15, %30]) : f64[7]
  %35 = specc.prune_tree(%32, %33, %34, 4) : (i64[5], i64[5], i64[5])
  %36 = %35[0] : i64[5]
  %37 = %35[1] : i64[5]
  %38 = %35[2] : i64[5]
  return tokens=%36, parents=%37, depths=%38
""",
    )


def test_refuses() -> None:
    program = toy.after("declare-drafter", method="medusa")
    cases = [
        (PASS, toy.after("gather-logits")),
        (AttachMedusa(), program),
        (AttachMedusa(toy.checkpoint(Kind.EAGLE3)), program),
        (AttachMedusa(DRAFTER, (0, 3)), program),
        (AttachMedusa(DRAFTER, (0, 1)), PASS(program).program),
        (AttachMedusa(DRAFTER, (0, 2), toy.TREE), PASS(program).program),
        (AttachMedusa(DRAFTER, (0, 2), StaticTree.of([(0,)])), program),
        (AttachMedusa(DRAFTER, (0, 2), StaticTree.of([(0,), (0, 6)])), program),
        (AttachMedusa(DRAFTER, (0, 2), DynamicTree(1, 1)), program),
        (AttachMedusa(DRAFTER, (0, 2), DynamicTree(9, 7)), program),
    ]
    assert_expected_inline(
        "\n".join(toy.refusal(*c) for c in cases),
        """\
SPECC-E0330 attach-medusa: the target keeps no features
SPECC-E0354 attach-medusa: no drafter was given
SPECC-E0367 attach-medusa: a eagle3 drafter has no Medusa heads
SPECC-E0368 attach-medusa: the drafter has 2 heads
SPECC-E0334 attach-medusa: this was done before, with other options: K
SPECC-E0334 attach-medusa: this was done before, with other options: tree
SPECC-E0369 attach-medusa: this tree does not fit: its longest path has 1 drafts, fewer than K = 2
SPECC-E0369 attach-medusa: this tree does not fit: it wants more than the 6 tokens that there are
SPECC-E0369 attach-medusa: this tree does not fit: 1 nodes have no path of K = 2 drafts
SPECC-E0369 attach-medusa: this tree does not fit: it wants more than the 6 tokens that there are""",
    )
