from __future__ import annotations

from dataclasses import replace

import torch
from expecttest import assert_expected_inline

from specc.ir import DynamicTree
from specc.ir.evaluate import evaluate
from specc.ir.importers.drafters import Kind, Mlp
from specc.passes.attach_eagle import AttachEagle
from tests.passes import toy

DRAFTER = toy.checkpoint(Kind.EAGLE3)
PASS = AttachEagle(DRAFTER, (0, 2), toy.POSITIONS)


def test_text() -> None:
    before = toy.after("declare-drafter", method="eagle3")
    after = PASS(before).program
    assert "propose_2" not in before.functions
    names = (
        "draft.features",
        "draft.enter",
        "draft.head",
        "extend",
        "draft_first",
        "draft",
        "propose_2",
    )
    assert_expected_inline(
        toy.text(after, *names),
        """\
fn draft.features(%rows: i64[T], %constant_0: f32[1, S, 4]) {leaf}:
  %0 = aten.select.int(%constant_0, 0, 0) : f32[S, 4]
  %1 = aten.index_select(%0, 0, %rows) : f32[T, 4]
  return features=%1
fn draft.enter(%tokens: i64[T], %features: f32[T, 4], %constant_0: f32[6, 4], %constant_1: f32[4], %constant_2: f32[4]) {leaf}:
  %0 = aten.embedding(%constant_0, %tokens) : f32[T, 4]
  %1 = aten.pow.Tensor_Scalar(%features, 2) : f32[T, 4]
  %2 = aten.mean.dim(%1, [-1], True) : f32[T, 1]
  %3 = aten.add.Tensor(%2, 1e-06) : f32[T, 1]
  %4 = aten.rsqrt(%3) : f32[T, 1]
  %5 = aten.mul.Tensor(%features, %4) : f32[T, 4]
  %6 = aten.mul.Tensor(%5, %constant_1) : f32[T, 4]
  %7 = aten.pow.Tensor_Scalar(%0, 2) : f32[T, 4]
  %8 = aten.mean.dim(%7, [-1], True) : f32[T, 1]
  %9 = aten.add.Tensor(%8, 1e-06) : f32[T, 1]
  %10 = aten.rsqrt(%9) : f32[T, 1]
  %11 = aten.mul.Tensor(%0, %10) : f32[T, 4]
  %12 = aten.mul.Tensor(%11, %constant_2) : f32[T, 4]
  %13 = aten.cat([%12, %6], -1) : f32[T, 8]
  return read=%13
fn draft.head(%x: f32[T, 4], %constant_0: f32[4], %constant_1: f32[6, 4]) {leaf}:
  %0 = aten.pow.Tensor_Scalar(%x, 2) : f32[T, 4]
  %1 = aten.mean.dim(%0, [-1], True) : f32[T, 1]
  %2 = aten.add.Tensor(%1, 1e-06) : f32[T, 1]
  %3 = aten.rsqrt(%2) : f32[T, 1]
  %4 = aten.mul.Tensor(%x, %3) : f32[T, 4]
  %5 = aten.mul.Tensor(%4, %constant_0) : f32[T, 4]
  %6 = aten.linear(%5, %constant_1) : f32[T, 6]
  return logits=%6
fn extend(%next_tokens: i64[T], %positions: i64[T], %rows: i64[T]) {draft}:
  %0 = call draft.features {features}(%rows, $features) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  %2 = call draft.enter {embed}(%next_tokens, %1, @draft.embed_tokens.weight, @draft.layers.0.hidden_norm.weight, @draft.layers.0.input_layernorm.weight) : (f32[T, 8])
  %3 = %2[0] : f32[T, 8]
  %4 = call draft.layer.0 {layer 0}(%3, %1, %positions, %rows, @draft.layers.0.self_attn.k_proj.weight, @draft.layers.0.self_attn.v_proj.weight, @draft.table.cos, @draft.table.sin, $drafter.k.0, $drafter.v.0, @draft.layers.0.self_attn.q_proj.weight, @draft.layers.0.self_attn.o_proj.weight, @draft.layers.0.post_attention_layernorm.weight, @draft.layers.0.mlp.gate_proj.weight, @draft.layers.0.mlp.up_proj.weight, @draft.layers.0.mlp.down_proj.weight) : (f32[T, 4])
  %5 = %4[0] : f32[T, 4]
  return
fn draft_first(%next_tokens: i64[T], %positions: i64[T], %rows: i64[T]) {draft}:
  %0 = call draft.features {features}(%rows, $features) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  %2 = call draft.enter {embed}(%next_tokens, %1, @draft.embed_tokens.weight, @draft.layers.0.hidden_norm.weight, @draft.layers.0.input_layernorm.weight) : (f32[T, 8])
  %3 = %2[0] : f32[T, 8]
  %4 = call draft.layer.0 {layer 0}(%3, %1, %positions, %rows, @draft.layers.0.self_attn.k_proj.weight, @draft.layers.0.self_attn.v_proj.weight, @draft.table.cos, @draft.table.sin, $drafter.k.0, $drafter.v.0, @draft.layers.0.self_attn.q_proj.weight, @draft.layers.0.self_attn.o_proj.weight, @draft.layers.0.post_attention_layernorm.weight, @draft.layers.0.mlp.gate_proj.weight, @draft.layers.0.mlp.up_proj.weight, @draft.layers.0.mlp.down_proj.weight) : (f32[T, 4])
  %5 = %4[0] : f32[T, 4]
  %6 = specc.row(%5, @constant.last) : f32[1, 4]
  %7 = call draft.head {head}(%6, @draft.norm.weight, @draft.lm_head.weight) : (f32[1, 6])
  %8 = %7[0] : f32[1, 6]
  return logits=%8, hidden=%6
fn draft(%tokens: i64[1], %positions: i64[1], %rows: i64[1], %hidden: f32[1, 4]) {draft}:
  %0 = call draft.enter {embed}(%tokens, %hidden, @draft.embed_tokens.weight, @draft.layers.0.hidden_norm.weight, @draft.layers.0.input_layernorm.weight) : (f32[1, 8])
  %1 = %0[0] : f32[1, 8]
  %2 = call draft.layer.0 {layer 0}(%1, %hidden, %positions, %rows, @draft.layers.0.self_attn.k_proj.weight, @draft.layers.0.self_attn.v_proj.weight, @draft.table.cos, @draft.table.sin, $drafter.k.0, $drafter.v.0, @draft.layers.0.self_attn.q_proj.weight, @draft.layers.0.self_attn.o_proj.weight, @draft.layers.0.post_attention_layernorm.weight, @draft.layers.0.mlp.gate_proj.weight, @draft.layers.0.mlp.up_proj.weight, @draft.layers.0.mlp.down_proj.weight) : (f32[1, 4])
  %3 = %2[0] : f32[1, 4]
  %4 = call draft.head {head}(%3, @draft.norm.weight, @draft.lm_head.weight) : (f32[1, 6])
  %5 = %4[0] : f32[1, 6]
  return logits=%5, hidden=%3
fn propose_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1], %next_tokens: i64[T], %positions: i64[T], %rows: i64[T]) {draft}:
  %0 = call draft_first(%next_tokens, %positions, %rows) : (f32[1, 6], f32[1, 4])
  %1 = %0[0] : f32[1, 6]
  %2 = %0[1] : f32[1, 4]
  %3 = specc.accept(%root, %1, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %4 = %3[0] : i64[1]
  %5 = %3[1] : i64[1]
  %6 = specc.rows(%length, %first_row) : i64[1]
  %7 = call draft(%4, %length, %6, %2) : (f32[1, 6], f32[1, 4])
  %8 = %7[0] : f32[1, 6]
  %9 = %7[1] : f32[1, 4]
  %10 = specc.positions(%length, 1, 1) : i64[1]
  %11 = specc.accept(%4, %8, %10, %temperature, %seed, 6) : (i64[1], i64[1])
  %12 = %11[0] : i64[1]
  %13 = %11[1] : i64[1]
  %14 = aten.cat([%4, %12]) : i64[2]
  return drafts=%14, logits_0=%1, logits_1=%8
""",  # noqa: E501
    )
    contract = after.contract
    assert (contract.state, contract.extend, contract.min_length) == ("own", "extend", 1)
    assert contract.draft_vocab_size == 0
    toy.assert_twice_is_once(PASS, before)


def test_text_of_a_tree() -> None:
    """The second level runs the root's row again, so that attention sees it in the same call."""
    tree = DynamicTree(4, 2)
    before = toy.after("declare-drafter", method="eagle3", tree=tree)
    pass_ = AttachEagle(DRAFTER, (0, 2), toy.POSITIONS, tree)
    after = pass_(before).program
    assert_expected_inline(
        toy.text(after, "propose_2"),
        """\
fn propose_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1], %next_tokens: i64[T], %positions: i64[T], %rows: i64[T]) {draft}:
  %0 = specc.positions(%length, 1, -1) : i64[1]
  %1 = specc.rows(%0, %first_row) : i64[1]
  %2 = call draft_first(%next_tokens, %positions, %rows) : (f32[1, 6], f32[1, 4])
  %3 = %2[0] : f32[1, 6]
  %4 = %2[1] : f32[1, 4]
  %5 = specc.candidates(%3, @tree.zero, @tree.certain, %length, %temperature, %seed, 2, 6) : (i64[2], i64[2], f64[2])
  %6 = %5[0] : i64[2]
  %7 = %5[1] : i64[2]
  %8 = %5[2] : f64[2]
  %9 = specc.roots(%root) : i64[1]
  %10 = call draft.features {features}(%1, $features) : (f32[1, 4])
  %11 = %10[0] : f32[1, 4]
  %12 = specc.best(%8, 2, 2) : (i64[2], i64[2])
  %13 = %12[0] : i64[2]
  %14 = %12[1] : i64[2]
  %15 = specc.take(%6, %13) : i64[2]
  %16 = specc.take(%8, %13) : f64[2]
  %17 = specc.positions(%13, 1, 1) : i64[2]
  %18 = aten.cat([%length, %length]) : i64[2]
  %19 = specc.take(%4, %14) : f32[2, 4]
  %20 = aten.cat([%0, %18]) : i64[3]
  %21 = specc.positions(%length, 3, -1) : i64[3]
  %22 = specc.rows(%21, %first_row) : i64[3]
  %23 = aten.cat([%9, %14]) : i64[3]
  %24 = aten.cat([%root, %15]) : i64[3]
  %25 = aten.cat([%11, %19]) : f32[3, 4]
  %26 = call draft.enter {embed}(%24, %25, @draft.embed_tokens.weight, @draft.layers.0.hidden_norm.weight, @draft.layers.0.input_layernorm.weight) : (f32[3, 8])
  %27 = %26[0] : f32[3, 8]
  %28 = call draft.layer.0 {layer 0}(%27, %25, %20, %22, %23, @draft.layers.0.self_attn.k_proj.weight, @draft.layers.0.self_attn.v_proj.weight, @draft.table.cos, @draft.table.sin, $drafter.k.0, $drafter.v.0, @draft.layers.0.self_attn.q_proj.weight, @draft.layers.0.self_attn.o_proj.weight, @draft.layers.0.post_attention_layernorm.weight, @draft.layers.0.mlp.gate_proj.weight, @draft.layers.0.mlp.up_proj.weight, @draft.layers.0.mlp.down_proj.weight) : (f32[3, 4])
  %29 = %28[0] : f32[3, 4]
  %30 = specc.positions(@tree.zero, 2, 1) : i64[2]
  %31 = specc.take(%29, %30) : f32[2, 4]
  %32 = call draft.head {head}(%31, @draft.norm.weight, @draft.lm_head.weight) : (f32[2, 6])
  %33 = %32[0] : f32[2, 6]
  %34 = specc.positions(%length, 1, 1) : i64[1]
  %35 = aten.cat([%34, %34]) : i64[2]
  %36 = specc.candidates(%33, %17, %16, %35, %temperature, %seed, 2, 6) : (i64[4], i64[4], f64[4])
  %37 = %36[0] : i64[4]
  %38 = %36[1] : i64[4]
  %39 = %36[2] : f64[4]
  %40 = specc.roots(%root) : i64[1]
  %41 = aten.cat([%root, %6, %37]) : i64[7]
  %42 = aten.cat([%40, %7, %38]) : i64[7]
  %43 = aten.cat([@tree.certain, %8, %39]) : f64[7]
  %44 = specc.prune_tree(%41, %42, %43, 4) : (i64[5], i64[5], i64[5])
  %45 = %44[0] : i64[5]
  %46 = %44[1] : i64[5]
  %47 = %44[2] : i64[5]
  return tokens=%45, parents=%46, depths=%47
""",  # noqa: E501
    )
    assert "draft" not in after.functions
    assert (after.contract.tree, after.contract.draft_rows) == (tree, 2)
    toy.assert_twice_is_once(pass_, before)


def test_a_draft_vocabulary_is_looked_up() -> None:
    """Ids that the drafter does not have are never drafted; the others have its logits."""
    program = toy.after("declare-drafter", method="eagle3")
    few = toy.checkpoint(Kind.EAGLE3, vocab=4)
    weights = {"draft." + n: w for n, w in few.weights.items()}
    program = replace(program, weights=program.weights.replaced(weights))
    program = AttachEagle(few, (0, 2), toy.POSITIONS)(program).program
    assert program.contract.draft_vocab_size == 4
    hidden = torch.tensor([[1.0, -2.0, 0.5, 3.0]])
    state = toy.poisoned_state(program)
    one = torch.tensor([0])
    (logits, recycled) = evaluate(program, "draft", [one + 3, one, one, hidden], state)
    normed = (
        recycled * torch.rsqrt(recycled.pow(2).mean() + 1e-6) * few.weights["norm.weight"].load()
    )
    want = torch.full((1, toy.VOCAB), -torch.inf)
    want[:, [2, 3, 4, 5]] = normed @ few.weights["lm_head.weight"].load().T
    torch.testing.assert_close(logits, want)


def test_refuses() -> None:
    program = toy.after("declare-drafter", method="eagle3")
    layer = replace(DRAFTER.spec.layers[0], mlp=Mlp(8, "relu2"))
    cases = [
        (PASS, toy.after("gather-logits")),
        (AttachEagle(), program),
        (AttachEagle(toy.checkpoint(Kind.MEDUSA)), program),
        (AttachEagle(replace(DRAFTER, spec=replace(DRAFTER.spec, layers=(layer,)))), program),
        (AttachEagle(DRAFTER, (0, 3), toy.POSITIONS), PASS(program).program),
        (AttachEagle(DRAFTER, (0, 2), toy.POSITIONS, DynamicTree(4, 2)), PASS(program).program),
        (AttachEagle(DRAFTER, (0, 2), toy.POSITIONS, toy.TREE), program),
    ]
    assert_expected_inline(
        "\n".join(toy.refusal(*c) for c in cases),
        """\
SPECC-E0330 attach-eagle: the target keeps no features
SPECC-E0354 attach-eagle: no drafter was given
SPECC-E0367 attach-eagle: a medusa drafter does not feed on its own features
SPECC-E0366 attach-eagle: a eagle3 drafter with the activation relu2 is not built yet
SPECC-E0334 attach-eagle: this was done before, with other options: K
SPECC-E0334 attach-eagle: this was done before, with other options: tree
SPECC-E0369 attach-eagle: this tree does not fit: a eagle3 drafter grows trees: say how many nodes, not which""",
    )
