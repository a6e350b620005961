import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir.evaluate import evaluate
from specc.passes.build_verify import BuildVerify
from tests.passes import toy


def test_one_verify_for_each_k() -> None:
    program = toy.after("declare-drafter")
    toy.assert_twice_is_once(BuildVerify((2, 3)), program)
    rewritten = BuildVerify((2, 3))(program).program
    assert rewritten.contract.num_speculative_tokens == (0, 2, 3)
    assert sorted(rewritten.functions) == [
        "embed", "head", "layer.0", "prefill", "verify_0", "verify_2", "verify_3",
    ]  # fmt: skip
    assert_expected_inline(
        toy.text(rewritten, "verify_0", "verify_2"),
        """\
fn verify_0(%tokens: i64[1], %positions: i64[1], %rows: i64[1]) {verify}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[1, 4])
  %1 = %0[0] : f32[1, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[1, 4])
  %3 = %2[0] : f32[1, 4]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1) : (f32[1, 4])
  %5 = %4[0] : f32[1, 4]
  %6 = call head {head}(%5, @head) : (f32[1, 6])
  %7 = %6[0] : f32[1, 6]
  return logits=%7
fn verify_2(%tokens: i64[3], %positions: i64[3], %rows: i64[3]) {verify}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[3, 4])
  %1 = %0[0] : f32[3, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[3, 4])
  %3 = %2[0] : f32[3, 4]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1) : (f32[3, 4])
  %5 = %4[0] : f32[3, 4]
  %6 = call head {head}(%5, @head) : (f32[3, 6])
  %7 = %6[0] : f32[3, 6]
  return logits=%7
""",
    )


@pytest.mark.parametrize("k", [0, 2, 3])
def test_verify_scores_as_the_target_does(k: int) -> None:
    program = toy.after("declare-drafter")
    want = toy.logits(program)
    verifying, state = BuildVerify((2, 3))(program).program, toy.poisoned_state(program)
    for begin in range(len(toy.TOKENS) - k):
        # Overlapping blocks: rows are rewritten, as after a rejection.
        at = torch.arange(begin, begin + k + 1)
        (got,) = evaluate(verifying, f"verify_{k}", [toy.TOKENS[at], at, at], state)
        torch.testing.assert_close(got, want[at])


def test_refuses() -> None:
    assert toy.refusal(BuildVerify(), toy.empty()) == "SPECC-E0330 build-verify: there is no target"
    assert toy.refusal(BuildVerify(), toy.decoder()) == (
        "SPECC-E0330 build-verify: target is one piece"
    )
    assert toy.refusal(BuildVerify((-1, 2)), toy.after("declare-drafter")) == (
        "SPECC-E0358 build-verify: K cannot be -1"
    )
