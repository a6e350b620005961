# ruff: noqa: E501 (programs as they print)
import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir.evaluate import evaluate, fresh_state
from specc.passes.build_propose import BuildPropose
from tests.passes import toy

IN_GRAPH = ["layerskip", "draft_model", "eagle:adaptive"]
TRAINED = ["eagle3", "dspark", "medusa"]


def test_steps_of_some_layers() -> None:
    program = toy.after("build-accept", method="layerskip")
    assert "propose_2" not in program.functions
    assert_expected_inline(
        toy.text(BuildPropose()(program).program, "propose_2"),
        """\
fn propose_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1]) {draft}:
  %0 = specc.rows(%length, %first_row) : i64[1]
  %1 = call draft(%root, %length, %0) : (f32[1, 6])
  %2 = %1[0] : f32[1, 6]
  %3 = specc.accept(%root, %2, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %4 = %3[0] : i64[1]
  %5 = %3[1] : i64[1]
  %6 = specc.positions(%length, 1, 1) : i64[1]
  %7 = specc.rows(%6, %first_row) : i64[1]
  %8 = call draft(%4, %6, %7) : (f32[1, 6])
  %9 = %8[0] : f32[1, 6]
  %10 = specc.positions(%length, 1, 1) : i64[1]
  %11 = specc.accept(%4, %9, %10, %temperature, %seed, 6) : (i64[1], i64[1])
  %12 = %11[0] : i64[1]
  %13 = %11[1] : i64[1]
  %14 = aten.cat([%4, %12]) : i64[2]
  return drafts=%14, logits_0=%2, logits_1=%9
""",
    )


def test_steps_of_a_draft_model() -> None:
    program = toy.after("build-accept", method="draft_model")
    assert_expected_inline(
        toy.text(BuildPropose()(program).program, "propose_2"),
        """\
fn propose_2(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1], %previous: i64[1]) {draft}:
  %0 = aten.cat([%previous, %root]) : i64[2]
  %1 = specc.positions(%length, 2, -1) : i64[2]
  %2 = specc.rows(%1, %first_row) : i64[2]
  %3 = call draft_first(%0, %1, %2) : (f32[1, 6])
  %4 = %3[0] : f32[1, 6]
  %5 = specc.accept(%root, %4, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %6 = %5[0] : i64[1]
  %7 = %5[1] : i64[1]
  %8 = specc.positions(%length, 1, 1) : i64[1]
  %9 = specc.rows(%8, %first_row) : i64[1]
  %10 = call draft(%6, %8, %9) : (f32[1, 6])
  %11 = %10[0] : f32[1, 6]
  %12 = specc.positions(%length, 1, 1) : i64[1]
  %13 = specc.accept(%6, %11, %12, %temperature, %seed, 6) : (i64[1], i64[1])
  %14 = %13[0] : i64[1]
  %15 = %13[1] : i64[1]
  %16 = aten.cat([%6, %14]) : i64[2]
  return drafts=%16, logits_0=%4, logits_1=%11
""",
    )


def test_steps_of_each_depth() -> None:
    program = toy.after("build-accept", method="eagle:adaptive")
    assert_expected_inline(
        toy.text(BuildPropose()(program).program, "propose_2_d1"),
        """\
fn propose_2_d1(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1], %tap_row: i64[1]) {draft}:
  %0 = specc.row($tap.1, %tap_row) : f32[1, 4]
  %1 = specc.rows(%length, %first_row) : i64[1]
  %2 = call draft_d1(%root, %length, %1, %0) : (f32[1, 6], f32[1, 4])
  %3 = %2[0] : f32[1, 6]
  %4 = %2[1] : f32[1, 4]
  %5 = specc.accept(%root, %3, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %6 = %5[0] : i64[1]
  %7 = %5[1] : i64[1]
  %8 = specc.positions(%length, 1, 1) : i64[1]
  %9 = specc.rows(%8, %first_row) : i64[1]
  %10 = call draft_d1(%6, %8, %9, %4) : (f32[1, 6], f32[1, 4])
  %11 = %10[0] : f32[1, 6]
  %12 = %10[1] : f32[1, 4]
  %13 = specc.positions(%length, 1, 1) : i64[1]
  %14 = specc.accept(%6, %11, %13, %temperature, %seed, 6) : (i64[1], i64[1])
  %15 = %14[0] : i64[1]
  %16 = %14[1] : i64[1]
  %17 = aten.cat([%6, %15]) : i64[2]
  return drafts=%17, logits_0=%3, logits_1=%11
""",
    )


@pytest.mark.parametrize("method", [*IN_GRAPH, *TRAINED, "ngram"])
def test_twice_is_once(method: str) -> None:
    program = toy.after("build-accept", method=method)
    once = BuildPropose()(program)
    assert once.modified == (method in IN_GRAPH)
    assert not BuildPropose()(once.program).modified


@pytest.mark.parametrize("method", [*IN_GRAPH, *TRAINED, "ngram"])
@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_a_round_in_pieces_is_the_round(method: str, heat: float) -> None:
    """Proposing, verifying and accepting one by one says and leaves what the round does."""
    program = toy.after("fuse-round", method=method)
    played = program.rounds[-1]
    prompt, k = torch.tensor([1, 4, 2, 5]), played.k
    length = len(prompt) - 1
    at = torch.arange(length)
    given = {
        "root": prompt[-1:], "previous": prompt[-2:-1], "length": torch.tensor([length]),
        "first_row": torch.tensor([0]), "tap_row": torch.tensor([length - 1]),
        "temperature": torch.tensor([heat], dtype=torch.float64), "seed": torch.tensor([7]),
        "next_tokens": prompt[1:], "positions": at, "rows": at, "drafts": torch.tensor([3, 1, 3])[:k],
    }  # fmt: skip

    def run(name: str, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        function = program.functions[name]
        return evaluate(program, name, [inputs[i.name] for i in function.inputs], state)

    def prefilled() -> dict[str, torch.Tensor]:
        fresh = fresh_state(program)
        evaluate(program, "prefill", [prompt[:-1], at, at], fresh)
        return fresh

    state = prefilled()
    expected = run(played.function, given)
    written = state
    state = prefilled()
    drafts = run(played.propose, given)[0] if played.propose else given["drafts"]
    tokens, places = torch.cat([given["root"], drafts]), torch.arange(length, length + k + 1)
    (logits,) = run(played.verify, {"tokens": tokens, "positions": places, "rows": places})
    found = run(f"accept_{k}", given | {"tokens": tokens, "logits": logits})
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert all(torch.equal(state[name], written[name]) for name in written)


def test_refuses() -> None:
    assert toy.refusal(BuildPropose(), toy.after("gather-logits")) == (
        "SPECC-E0330 build-propose: K is not known"
    )
