# ruff: noqa: E501 (programs as they print)
from __future__ import annotations

from dataclasses import replace

import torch
from expecttest import assert_expected_inline

from specc.ir import DynamicTree
from specc.ir.importers.drafters import Fuse, Kind
from specc.passes.attach_peagle import AttachPeagle, mask_feature
from tests.passes import toy

DRAFTER = toy.checkpoint(Kind.PEAGLE)
PASS = AttachPeagle(DRAFTER, (0, 3), toy.POSITIONS)


def test_text() -> None:
    """Two rows of masks are one call of each leaf; their logits are drafts 1 and 2."""
    before = toy.after("declare-drafter", method="peagle")
    after = PASS(before).program
    assert "propose_3" not in before.functions
    assert_expected_inline(
        toy.text(after, "propose_3"),
        """\
fn propose_3(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1], %next_tokens: i64[T], %positions: i64[T], %rows: i64[T]) {draft}:
  %0 = call draft_first(%next_tokens, %positions, %rows) : (f32[1, 6], f32[1, 4])
  %1 = %0[0] : f32[1, 6]
  %2 = %0[1] : f32[1, 4]
  %3 = specc.positions(%length, 2, 0) : i64[2]
  %4 = specc.rows(%3, %first_row) : i64[2]
  %5 = call draft.enter {embed}(@draft.masks.3, @draft.mask_features.3, @draft.embed_tokens.weight, @draft.layers.0.hidden_norm.weight, @draft.layers.0.input_layernorm.weight) : (f32[2, 8])
  %6 = %5[0] : f32[2, 8]
  %7 = call draft.layer.0 {layer 0}(%6, @draft.mask_features.3, %3, %4, @draft.layers.0.self_attn.k_proj.weight, @draft.layers.0.self_attn.v_proj.weight, @draft.table.cos, @draft.table.sin, $drafter.k.0, $drafter.v.0, @draft.layers.0.self_attn.q_proj.weight, @draft.layers.0.self_attn.o_proj.weight, @draft.layers.0.post_attention_layernorm.weight, @draft.layers.0.mlp.gate_proj.weight, @draft.layers.0.mlp.up_proj.weight, @draft.layers.0.mlp.down_proj.weight) : (f32[2, 4])
  %8 = %7[0] : f32[2, 4]
  %9 = call draft.head {head}(%8, @draft.norm.weight, @draft.lm_head.weight) : (f32[2, 6])
  %10 = %9[0] : f32[2, 6]
  %11 = specc.row(%10, @constant.0) : f32[1, 6]
  %12 = specc.row(%10, @constant.1) : f32[1, 6]
  %13 = specc.accept(%root, %1, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %14 = %13[0] : i64[1]
  %15 = %13[1] : i64[1]
  %16 = specc.positions(%length, 1, 1) : i64[1]
  %17 = specc.accept(%14, %11, %16, %temperature, %seed, 6) : (i64[1], i64[1])
  %18 = %17[0] : i64[1]
  %19 = %17[1] : i64[1]
  %20 = specc.positions(%length, 1, 2) : i64[1]
  %21 = specc.accept(%18, %12, %20, %temperature, %seed, 6) : (i64[1], i64[1])
  %22 = %21[0] : i64[1]
  %23 = %21[1] : i64[1]
  %24 = aten.cat([%14, %18, %22]) : i64[3]
  return drafts=%24, logits_0=%1, logits_1=%11, logits_2=%12
""",
    )
    contract = after.contract
    assert (contract.state, contract.extend, contract.min_length) == ("own", "extend", 1)
    assert "draft" not in after.functions
    assert after.weights["draft.masks.3"].load().tolist() == [5, 5]
    toy.assert_twice_is_once(PASS, before)


def test_a_mask_feature_is_what_fc_makes_of_the_mask() -> None:
    """Through the norm before fc, where there is one, as features of the target are."""
    mask, fc = (DRAFTER.weights[n].load() for n in ("mask_hidden", "fc.weight"))
    torch.testing.assert_close(mask_feature(DRAFTER), torch.nn.functional.linear(mask, fc))
    norm = torch.linspace(0.5, 2.0, len(mask))
    weights = DRAFTER.weights.added(
        {"input_norm.weight": type(DRAFTER.weights["fc.weight"]).of(norm)}
    )
    normed = replace(DRAFTER, spec=replace(DRAFTER.spec, fuse=Fuse(pre_norm=True)), weights=weights)
    read = torch.nn.functional.rms_norm(mask, mask.shape, norm, DRAFTER.spec.norm_eps)
    torch.testing.assert_close(mask_feature(normed), torch.nn.functional.linear(read, fc))


def test_text_of_a_tree() -> None:
    """Logits of a depth are the same on every path, so the tree is grown from them after one pass."""
    tree = DynamicTree(4, 2)
    before = toy.after("declare-drafter", method="peagle", tree=tree)
    pass_ = AttachPeagle(DRAFTER, (0, 2), toy.POSITIONS, tree)
    assert_expected_inline(
        toy.text(pass_(before).program, "propose_2"),
        """\
fn propose_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1], %next_tokens: i64[T], %positions: i64[T], %rows: i64[T]) {draft}:
  %0 = call draft_first(%next_tokens, %positions, %rows) : (f32[1, 6], f32[1, 4])
  %1 = %0[0] : f32[1, 6]
  %2 = %0[1] : f32[1, 4]
  %3 = specc.rows(%length, %first_row) : i64[1]
  %4 = call draft.enter {embed}(@draft.masks.2, @draft.mask_features.2, @draft.embed_tokens.weight, @draft.layers.0.hidden_norm.weight, @draft.layers.0.input_layernorm.weight) : (f32[1, 8])
  %5 = %4[0] : f32[1, 8]
  %6 = call draft.layer.0 {layer 0}(%5, @draft.mask_features.2, %length, %3, @draft.layers.0.self_attn.k_proj.weight, @draft.layers.0.self_attn.v_proj.weight, @draft.table.cos, @draft.table.sin, $drafter.k.0, $drafter.v.0, @draft.layers.0.self_attn.q_proj.weight, @draft.layers.0.self_attn.o_proj.weight, @draft.layers.0.post_attention_layernorm.weight, @draft.layers.0.mlp.gate_proj.weight, @draft.layers.0.mlp.up_proj.weight, @draft.layers.0.mlp.down_proj.weight) : (f32[1, 4])
  %7 = %6[0] : f32[1, 4]
  %8 = call draft.head {head}(%7, @draft.norm.weight, @draft.lm_head.weight) : (f32[1, 6])
  %9 = %8[0] : f32[1, 6]
  %10 = specc.candidates(%1, @tree.zero, @tree.certain, %length, %temperature, %seed, 2, 6) : (i64[2], i64[2], f64[2])
  %11 = %10[0] : i64[2]
  %12 = %10[1] : i64[2]
  %13 = %10[2] : f64[2]
  %14 = specc.cross(%11, %13, @tree.zero, @tree.certain) : (i64[2], i64[2], f64[2])
  %15 = %14[0] : i64[2]
  %16 = %14[1] : i64[2]
  %17 = %14[2] : f64[2]
  %18 = specc.best(%17, 2, 2) : (i64[2], i64[2])
  %19 = %18[0] : i64[2]
  %20 = %18[1] : i64[2]
  %21 = specc.take(%15, %19) : i64[2]
  %22 = specc.take(%17, %19) : f64[2]
  %23 = specc.positions(%19, 1, 1) : i64[2]
  %24 = specc.positions(%length, 1, 1) : i64[1]
  %25 = specc.candidates(%9, @tree.zero, @tree.certain, %24, %temperature, %seed, 2, 6) : (i64[2], i64[2], f64[2])
  %26 = %25[0] : i64[2]
  %27 = %25[1] : i64[2]
  %28 = %25[2] : f64[2]
  %29 = specc.cross(%26, %28, %23, %22) : (i64[4], i64[4], f64[4])
  %30 = %29[0] : i64[4]
  %31 = %29[1] : i64[4]
  %32 = %29[2] : f64[4]
  %33 = specc.roots(%root) : i64[1]
  %34 = aten.cat([%root, %15, %30]) : i64[7]
  %35 = aten.cat([%33, %16, %31]) : i64[7]
  %36 = aten.cat([@tree.certain, %17, %32]) : f64[7]
  %37 = specc.prune_tree(%34, %35, %36, 4) : (i64[5], i64[5], i64[5])
  %38 = %37[0] : i64[5]
  %39 = %37[1] : i64[5]
  %40 = %37[2] : i64[5]
  return tokens=%38, parents=%39, depths=%40
""",
    )
    toy.assert_twice_is_once(pass_, before)


def test_refuses() -> None:
    program = toy.after("declare-drafter", method="peagle")
    each = replace(DRAFTER, spec=replace(DRAFTER.spec, fuse=Fuse(per_tap_norm=True)))
    cases = [
        (PASS, toy.after("gather-logits")),
        (AttachPeagle(), program),
        (AttachPeagle(toy.checkpoint(Kind.EAGLE3)), program),
        (AttachPeagle(DRAFTER, (0, 4)), program),
        (AttachPeagle(each, (0, 3), toy.POSITIONS), program),
        (AttachPeagle(DRAFTER, (0, 2), toy.POSITIONS), PASS(program).program),
    ]
    assert_expected_inline(
        "\n".join(toy.refusal(*c) for c in cases),
        """\
SPECC-E0330 attach-peagle: the target keeps no features
SPECC-E0354 attach-peagle: no drafter was given
SPECC-E0367 attach-peagle: a eagle3 drafter has no mask feature
SPECC-E0368 attach-peagle: the drafter was trained for 3 drafts
SPECC-E0366 attach-peagle: a peagle drafter with a norm for each tap is not built yet
SPECC-E0334 attach-peagle: this was done before, with other options: K""",
    )
