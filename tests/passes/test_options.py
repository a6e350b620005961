"""A pass that ran before, with other options, is refused; with the same ones, nothing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specc.ir import Owner, Role, TensorType, Weight
from specc.ir.graphs import Builder
from specc.ir.program import Function
from specc.passes import Pass
from specc.passes.attach_adapter import AttachAdapter
from specc.passes.attach_draft_model import AttachDraftModel
from specc.passes.build_accept import BuildAccept
from specc.passes.build_verify import BuildVerify
from specc.passes.canonicalise import Canonicalise
from specc.passes.declare_drafter import DeclareDrafter
from specc.passes.gather_logits import GatherLogits
from specc.passes.make_stateful import MakeStateful
from specc.passes.outline_layers import OutlineLayers
from specc.passes.plan_state import PlanState
from specc.passes.prune_layers import PruneLayers
from specc.passes.tabulate_positions import TabulatePositions
from specc.passes.tap_hidden_states import TapHiddenStates
from tests.passes import toy

FIRST, TWICE = toy.adapters(1), {1: replace(toy.adapters(1)[1], bias=torch.ones(4))}
SELF = [
    (BuildVerify((0, 2)), BuildVerify((0, 4)), "build-accept", "ngram"),
    (DeclareDrafter("ngram"), DeclareDrafter("suffix"), "declare-drafter", "ngram"),
    (
        DeclareDrafter("ngram"), DeclareDrafter("ngram", options={"prompt_lookup_max": 8}),
        "fuse-round", "ngram",
    ),
    (GatherLogits(8), GatherLogits(4), "gather-logits", "ngram"),
    (MakeStateful(), MakeStateful(Owner.DRAFTER), "make-stateful", "ngram"),
    (MakeStateful(), MakeStateful(trees=True), "make-stateful", "ngram"),
    (OutlineLayers(), OutlineLayers("draft."), "outline-layers", "ngram"),
    (PlanState(16), PlanState(12), "plan-state", "ngram"),
    (PlanState(16), PlanState(16, 2), "plan-state", "ngram"),
    (PlanState(16), PlanState(16, kv_cache_dtype="f16"), "plan-state", "ngram"),
    (PruneLayers((0,)), PruneLayers((1,)), "prune-layers", "layerskip"),
    (TabulatePositions(16), TabulatePositions(12), "tabulate-positions", "ngram"),
    (TapHiddenStates((1,), 8), TapHiddenStates((1,), 9), "tap-hidden-states", "eagle:adaptive"),
    (TapHiddenStates((1,), 8), TapHiddenStates((0, 1), 9), "tap-hidden-states", "eagle:adaptive"),
]  # fmt: skip


@pytest.mark.parametrize(("same", "other", "place", "method"), SELF)
def test_other_options_are_refused(same: Pass, other: Pass, place: str, method: str) -> None:
    program = toy.after(place, method=method)
    assert not same(program).modified
    assert toy.refusal(other, program).startswith(f"SPECC-E0334 {other.name}: this was done before")


def test_another_adapter_is_refused() -> None:
    program = toy.after("attach-adapter", method="eagle:adaptive")
    assert not AttachAdapter(toy.adapters(1))(program).modified
    assert toy.refusal(AttachAdapter(TWICE), program).startswith("SPECC-E0303")
    tapped = TapHiddenStates((1, 2), 8)(toy.after("outline-layers", toy.decoder(3))).program
    program = AttachAdapter(FIRST)(tapped).program
    assert toy.refusal(AttachAdapter(toy.adapters(1, 2)), program).startswith("SPECC-E0334")


def test_another_drafter_is_refused() -> None:
    program = toy.after("attach-draft-model", method="draft_model")
    assert not AttachDraftModel(toy.drafter())(program).modified
    assert toy.refusal(AttachDraftModel(toy.drafter(seed=3)), program).startswith("SPECC-E0303")
    assert toy.refusal(AttachDraftModel(toy.drafter(layers=2)), program).startswith("SPECC-E0334")


def test_a_draft_of_another_method_is_refused() -> None:
    program = toy.after("attach-draft-model", method="draft_model")
    assert toy.refusal(PruneLayers((0,)), replace(program, functions={
        **program.functions, "target": toy.after("outline-layers").functions["target"],
    })).startswith("SPECC-E0334")  # fmt: skip


def test_half_of_what_accept_makes_is_refused() -> None:
    program = toy.after("build-accept").without_function("accept_2")
    assert toy.refusal(BuildAccept(), program).startswith("SPECC-E0334")


def test_a_prefill_without_rows_is_refused() -> None:
    assert toy.refusal(GatherLogits(0), toy.after("outline-layers")) == (
        "SPECC-E0335 gather-logits: a prefill of 0 rows makes no progress"
    )


def test_a_name_of_the_model_is_not_overwritten() -> None:
    """The model has a weight, or function, of the name that a pass would give to its own."""
    program = toy.decoder(1)
    mine = {"table.0": Weight.of(torch.ones(3, 4))}
    taken = replace(program, weights=program.weights.added(mine))
    assert toy.refusal(TabulatePositions(16), taken).startswith("SPECC-E0303")
    tapped = toy.after("declare-drafter", method="eagle:adaptive")
    mine = {"adapter.1.bias": Weight.of(torch.ones(4))}
    taken = replace(tapped, weights=tapped.weights.added(mine))
    assert toy.refusal(AttachAdapter(FIRST), taken).startswith("SPECC-E0303")
    builder = Builder()
    x = builder.input("x", TensorType("f32", ("T", 4)))
    leaf = Function("layer.0", Role.LEAF, builder.output(x), ("x",))
    stateful = toy.after("make-stateful").with_functions(leaf)
    assert toy.refusal(OutlineLayers(), stateful).startswith("SPECC-E0304")


def test_canonicalise_does_not_overwrite() -> None:
    aten = torch.ops.aten
    matrix = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))

    def body(builder: Builder, tokens, positions):  # type: ignore[no-untyped-def]
        x = builder.op(aten.embedding.default, toy.weight(builder, "m", matrix), tokens)
        return builder.op(aten.mm.default, x, toy.weight(builder, "m", matrix))

    program = toy.build(body, {"m": matrix})
    assert "m.T" in Canonicalise()(program).program.weights
    taken = replace(program, weights=program.weights.added({"m.T": Weight.of(matrix)}))
    assert toy.refusal(Canonicalise(), taken).startswith("SPECC-E0303")
