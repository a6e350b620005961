from __future__ import annotations

from dataclasses import replace

import torch
from expecttest import assert_expected_inline

from specc.ir.evaluate import evaluate, text_inputs
from specc.ir.importers.drafters import Kind
from specc.passes.keep_features import KeepFeatures
from tests.passes import toy

EAGLE3, MEDUSA = toy.checkpoint(Kind.EAGLE3), toy.checkpoint(Kind.MEDUSA)


def test_text() -> None:
    before = toy.after("outline-layers")
    after = KeepFeatures(EAGLE3)(before).program
    assert_expected_inline(
        toy.text(before, "target") + toy.text(after, "features", "target"),
        """\
fn target(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {target}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[T, 4])
  %3 = %2[0] : f32[T, 4]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1) : (f32[T, 4])
  %5 = %4[0] : f32[T, 4]
  %6 = call head {head}(%5, @head) : (f32[T, 6])
  %7 = %6[0] : f32[T, 6]
  return logits=%7
fn features(%x_0: f32[T, 4], %x_1: f32[T, 4], %rows: i64[T], %constant_0: f32[4, 8], %constant_1: f32[1, S, 4]) {leaf}:
  %0 = aten.cat([%x_0, %x_1], -1) : f32[T, 8]
  %1 = aten.linear(%0, %constant_0) : f32[T, 4]
  %2 = aten.unsqueeze(%1, 1) : f32[T, 1, 4]
  specc.cache_write(%constant_1, %2, %rows)
  return features=%1
fn target(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {target}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[T, 4])
  %3 = %2[0] : f32[T, 4]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1) : (f32[T, 4])
  %5 = %4[0] : f32[T, 4]
  %6 = call features {features}(%1, %3, %rows, @draft.fc.weight, $features) : (f32[T, 4])
  %7 = %6[0] : f32[T, 4]
  %8 = call head {head}(%5, @head) : (f32[T, 6])
  %9 = %8[0] : f32[T, 6]
  return logits=%9
""",
    )
    assert_expected_inline(
        str(after.state["features"]), """state $features: f32[1, S, 4] (drafter features)"""
    )
    toy.assert_same_target(before, after)
    toy.assert_twice_is_once(KeepFeatures(EAGLE3), before)


def test_features_are_the_fused_hidden_states() -> None:
    before = toy.after("outline-layers")
    inputs = text_inputs(before, "target", toy.TOKENS, torch.arange(7), 2)
    weights = {n: w.load() for n, w in before.weights.items()}
    x0 = weights["wte"][toy.TOKENS] + weights["table.0"][:7]
    for drafter in (EAGLE3, MEDUSA):
        program = KeepFeatures(drafter)(before).program
        state = toy.poisoned_state(program)
        evaluate(program, "target", inputs, state)
        kept = state["features"][0]
        assert kept[:2].isnan().all()
        assert kept[9:].isnan().all()
        if drafter is EAGLE3:
            x1 = _layer(x0, weights["w0"])
            want = torch.cat([x0, x1], -1) @ drafter.weights["fc.weight"].load().T
        else:  # what the head of this model multiplies: it has no norm
            want = _layer(_layer(x0, weights["w0"]), weights["w1"])
        torch.testing.assert_close(kept[2:9], want)


def _layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The toy's layer, without a cache."""
    y = x @ w.T
    scores = (y @ y.T * 0.5).masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf)
    return x + scores.softmax(-1) @ y


def test_refuses() -> None:
    program = toy.after("outline-layers")
    wider = replace(EAGLE3, spec=replace(EAGLE3.spec, target_hidden_size=5))
    beyond = replace(EAGLE3, spec=replace(EAGLE3.spec, taps=(0, 3)))
    cases = [
        (KeepFeatures(EAGLE3), toy.empty()),
        (KeepFeatures(), program),
        (KeepFeatures(wider), program),
        (KeepFeatures(beyond), program),
        (KeepFeatures(EAGLE3), toy.after("gather-logits")),
    ]
    assert_expected_inline(
        "\n".join(toy.refusal(*c) for c in cases),
        """\
SPECC-E0330 keep-features: there is no target
SPECC-E0354 keep-features: no drafter was given
SPECC-E0351 keep-features: the drafter reads hidden states that the target does not have
SPECC-E0351 keep-features: the drafter reads hidden states that the target does not have
SPECC-E0330 keep-features: prefill keeps no features""",
    )
