from dataclasses import replace

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


def test_a_tree_has_a_row_for_each_node() -> None:
    program = toy.after("attach-medusa", method="medusa", tree=toy.TREE)
    toy.assert_twice_is_once(BuildVerify((0, 2)), program)
    rewritten = BuildVerify((0, 2))(program).program
    assert_expected_inline(
        toy.text(rewritten, "verify_0", "verify_2"),
        """\
fn verify_0(%tokens: i64[1], %positions: i64[1], %rows: i64[1]) {verify}:
  %0 = specc.roots(%rows) : i64[1]
  %1 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[1, 4])
  %2 = %1[0] : f32[1, 4]
  %3 = call layer.0 {layer 0}(%2, %rows, %positions, %0, $target.k.0, $target.v.0, @w0) : (f32[1, 4])
  %4 = %3[0] : f32[1, 4]
  %5 = call layer.0 {layer 1}(%4, %rows, %positions, %0, $target.k.1, $target.v.1, @w1) : (f32[1, 4])
  %6 = %5[0] : f32[1, 4]
  %7 = call features {features}(%6, %rows, $features) : (f32[1, 4])
  %8 = %7[0] : f32[1, 4]
  %9 = call head {head}(%6, @head) : (f32[1, 6])
  %10 = %9[0] : f32[1, 6]
  return logits=%10
fn verify_2(%tokens: i64[5], %positions: i64[5], %rows: i64[5], %parents: i64[5]) {verify}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[5, 4])
  %1 = %0[0] : f32[5, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, %parents, $target.k.0, $target.v.0, @w0) : (f32[5, 4])
  %3 = %2[0] : f32[5, 4]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, %parents, $target.k.1, $target.v.1, @w1) : (f32[5, 4])
  %5 = %4[0] : f32[5, 4]
  %6 = call features {features}(%5, %rows, $features) : (f32[5, 4])
  %7 = %6[0] : f32[5, 4]
  %8 = call head {head}(%5, @head) : (f32[5, 6])
  %9 = %8[0] : f32[5, 6]
  return logits=%9
""",
    )


def test_nodes_are_scored_as_their_paths_are() -> None:
    """Each path of a tree, decoded token by token on state of its own."""
    program = toy.after("build-verify", method="medusa", tree=toy.TREE)
    parents, tokens = [-1, 0, 0, 1, 1], [3, 1, 4, 0, 5]
    rows = torch.tensor([2, 3, 4, 5, 6])
    prompt, at = torch.tensor([2, 5]), torch.arange(2)
    state = toy.poisoned_state(program)
    evaluate(program, "prefill", [prompt, at, at], state)
    where = [torch.tensor([2, 3, 3, 4, 4]), rows, torch.tensor(parents)]
    (block,) = evaluate(program, "verify_2", [torch.tensor(tokens), *where], state)
    for node in range(5):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        state = toy.poisoned_state(program)
        evaluate(program, "prefill", [prompt, at, at], state)
        for place, each in enumerate(path):
            here = torch.tensor([2 + place])
            (alone,) = evaluate(
                program, "verify_0", [torch.tensor([tokens[each]]), here, here], state
            )
        torch.testing.assert_close(block[node : node + 1], alone)


def test_refuses() -> None:
    chain = toy.after("attach-medusa", method="medusa")
    branched = replace(chain, contract=replace(chain.contract, tree=toy.TREE))
    assert toy.refusal(BuildVerify((0, 2)), branched) == (
        "SPECC-E0330 build-verify: attention takes no parents"
    )
    assert toy.refusal(BuildVerify(), toy.empty()) == "SPECC-E0330 build-verify: there is no target"
    assert toy.refusal(BuildVerify(), toy.decoder()) == (
        "SPECC-E0330 build-verify: target is one piece"
    )
    assert toy.refusal(BuildVerify((-1, 2)), toy.after("declare-drafter")) == (
        "SPECC-E0358 build-verify: K cannot be -1"
    )
