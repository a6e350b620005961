import torch
from expecttest import assert_expected_inline

from specc.ir.evaluate import evaluate
from specc.passes.gather_logits import GatherLogits
from specc.passes.tap_hidden_states import TapHiddenStates
from tests.passes import toy


def test_what_enters_a_layer_is_copied() -> None:
    program = toy.after("outline-layers")
    pass_ = TapHiddenStates((0, 2), 8)
    toy.assert_twice_is_once(pass_, program)
    rewritten = pass_(program).program
    toy.assert_same_target(program, rewritten)
    assert rewritten.contract.taps == (0, 2)
    assert_expected_inline(
        "\n".join(str(b) for b in rewritten.state.values() if "tap" in b.name),
        """\
state $tap.0: f32[8, 4] (drafter hidden_states)
state $tap.2: f32[8, 4] (drafter hidden_states)""",
    )
    assert_expected_inline(
        toy.text(rewritten, "target"),
        """\
fn target(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {target}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  specc.cache_copy(%1, $tap.0)
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[T, 4])
  %3 = %2[0] : f32[T, 4]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1) : (f32[T, 4])
  %5 = %4[0] : f32[T, 4]
  specc.cache_copy(%5, $tap.2)
  %6 = call head {head}(%5, @head) : (f32[T, 6])
  %7 = %6[0] : f32[T, 6]
  return logits=%7
""",
    )


def test_a_tap_holds_the_hidden_state_of_its_index() -> None:
    program = TapHiddenStates((0, 1, 2), 8)(toy.after("outline-layers")).program
    state = toy.poisoned_state(program)
    at = torch.arange(len(toy.TOKENS))
    evaluate(program, "target", [toy.TOKENS, at, at], state)
    x = program.weights["wte"].load()[toy.TOKENS] + program.weights["table.0"].load()[at]
    mask = torch.ones(len(at), len(at)).tril() == 0
    for layer in range(3):
        torch.testing.assert_close(state[f"tap.{layer}"][: len(at)], x)
        assert state[f"tap.{layer}"][len(at) :].isnan().all()
        if layer < 2:
            y = x @ program.weights[f"w{layer}"].load().T
            x = x + (y @ y.T * 0.5).masked_fill(mask, -torch.inf).softmax(-1) @ y


def test_a_second_run_adds_what_is_missing() -> None:
    program = TapHiddenStates((1,))(toy.after("outline-layers")).program
    more = TapHiddenStates((0, 1))(program)
    assert more.modified
    assert more.program.contract.taps == (0, 1)


def test_leaves_alone() -> None:
    program = toy.after("outline-layers")
    assert TapHiddenStates()(program) == (program, False)


def test_refuses() -> None:
    assert toy.refusal(TapHiddenStates((1,)), toy.empty()) == (
        "SPECC-E0330 tap-hidden-states: there is no target"
    )
    assert toy.refusal(TapHiddenStates((1,)), toy.after("make-stateful")) == (
        "SPECC-E0330 tap-hidden-states: target is one piece"
    )
    outlined = toy.after("outline-layers")
    assert toy.refusal(TapHiddenStates((3,)), outlined) == (
        "SPECC-E0351 tap-hidden-states: there is no hidden state 3 to tap"
    )
    assert toy.refusal(TapHiddenStates((1,)), GatherLogits()(outlined).program) == (
        "SPECC-E0330 tap-hidden-states: prefill was made without these taps"
    )
