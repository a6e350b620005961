import torch
from expecttest import assert_expected_inline

from specc.ir.evaluate import evaluate
from specc.passes import pipelines
from specc.passes.attach_draft_model import AttachDraftModel
from tests.passes import toy


def test_a_second_model_joins() -> None:
    program, drafter = toy.after("gather-logits"), toy.drafter(seed=5)
    pass_ = AttachDraftModel(drafter)
    toy.assert_twice_is_once(pass_, program)
    rewritten = pass_(program).program
    toy.assert_same_target(program, rewritten)
    assert_expected_inline(
        toy.text(rewritten, "prefill", "draft_first", "draft"),
        """\
fn prefill(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {prefill}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[T, 4])
  %1 = %0[0] : f32[T, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[T, 4])
  %3 = %2[0] : f32[T, 4]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1) : (f32[T, 4])
  %5 = %4[0] : f32[T, 4]
  %6 = call draft.embed {embed}(%positions, %tokens, @draft.table.0, @draft.wte) : (f32[T, 4])
  %7 = %6[0] : f32[T, 4]
  %8 = call draft.layer.0 {layer 0}(%7, %rows, %positions, $drafter.k.0, $drafter.v.0, @draft.w0) : (f32[T, 4])
  %9 = %8[0] : f32[T, 4]
  return
fn draft_first(%tokens: i64[2], %positions: i64[2], %rows: i64[2]) {draft}:
  %0 = call draft.embed {embed}(%positions, %tokens, @draft.table.0, @draft.wte) : (f32[2, 4])
  %1 = %0[0] : f32[2, 4]
  %2 = call draft.layer.0 {layer 0}(%1, %rows, %positions, $drafter.k.0, $drafter.v.0, @draft.w0) : (f32[2, 4])
  %3 = %2[0] : f32[2, 4]
  %4 = specc.row(%3, @constant.one) : f32[1, 4]
  %5 = call draft.head {head}(%4, @draft.head) : (f32[1, 6])
  %6 = %5[0] : f32[1, 6]
  return logits=%6
fn draft(%tokens: i64[1], %positions: i64[1], %rows: i64[1]) {draft}:
  %0 = call draft.embed {embed}(%positions, %tokens, @draft.table.0, @draft.wte) : (f32[1, 4])
  %1 = %0[0] : f32[1, 4]
  %2 = call draft.layer.0 {layer 0}(%1, %rows, %positions, $drafter.k.0, $drafter.v.0, @draft.w0) : (f32[1, 4])
  %3 = %2[0] : f32[1, 4]
  %4 = call draft.head {head}(%3, @draft.head) : (f32[1, 6])
  %5 = %4[0] : f32[1, 6]
  return logits=%5
""",
    )
    new = sorted(set(rewritten.weights) - set(program.weights))
    assert new == ["constant.one", "draft.head", "draft.table.0", "draft.w0", "draft.wte"]
    assert [n for n in rewritten.state if n not in program.state] == ["drafter.k.0", "drafter.v.0"]


def test_drafts_are_the_drafters_own_logits() -> None:
    """prefill, then the first draft step repeats one row, as after a block that was accepted whole."""
    small = toy.decoder(1, seed=5)
    program = AttachDraftModel(toy.drafter(seed=5))(toy.after("gather-logits")).program
    want, state, at = toy.logits(small), toy.poisoned_state(program), torch.arange(7)
    evaluate(program, "prefill", [toy.TOKENS[:4], at[:4], at[:4]], state)
    (first,) = evaluate(program, "draft_first", [toy.TOKENS[3:5], at[3:5], at[3:5]], state)
    (second,) = evaluate(program, "draft", [toy.TOKENS[5:6], at[5:6], at[5:6]], state)
    (third,) = evaluate(program, "draft_first", [toy.TOKENS[5:7], at[5:7], at[5:7]], state)
    torch.testing.assert_close(torch.cat([first, second, third]), want[4:7])


def test_refuses() -> None:
    prefilled = toy.after("gather-logits")
    unlike = pipelines.Pipeline("target", pipelines.target(toy.SHAPE))(toy.decoder(1))
    cases = [
        (AttachDraftModel(toy.drafter()), toy.after("outline-layers")),
        (AttachDraftModel(), prefilled),
        (AttachDraftModel(toy.decoder(1)), prefilled),
        (AttachDraftModel(unlike), prefilled),
        (AttachDraftModel(toy.wider_vocabulary(toy.drafter())), prefilled),
    ]
    assert_expected_inline(
        "\n".join(toy.refusal(*c) for c in cases),
        """\
SPECC-E0330 attach-draft-model: there is no prefill
SPECC-E0354 attach-draft-model: no drafter was given
SPECC-E0330 attach-draft-model: target is one piece
SPECC-E0330 attach-draft-model: the drafter has names of the target
SPECC-E0355 attach-draft-model: target and drafter have different vocabularies""",
    )
