from __future__ import annotations

from dataclasses import replace

import torch
from expecttest import assert_expected_inline

from specc.ir import DynamicTree, SpeculativeProgram
from specc.ir.importers.drafters import Attention, Kind
from specc.passes.attach_block import AttachBlock
from specc.passes.keep_features import KeepFeatures
from tests.passes import toy

DRAFTER = toy.checkpoint(Kind.DSPARK)
PASS = AttachBlock(DRAFTER, (0, 2), toy.POSITIONS)


def _windowed(window: int, *, causal: bool, at_anchor: bool) -> AttachBlock:
    layer = DRAFTER.spec.layers[0]
    assert isinstance(layer.attention, Attention)
    attention = replace(layer.attention, window=window, causal=causal, window_at_anchor=at_anchor)
    spec = replace(DRAFTER.spec, layers=(replace(layer, attention=attention),))
    return AttachBlock(replace(DRAFTER, spec=spec), (0, 2), toy.POSITIONS)


def _before() -> SpeculativeProgram:
    return toy.after("declare-drafter", method="dspark")


def test_text() -> None:
    before = _before()
    after = PASS(before).program
    assert "propose_2" not in before.functions
    assert_expected_inline(
        toy.text(after, "draft.choose", "propose_2"),
        """\
fn draft.choose(%logits: f32[T, 6], %tokens: i64[T], %hidden: f32[T, 4], %constant_0: f32[6, 2], %constant_1: f32[6, 2]) {leaf}:
  %0 = aten.embedding(%constant_0, %tokens) : f32[T, 2]
  %1 = aten.linear(%0, %constant_1) : f32[T, 6]
  %2 = aten.add.Tensor(%logits, %1) : f32[T, 6]
  return logits=%2
fn propose_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1]) {draft}:
  %0 = aten.cat([%root, @draft.masks]) : i64[3]
  %1 = specc.positions(%length, 3, 0) : i64[3]
  %2 = specc.rows(%1, %first_row) : i64[3]
  %3 = specc.positions(%length, 1, 2) : i64[1]
  %4 = specc.rows(%3, %first_row) : i64[1]
  %5 = aten.cat([%3, %3, %3]) : i64[3]
  %6 = aten.cat([%4, %4, %4]) : i64[3]
  %7 = call draft.embed {embed}(%0, @draft.embed_tokens.weight) : (f32[3, 4])
  %8 = %7[0] : f32[3, 4]
  %9 = call draft.layer.0 {layer 0}(%8, %1, %2, %5, %6, @draft.layers.0.input_layernorm.weight, @draft.layers.0.self_attn.k_proj.weight, @draft.layers.0.self_attn.v_proj.weight, @draft.table.cos, @draft.table.sin, $drafter.k.0, $drafter.v.0, @draft.layers.0.self_attn.q_proj.weight, @draft.layers.0.self_attn.o_proj.weight, @draft.layers.0.post_attention_layernorm.weight, @draft.layers.0.mlp.gate_proj.weight, @draft.layers.0.mlp.up_proj.weight, @draft.layers.0.mlp.down_proj.weight) : (f32[3, 4])
  %10 = %9[0] : f32[3, 4]
  %11 = specc.row(%10, @constant.0) : f32[1, 4]
  %12 = specc.row(%10, @constant.1) : f32[1, 4]
  %13 = aten.cat([%11, %12]) : f32[2, 4]
  %14 = call draft.head {head}(%13, @draft.norm.weight, @draft.lm_head.weight) : (f32[2, 6], f32[2, 4])
  %15 = %14[0] : f32[2, 6]
  %16 = %14[1] : f32[2, 4]
  %17 = specc.row(%15, @constant.0) : f32[1, 6]
  %18 = specc.row(%16, @constant.0) : f32[1, 4]
  %19 = call draft.choose {head}(%17, %root, %18, @draft.markov_head.markov_w1.weight, @draft.markov_head.markov_w2.weight) : (f32[1, 6])
  %20 = %19[0] : f32[1, 6]
  %21 = specc.accept(%root, %20, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %22 = %21[0] : i64[1]
  %23 = %21[1] : i64[1]
  %24 = specc.row(%15, @constant.1) : f32[1, 6]
  %25 = specc.row(%16, @constant.1) : f32[1, 4]
  %26 = call draft.choose {head}(%24, %22, %25, @draft.markov_head.markov_w1.weight, @draft.markov_head.markov_w2.weight) : (f32[1, 6])
  %27 = %26[0] : f32[1, 6]
  %28 = specc.positions(%length, 1, 1) : i64[1]
  %29 = specc.accept(%22, %27, %28, %temperature, %seed, 6) : (i64[1], i64[1])
  %30 = %29[0] : i64[1]
  %31 = %29[1] : i64[1]
  %32 = aten.cat([%22, %30]) : i64[2]
  return drafts=%32, logits_0=%20, logits_1=%27
""",  # noqa: E501
    )
    assert (after.contract.state, after.contract.draft_rows) == ("target", 3)
    toy.assert_twice_is_once(PASS, before)


def test_windows_become_those_of_cached_attention() -> None:
    def seen(pass_: AttachBlock) -> str:
        text = toy.text(pass_(_before()).program, "draft.layer.0")
        (line,) = (x for x in text.splitlines() if "cached_attention" in x)
        return line.partition("cached_attention(")[2]

    assert "%seen_positions, %seen_rows, None, 0.5, 0, 0.0" in seen(PASS)
    assert ", 0.5, 8, 0.0" in seen(_windowed(5, causal=False, at_anchor=True)), "5 and the block"
    assert ", 0.5, 4, 0.0" in seen(_windowed(4, causal=True, at_anchor=False))


def test_context_is_kept_in_the_drafters_caches() -> None:
    program = KeepFeatures(DRAFTER, toy.POSITIONS)(toy.after("outline-layers")).program
    assert [n for n in program.state if n.startswith("drafter")] == ["drafter.k.0", "drafter.v.0"]
    assert "features" not in program.state
    leaf = program.functions["features"]
    assert [n.name for n in leaf.inputs][:4] == ["x_0", "x_1", "positions", "rows"]
    assert torch.equal(program.weights["draft.table.cos"].load()[0], torch.ones(4))


def test_refuses() -> None:
    program = _before()
    cases = [
        (PASS, toy.after("gather-logits")),
        (AttachBlock(), program),
        (AttachBlock(toy.checkpoint(Kind.EAGLE3)), program),
        (AttachBlock(DRAFTER, (0, 4), toy.POSITIONS), program),
        (_windowed(4, causal=False, at_anchor=False), program),
        (AttachBlock(DRAFTER, (0, 1), toy.POSITIONS), PASS(program).program),
        (replace(PASS, tree=DynamicTree(4, 2)), PASS(program).program),
        (replace(PASS, tree=toy.TREE), program),
    ]
    assert_expected_inline(
        "\n".join(toy.refusal(*c) for c in cases),
        """\
SPECC-E0330 attach-block: the target keeps no context
SPECC-E0354 attach-block: no drafter was given
SPECC-E0367 attach-block: a eagle3 drafter does not draft in blocks
SPECC-E0368 attach-block: a block of the drafter gives 3 drafts
SPECC-E0366 attach-block: a dspark drafter with this sliding window is not built yet
SPECC-E0334 attach-block: this was done before, with other options: K
SPECC-E0334 attach-block: this was done before, with other options: tree
SPECC-E0369 attach-block: this tree does not fit: a dspark drafter with a Markov head grows trees: say how many nodes, not which""",  # noqa: E501
    )


def test_text_of_a_tree() -> None:
    """A Markov head goes on from the token of each path."""
    tree = DynamicTree(4, 2)
    before = toy.after("declare-drafter", method="dspark", tree=tree)
    after = replace(PASS, tree=tree)(before).program
    lines = toy.text(after, "propose_2").splitlines()
    assert_expected_inline(
        "\n".join(x for x in lines if "choose" in x or "specc." in x),
        """\
  %1 = specc.positions(%length, 3, 0) : i64[3]
  %2 = specc.rows(%1, %first_row) : i64[3]
  %3 = specc.positions(%length, 1, 2) : i64[1]
  %4 = specc.rows(%3, %first_row) : i64[1]
  %11 = specc.row(%10, @constant.0) : f32[1, 4]
  %12 = specc.row(%10, @constant.1) : f32[1, 4]
  %17 = specc.row(%15, @constant.0) : f32[1, 6]
  %18 = specc.row(%15, @constant.1) : f32[1, 6]
  %19 = specc.row(%16, @constant.0) : f32[1, 4]
  %20 = call draft.choose {head}(%17, %root, %19, @draft.markov_head.markov_w1.weight, @draft.markov_head.markov_w2.weight) : (f32[1, 6])
  %22 = specc.candidates(%21, @tree.zero, @tree.certain, %length, %temperature, %seed, 2, 6) : (i64[2], i64[2], f64[2])
  %26 = specc.best(%25, 2, 2) : (i64[2], i64[2])
  %29 = specc.take(%23, %27) : i64[2]
  %30 = specc.take(%25, %27) : f64[2]
  %31 = specc.positions(%27, 1, 1) : i64[2]
  %33 = specc.row(%16, @constant.1) : f32[1, 4]
  %35 = call draft.choose {head}(%32, %29, %34, @draft.markov_head.markov_w1.weight, @draft.markov_head.markov_w2.weight) : (f32[2, 6])
  %37 = specc.positions(%length, 1, 1) : i64[1]
  %39 = specc.candidates(%36, %31, %30, %38, %temperature, %seed, 2, 6) : (i64[4], i64[4], f64[4])
  %43 = specc.roots(%root) : i64[1]
  %47 = specc.prune_tree(%44, %45, %46, 4) : (i64[5], i64[5], i64[5])""",  # noqa: E501
    )
    toy.assert_twice_is_once(replace(PASS, tree=tree), before)


def test_a_draft_vocabulary_is_declared() -> None:
    few, before = toy.checkpoint(Kind.DSPARK, vocab=4), _before()
    few = replace(few, spec=replace(few.spec, markov=None))
    weights = {"draft." + n: w for n, w in few.weights.items()}
    trimmed = replace(before, weights=before.weights.replaced(weights))
    assert PASS(before).program.contract.draft_vocab_size == 0
    assert replace(PASS, drafter=few)(trimmed).program.contract.draft_vocab_size == 4
