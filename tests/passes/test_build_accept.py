import torch
from expecttest import assert_expected_inline

from specc.ir.evaluate import evaluate
from specc.passes.build_accept import BuildAccept
from tests.passes import toy


def test_one_accept_for_each_k() -> None:
    program = toy.after("build-verify")
    toy.assert_twice_is_once(BuildAccept(), program)
    rewritten = BuildAccept()(program).program
    assert_expected_inline(
        toy.text(rewritten, "accept_0", "accept_2"),
        """\
fn accept_0(%tokens: i64[1], %logits: f32[1, 6], %length: i64[1], %temperature: f64[1], %seed: i64[1]) {accept}:
  %0 = specc.accept(%tokens, %logits, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %1 = %0[0] : i64[1]
  %2 = %0[1] : i64[1]
  return tokens=%1, accepted=%2
fn accept_2(%tokens: i64[3], %logits: f32[3, 6], %length: i64[1], %temperature: f64[1], %seed: i64[1]) {accept}:
  %0 = specc.accept(%tokens, %logits, %length, %temperature, %seed, 6) : (i64[3], i64[1])
  %1 = %0[0] : i64[3]
  %2 = %0[1] : i64[1]
  return tokens=%1, accepted=%2
""",
    )


def test_the_path_of_a_tree() -> None:
    program = toy.after("build-verify", method="medusa", tree=toy.TREE)
    toy.assert_twice_is_once(BuildAccept(), program)
    assert_expected_inline(
        toy.text(BuildAccept()(program).program, "accept_2"),
        """\
fn accept_2(%tokens: i64[5], %parents: i64[5], %logits: f32[5, 6], %length: i64[1], %temperature: f64[1], %seed: i64[1]) {accept}:
  %0 = specc.accept_tree(%tokens, %parents, %logits, %length, %temperature, %seed, 2, 6) : (i64[3], i64[1], i64[3])
  %1 = %0[0] : i64[3]
  %2 = %0[1] : i64[1]
  %3 = %0[2] : i64[3]
  return tokens=%1, accepted=%2, nodes=%3
""",  # noqa: E501
    )


def test_padding_of_the_head_is_never_chosen() -> None:
    """The head has a row more than there are tokens."""
    padded = toy.decoder(vocab=toy.VOCAB + 1)
    program = toy.after("build-accept", padded)
    logits = torch.zeros(1, toy.VOCAB + 1)
    logits[0, toy.VOCAB], logits[0, 2] = 9.0, 1.0
    one = torch.tensor([0])
    for heat in (0.0, 1e-6):
        arguments = [one, logits, one, torch.tensor([heat], dtype=torch.float64), one]
        tokens, accepted = evaluate(program, "accept_0", arguments, {})
        assert (tokens.tolist(), accepted.tolist()) == ([2], [0])


def test_refuses() -> None:
    assert toy.refusal(BuildAccept(), toy.after("gather-logits")) == (
        "SPECC-E0330 build-accept: there is no verify"
    )
