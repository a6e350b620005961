from dataclasses import replace

import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir.evaluate import evaluate
from specc.passes.prune_layers import PruneLayers
from tests.passes import toy


def test_a_draft_of_some_layers() -> None:
    program = toy.after("gather-logits", toy.decoder(3))
    pass_ = PruneLayers((0, 2))
    toy.assert_twice_is_once(pass_, program)
    rewritten = pass_(program).program
    toy.assert_same_target(program, rewritten)
    assert rewritten.contract.layers == (0, 2)
    assert_expected_inline(
        toy.text(rewritten, "draft"),
        """\
fn draft(%tokens: i64[1], %positions: i64[1], %rows: i64[1]) {draft}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[1, 4])
  %1 = %0[0] : f32[1, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[1, 4])
  %3 = %2[0] : f32[1, 4]
  %4 = call layer.0 {layer 2}(%3, %rows, %positions, $target.k.2, $target.v.2, @w2) : (f32[1, 4])
  %5 = %4[0] : f32[1, 4]
  %6 = call head {head}(%5, @head) : (f32[1, 6])
  %7 = %6[0] : f32[1, 6]
  return logits=%7
""",
    )


def test_the_draft_is_the_model_without_the_other_layers() -> None:
    """Without layer 1 of 3 it is the model of 2 layers that has the weights of layers 0 and 2."""
    program = toy.decoder(3)
    draft = PruneLayers((0, 2))(toy.after("outline-layers", program)).program
    small = toy.decoder(2)
    weights = {n: program.weights[n] for n in ("wte", "wpe", "head", "w0")}
    weights["w1"] = program.weights["w2"]
    want = toy.logits(replace(small, weights=small.weights.replaced(weights)))
    state = toy.poisoned_state(draft)
    for position, token in enumerate(toy.TOKENS):
        (got,) = evaluate(draft, "draft", [token[None], *torch.full((2, 1), position)], state)
        torch.testing.assert_close(got[0], want[position])
    assert state["target.k.1"].isnan().all()


@pytest.mark.parametrize("layers", [(), (0, 1), (1, 0), (0, 0), (2,), (-1,)])
def test_refuses_layers(layers: tuple[int, ...]) -> None:
    assert toy.refusal(PruneLayers(layers), toy.after("gather-logits")) == (
        f"SPECC-E0352 prune-layers: a draft of the layers {list(layers)} cannot be made"
    )


def test_refuses() -> None:
    assert (
        toy.refusal(PruneLayers((0,)), toy.empty())
        == "SPECC-E0330 prune-layers: there is no target"
    )
    assert toy.refusal(PruneLayers((0,)), toy.decoder()) == (
        "SPECC-E0330 prune-layers: target is one piece"
    )
