from dataclasses import replace

import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir.evaluate import evaluate
from specc.passes import pipelines
from specc.passes.build_score import BuildScore
from specc.passes.build_verify import BuildVerify
from specc.passes.plan_state import PlanState
from tests.passes import toy

TEXTS = 3


def test_rows_stay_open() -> None:
    program = toy.after("declare-drafter")
    toy.assert_twice_is_once(BuildScore(), program)
    rewritten = BuildScore()(program).program
    assert_expected_inline(
        toy.text(rewritten, "score"),
        """\
fn score(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {score}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[T, 4])
  %3 = %2[0] : f32[T, 4]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1) : (f32[T, 4])
  %5 = %4[0] : f32[T, 4]
  %6 = call head {head}(%5, @head) : (f32[T, 6])
  %7 = %6[0] : f32[T, 6]
  return logits=%7
""",
    )


def _state(program):
    planned = PlanState(toy.POSITIONS, TEXTS)(program).program
    return planned, toy.poisoned_state(planned)


@pytest.mark.parametrize("drafts", [(0, 0, 0), (2, 0, 1), (3, 1), (1,)])
def test_texts_are_scored_as_alone(drafts: tuple[int, ...]) -> None:
    """Texts of other lengths, each with as many drafts as it has; what lies beside a text is poison or another one."""
    program = BuildVerify((0, 1, 2, 3))(BuildScore()(toy.after("declare-drafter")).program).program
    program, state = _state(program)
    tokens, positions, rows, want = [], [], [], []
    for text, k in enumerate(drafts):
        words = toy.TOKENS.roll(text)
        n = 3 - text
        at, place = torch.arange(n), toy.POSITIONS * text
        alone = toy.poisoned_state(program)
        here = torch.arange(n, n + k + 1)
        if n:
            evaluate(program, "prefill", [words[:n], at, at + place], state)
            evaluate(program, "prefill", [words[:n], at, at], alone)
        want += evaluate(program, f"verify_{k}", [words[here], here, here], alone)
        tokens.append(words[here])
        positions.append(here)
        rows.append(here + place)
    given = [torch.cat(each) for each in (tokens, positions, rows)]
    (got,) = evaluate(program, "score", given, state)
    torch.testing.assert_close(got, torch.cat(want))


def test_trees_of_several_texts() -> None:
    """Parents are rows of the call."""
    program = pipelines.host("ngram", replace(toy.SHAPE, given_trees=True, max_num_seqs=2), {})(
        toy.decoder()
    )
    tree, tokens = torch.tensor([-1, 0, 0]), torch.tensor([3, 1, 4])
    depths = torch.tensor([0, 1, 1])
    state, alone = toy.poisoned_state(program), toy.poisoned_state(program)
    rows = torch.arange(3)
    (want,) = evaluate(program, "verify_2", [tokens, depths, rows, tree], alone)
    two = [tokens.repeat(2), depths.repeat(2), torch.cat([rows, rows + toy.POSITIONS])]
    (got,) = evaluate(program, "score", [*two, torch.cat([tree, torch.tensor([-1, 3, 3])])], state)
    torch.testing.assert_close(got, torch.cat([want, want]))


def test_refuses() -> None:
    assert toy.refusal(BuildScore(), toy.empty()) == "SPECC-E0330 build-score: there is no target"
    chain = toy.after("attach-medusa", method="medusa")
    branched = replace(chain, contract=replace(chain.contract, tree=toy.TREE))
    assert toy.refusal(BuildScore(), branched) == ("SPECC-E0330 build-score: the graph grows trees")
