from __future__ import annotations

import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir import SpeculativeProgram
from specc.ir.evaluate import evaluate
from specc.ir.importers.huggingface import import_model
from specc.passes import pipelines
from specc.passes.split_ends import SplitEnds
from tests.ir.importers.tiny_models import FAMILIES, eager_logits, tiny
from tests.passes import toy


def in_pieces(program: SpeculativeProgram, tokens: torch.Tensor) -> torch.Tensor:
    """Logits by the three pieces, two calls of `hidden` among them."""
    state, parts = toy.poisoned_state(program), []
    at = torch.arange(len(tokens))
    for rows in (at[:3], at[3:]):
        (x,) = evaluate(program, "embedding", [tokens[rows]], state)
        parts += evaluate(program, "hidden", [x, rows, rows], state)
    (logits,) = evaluate(program, "logits", [torch.cat(parts)], state)
    return logits


def test_positions_that_are_added_to_embeddings_are_added_in_the_middle() -> None:
    program = toy.after("outline-layers")
    toy.assert_twice_is_once(SplitEnds(), program)
    rewritten = SplitEnds()(program).program
    toy.assert_same_target(program, rewritten)
    torch.testing.assert_close(in_pieces(rewritten, toy.TOKENS), toy.logits(program))
    assert_expected_inline(
        toy.text(rewritten, "embedding", "hidden", "logits"),
        """\
fn embedding(%tokens: i64[T]) {target}:
  %0 = call embed.tokens {embed}(%tokens, @wte) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  return embedding=%1
fn hidden(%x: f32[T, 4], %positions: i64[T], %rows: i64[T]) {target}:
  %0 = call embed.places {embed}(%x, %positions, @table.0) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[T, 4])
  %3 = %2[0] : f32[T, 4]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1) : (f32[T, 4])
  %5 = %4[0] : f32[T, 4]
  %6 = call head.norm {head}(%5) : (f32[T, 4])
  %7 = %6[0] : f32[T, 4]
  return hidden=%7
fn logits(%hidden: f32[T, 4]) {target}:
  %0 = call head.product {head}(%hidden, @head) : (f32[T, 6])
  %1 = %0[0] : f32[T, 6]
  return logits=%1
""",
    )


@pytest.mark.parametrize("family", ["llama", "gemma2", "granite"])
def test_families_say_what_transformers_says(family: str) -> None:
    kind, values = FAMILIES[family]
    model = tiny(kind, **values)
    program = pipelines.pieces(pipelines.Shape((0,), 16, 8))(import_model(model, family))
    tokens = torch.tensor([5, 6, 7, 8, 9])
    torch.testing.assert_close(
        in_pieces(program, tokens), eager_logits(model, tokens), rtol=1e-4, atol=1e-5
    )


def test_refuses() -> None:
    assert toy.refusal(SplitEnds(), toy.empty()) == "SPECC-E0330 split-ends: there is no target"
    assert toy.refusal(SplitEnds(), toy.decoder()) == "SPECC-E0330 split-ends: target is one piece"
    kind, values = FAMILIES["gemma4"]
    with_more = pipelines.host("none", toy.SHAPE, {}).until("outline-layers")
    program = with_more(import_model(tiny(kind, **values), "gemma4"))
    assert toy.refusal(SplitEnds(), program) == (
        "SPECC-E0378 split-ends: tokens reach the layers by more than one embedding"
    )
