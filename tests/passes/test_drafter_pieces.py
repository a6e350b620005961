from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir import SpeculativeProgram
from specc.ir.evaluate import evaluate
from specc.ir.importers.drafters import Kind, Target, load_drafter
from specc.passes.drafter_pieces import DrafterPieces
from tests.ir.importers.drafters import reference
from tests.passes import test_trained_drafters as trained
from tests.passes import toy

TEXT = [7, 21, 40, 7, 21, 90, 50, 7]


def pieces(layout: str, folder: Path) -> tuple[Any, Path, SpeculativeProgram]:
    model, imported = trained.target()
    drafter = trained.DRAFTERS[layout](folder, model)
    checkpoint = load_drafter(drafter, Target.of(imported))
    return model, drafter, DrafterPieces(checkpoint, 48, 2)(imported).program


def features(model: Any, text: list[int]) -> torch.Tensor:
    """What the target's head multiplies, by transformers."""
    with torch.no_grad():
        return model.model(torch.tensor([text])).last_hidden_state[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("layout", ["eagle-bias"])
def test_an_eagle_in_pieces_drafts_what_eager_code_drafts(layout: str, tmp_path: Path) -> None:
    model, drafter, program = pieces(layout, tmp_path)
    state = toy.poisoned_state(program)

    def step(tokens: list[int], hidden: torch.Tensor, begin: int) -> torch.Tensor:
        at = torch.arange(begin, begin + len(tokens))
        (e,) = evaluate(program, "embedding", [torch.tensor(tokens)], state)
        (x,) = evaluate(program, "fuse", [e, hidden], state)
        return evaluate(program, "hidden", [x, at, at], state)[0][-1:]

    hidden = step(TEXT[1:], features(model, TEXT[:-1]), 0)
    drafts: list[int] = []
    for place in range(3):
        (logits,) = evaluate(program, "logits", [hidden], state)
        drafts.append(int(logits.argmax()))
        hidden = step(drafts[-1:], hidden, len(TEXT) - 1 + place)
    assert drafts == reference.draft(drafter, model, TEXT, 3)


@pytest.mark.parametrize("layout", ["medusa"])
def test_medusa_heads_draft_what_eager_code_drafts(layout: str, tmp_path: Path) -> None:
    model, drafter, program = pieces(layout, tmp_path)
    last = features(model, TEXT[:-1])[-1:]
    found = evaluate(program, "logits", [last], {})
    assert program.functions["logits"].outputs == ("logits.0", "logits.1")
    assert [int(x.argmax()) for x in found] == reference.draft(drafter, model, TEXT, 2)


def test_the_target_is_gone() -> None:
    program = toy.after("outline-layers")
    pass_ = DrafterPieces(toy.checkpoint(Kind.MEDUSA), 16, 2)
    toy.assert_twice_is_once(pass_, program)
    assert_expected_inline(
        toy.text(pass_(program).program, "logits"),
        """\
fn logits(%hidden: f32[T, 4]) {target}:
  %0 = call draft.head.0 {head}(%hidden, @draft.heads.0.blocks.0.weight, @draft.heads.0.lm_head.weight) : (f32[T, 6])
  %1 = %0[0] : f32[T, 6]
  %2 = call draft.head.0 {head}(%hidden, @draft.heads.1.blocks.0.weight, @draft.heads.1.lm_head.weight) : (f32[T, 6])
  %3 = %2[0] : f32[T, 6]
  return logits.0=%1, logits.1=%3
""",
    )


@pytest.mark.parametrize("layout", ["mtp", "eagle3-safeailab", "dflash"])
def test_other_drafters_are_refused(layout: str, tmp_path: Path) -> None:
    model, imported = trained.target()
    checkpoint = load_drafter(trained.DRAFTERS[layout](tmp_path, model), Target.of(imported))
    found = toy.refusal(DrafterPieces(checkpoint, 48, 2), imported)
    kind = checkpoint.spec.kind
    assert found == (
        f"SPECC-E0379 drafter-pieces: this {kind} drafter is no model that reads the target's last hidden state alone"
    )


def test_more_drafts_than_heads_are_refused() -> None:
    pass_ = DrafterPieces(toy.checkpoint(Kind.MEDUSA), 16, 3)
    found = toy.refusal(pass_, toy.after("outline-layers"))
    assert found == "SPECC-E0368 drafter-pieces: the drafter has 2 heads"
    assert toy.refusal(DrafterPieces(), toy.after("outline-layers")) == (
        "SPECC-E0354 drafter-pieces: no drafter was given"
    )
