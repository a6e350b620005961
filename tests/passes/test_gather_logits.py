import torch
from expecttest import assert_expected_inline

from specc.ir.evaluate import evaluate
from specc.passes.gather_logits import GatherLogits
from specc.passes.tap_hidden_states import TapHiddenStates
from tests.passes import toy


def test_prefill_has_no_head() -> None:
    program = toy.after("outline-layers")
    toy.assert_twice_is_once(GatherLogits(8), program)
    rewritten = GatherLogits(8)(program).program
    toy.assert_same_target(program, rewritten)
    assert rewritten.prefill_chunk == 8
    assert_expected_inline(
        toy.text(rewritten, "prefill"),
        """\
fn prefill(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {prefill}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[T, 4])
  %3 = %2[0] : f32[T, 4]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1) : (f32[T, 4])
  %5 = %4[0] : f32[T, 4]
  return
""",
    )


def test_prefill_fills_the_state_that_the_target_would() -> None:
    program = GatherLogits(8)(TapHiddenStates((1,), 8)(toy.after("outline-layers")).program).program
    states = [toy.poisoned_state(program) for _ in range(3)]
    at = torch.arange(len(toy.TOKENS))
    evaluate(program, "target", [toy.TOKENS, at, at], states[0])
    assert evaluate(program, "prefill", [toy.TOKENS, at, at], states[1]) == []
    for part in (at[:4], at[4:6], at[6:]):
        evaluate(program, "prefill", [toy.TOKENS[part], part, part], states[2])
    for name, buffer in states[0].items():
        torch.testing.assert_close(states[1][name], buffer, equal_nan=True)
        if "tap" not in name:
            torch.testing.assert_close(states[2][name], buffer, equal_nan=True)
    torch.testing.assert_close(states[2]["tap.1"][0], states[0]["tap.1"][6])


def test_refuses() -> None:
    assert (
        toy.refusal(GatherLogits(), toy.empty()) == "SPECC-E0330 gather-logits: there is no target"
    )
    assert toy.refusal(GatherLogits(), toy.decoder()) == (
        "SPECC-E0330 gather-logits: target is one piece"
    )
