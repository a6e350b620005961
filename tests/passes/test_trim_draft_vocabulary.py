import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir import SpeculativeProgram
from specc.ir.evaluate import evaluate
from specc.passes.pipeline import Pipeline
from specc.passes.trim_draft_vocabulary import TrimDraftVocabulary
from tests.passes import toy
from tests.passes.driver import generate

IDS = (1, 3, 4)
METHODS = ["layerskip", "draft_model", "eagle:adaptive"]
LAST = {
    "layerskip": "prune-layers", "draft_model": "attach-draft-model", "eagle:adaptive": "attach-adapter",
}  # fmt: skip


def attached(method: str) -> SpeculativeProgram:
    return toy.after(LAST[method], method=method)


def test_rows_of_the_head_alone() -> None:
    program = attached("layerskip")
    pass_ = TrimDraftVocabulary(IDS)
    toy.assert_twice_is_once(pass_, program)
    rewritten = pass_(program).program
    toy.assert_same_target(program, rewritten)
    assert_expected_inline(
        toy.text(program, "draft"),
        """\
fn draft(%tokens: i64[1], %positions: i64[1], %rows: i64[1]) {draft}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[1, 4])
  %1 = %0[0] : f32[1, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[1, 4])
  %3 = %2[0] : f32[1, 4]
  %4 = call head {head}(%3, @head) : (f32[1, 6])
  %5 = %4[0] : f32[1, 6]
  return logits=%5
""",
    )
    assert_expected_inline(
        toy.text(rewritten, "head.trimmed", "draft"),
        """\
fn head.trimmed(%x: f32[T, 4], %weight_1: f32[3, 4], %places: i32[6]) {leaf}:
  %0 = aten.unsqueeze(%x, 0) : f32[1, T, 4]
  %1 = aten.linear(%0, %weight_1) : f32[1, T, 3]
  %2 = aten.select.int(%1, 0, 0) : f32[T, 3]
  %3 = aten.slice.Tensor(%2, -1, 0, 1) : f32[T, 1]
  %4 = aten.full_like(%3, -inf) : f32[T, 1]
  %5 = aten.cat([%2, %4], -1) : f32[T, 4]
  %6 = aten.index_select(%5, 1, %places) : f32[T, 6]
  return logits=%6
fn draft(%tokens: i64[1], %positions: i64[1], %rows: i64[1]) {draft}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[1, 4])
  %1 = %0[0] : f32[1, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[1, 4])
  %3 = %2[0] : f32[1, 4]
  %4 = call head.trimmed {head}(%3, @head.trimmed, @draft.places) : (f32[1, 6])
  %5 = %4[0] : f32[1, 6]
  return logits=%5
""",
    )
    assert torch.equal(
        rewritten.weights["head.trimmed"].load(), program.weights["head"].load()[list(IDS)]
    )
    assert rewritten.weights["draft.places"].load().tolist() == [3, 0, 3, 1, 2, 3]


@pytest.mark.parametrize("method", METHODS)
def test_the_same_logits_where_there_are_any(method: str) -> None:
    program = attached(method)
    trimmed = TrimDraftVocabulary(IDS)(program).program
    name = "draft_d1" if method == "eagle:adaptive" else "draft"
    inputs = [torch.tensor([2]), torch.tensor([0]), torch.tensor([0])]
    inputs += [torch.ones(1, toy.HIDDEN)] if method == "eagle:adaptive" else []
    want, got = (evaluate(p, name, inputs, toy.poisoned_state(p))[0] for p in (program, trimmed))
    torch.testing.assert_close(got[:, list(IDS)], want[:, list(IDS)])
    assert got[:, [0, 2, 5]].isneginf().all()


@pytest.mark.parametrize("heat", [0.0, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_the_text_stays(method: str, heat: float) -> None:
    """Rounds say what plain decoding says, and accept what is drafted where the target says a token of `ids`."""
    trimmed = TrimDraftVocabulary(IDS)(attached(method)).program
    rest = toy.pipelines.loop(toy.SHAPE)
    done = Pipeline("rest", rest)(trimmed)
    plain = generate(toy.after("fuse-round"), [3, 1, 4], 10, [0], heat=heat)[0]
    depth = 1 if method == "eagle:adaptive" else 0
    assert generate(done, [3, 1, 4], 10, [2], depth=depth, heat=heat)[0] == plain


def test_refuses() -> None:
    assert toy.refusal(TrimDraftVocabulary(IDS), toy.after("gather-logits")) == (
        "SPECC-E0330 trim-draft-vocabulary: nothing drafts"
    )
    for ids in ((), (3, 1), (1, 1), (6,), tuple(range(6))):
        assert toy.refusal(TrimDraftVocabulary(ids), attached("layerskip")).startswith(
            "SPECC-E0362"
        )
    done = TrimDraftVocabulary(IDS)(attached("layerskip")).program
    assert toy.refusal(TrimDraftVocabulary((1, 2)), done).startswith("SPECC-E0334")
    assert toy.refusal(TrimDraftVocabulary((1, 2, 3)), done).startswith("SPECC-E0303")
