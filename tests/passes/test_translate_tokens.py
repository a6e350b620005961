from dataclasses import replace

import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir import SpeculativeProgram
from specc.passes import pipelines
from specc.passes.translate_tokens import TranslateTokens
from tests.passes import toy
from tests.passes.driver import generate

READ, SAID = (4, 0, 1, 1, 2, 3), (4, -1, 1, -1, 2, 0)
"""The target has tokens 0 to 5, the drafter 0 to 4: it lacks 1 and 3, and its own token 3 is not the target's."""


def drafter(seed: int = 0) -> SpeculativeProgram:
    program = toy.drafter(seed, vocab=5)
    return replace(program, model=replace(program.model, vocab_size=5))


def test_tokens_go_in_and_logits_come_out_as_the_targets() -> None:
    pass_ = TranslateTokens(READ, SAID)
    toy.assert_twice_is_once(pass_, drafter())
    after = pass_(drafter()).program
    assert_expected_inline(
        toy.text(drafter(), "target", "draft.head"),
        """\
fn target(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {target}:
  %0 = call draft.embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  %2 = call draft.layer.0 {layer 0}(%1, %rows, %positions, $drafter.k.0, $drafter.v.0, @w0) : (f32[T, 4])
  %3 = %2[0] : f32[T, 4]
  %4 = call draft.head {head}(%3, @head) : (f32[T, 5])
  %5 = %4[0] : f32[T, 5]
  return logits=%5
fn draft.head(%x: f32[T, 4], %weight_1: f32[5, 4]) {leaf}:
  %0 = aten.unsqueeze(%x, 0) : f32[1, T, 4]
  %1 = aten.linear(%0, %weight_1) : f32[1, T, 5]
  %2 = aten.select.int(%1, 0, 0) : f32[T, 5]
  return logits=%2
""",
    )
    assert_expected_inline(
        toy.text(after, "target", "draft.head.translated"),
        """\
fn target(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {target}:
  %0 = call draft.embed.translated {embed}(%positions, %tokens, @table.0, @wte, @translated.read) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  %2 = call draft.layer.0 {layer 0}(%1, %rows, %positions, $drafter.k.0, $drafter.v.0, @w0) : (f32[T, 4])
  %3 = %2[0] : f32[T, 4]
  %4 = call draft.head.translated {head}(%3, @head.translated, @translated.places) : (f32[T, 6])
  %5 = %4[0] : f32[T, 6]
  return logits=%5
fn draft.head.translated(%x: f32[T, 4], %weight_1: f32[4, 4], %places: i32[6]) {leaf}:
  %0 = aten.unsqueeze(%x, 0) : f32[1, T, 4]
  %1 = aten.linear(%0, %weight_1) : f32[1, T, 4]
  %2 = aten.select.int(%1, 0, 0) : f32[T, 4]
  %3 = aten.slice.Tensor(%2, -1, 0, 1) : f32[T, 1]
  %4 = aten.full_like(%3, -inf) : f32[T, 1]
  %5 = aten.cat([%2, %4], -1) : f32[T, 5]
  %6 = aten.index_select(%5, 1, %places) : f32[T, 6]
  return logits=%6
""",
    )
    assert_expected_inline(
        toy.text(after, "draft.embed.translated").split("\n", 1)[1],
        """\
  %0 = aten.index_select(%read, 0, %tokens) : i64[T, 1]
  %1 = aten.select.int(%0, 1, 0) : i64[T]
  %2 = aten.index_select(%weight_2, 0, %positions) : f32[T, 4]
  %3 = aten.unsqueeze(%1, 0) : i64[1, T]
  %4 = aten.embedding(%weight_3, %3) : f32[1, T, 4]
  %5 = aten.add.Tensor(%4, %2) : f32[1, T, 4]
  %6 = aten.select.int(%5, 0, 0) : f32[T, 4]
  return x=%6
""",
    )


def test_logits_are_the_drafters_of_its_own_words() -> None:
    before = drafter()
    after = TranslateTokens(READ, SAID)(before).program
    state, at = toy.poisoned_state(before), torch.arange(len(toy.TOKENS))
    own = torch.tensor([READ[t] for t in toy.TOKENS])
    (theirs,) = toy.evaluate(before, "target", [own, at, at], state)
    got = toy.logits(after, (3, 1, 3))
    for token, says in enumerate(SAID):
        want = theirs[:, says] if says >= 0 else torch.full_like(theirs[:, 0], -torch.inf)
        torch.testing.assert_close(got[:, token], want)


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_the_text_stays(heat: float) -> None:
    """Whatever is proposed; and of a drafter that is the target in other words, all is right."""
    plain = generate(toy.after("fuse-round"), [3, 1, 4], 10, [0], heat=heat)[0]
    other = TranslateTokens(READ, SAID)(drafter(5)).program
    done = pipelines.draft_model(toy.SHAPE, other)(toy.decoder())
    assert generate(done, [3, 1, 4], 10, [2], heat=heat)[0] == plain


def test_the_target_in_other_words_is_always_right() -> None:
    order = (2, 0, 5, 1, 4, 3)
    target = toy.decoder(1)
    weights = {
        name: target.weights[name].rows([order.index(i) for i in range(toy.VOCAB)])
        for name in ("wte", "head")
    }
    renamed = pipelines.drafter_model(toy.SHAPE, TranslateTokens(order, order))(
        replace(target, weights=target.weights.replaced(weights))
    )
    done = pipelines.draft_model(toy.SHAPE, renamed)(target)
    text, rounds = generate(done, [3, 1, 4], 9, [2])
    assert text == generate(done, [3, 1, 4], 9, [0])[0]
    assert set(rounds) == {(2, 2)}


def test_refuses() -> None:
    cases = [
        (TranslateTokens(), drafter()),
        (TranslateTokens(READ, SAID[:5]), drafter()),
        (TranslateTokens(READ, (-1,) * 6), drafter()),
        (TranslateTokens((5, *READ[1:]), SAID), drafter()),
        (TranslateTokens(READ, SAID), toy.decoder()),
        (TranslateTokens(READ, SAID), toy.after("attach-draft-model", method="draft_model")),
        (TranslateTokens(READ, READ), TranslateTokens(READ, SAID)(drafter()).program),
    ]
    assert_expected_inline(
        "\n".join(toy.refusal(*c) for c in cases),
        """\
SPECC-E0370 translate-tokens: there is nothing to translate with
SPECC-E0370 translate-tokens: there is nothing to translate with
SPECC-E0370 translate-tokens: there is nothing to translate with
SPECC-E0370 translate-tokens: a translation to tokens that the drafter does not have
SPECC-E0330 translate-tokens: target is one piece
SPECC-E0330 translate-tokens: the drafter is a part of another program already
SPECC-E0303 translate-tokens: the name translated.places already stands for another weight""",
    )
