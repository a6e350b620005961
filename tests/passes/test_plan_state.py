from dataclasses import replace

from expecttest import assert_expected_inline

from specc.ir import Encoding, Function, Role, TensorType, Weight, check
from specc.ir.encodings import Packing
from specc.ir.graphs import Builder
from specc.passes.plan_state import PlanState
from tests.passes import toy


def test_every_buffer_gets_bytes_and_a_zone() -> None:
    for method in ("draft_model", "eagle:adaptive"):
        toy.assert_twice_is_once(PlanState(16), toy.after("build-accept", method=method))
    both = [
        str(b)
        for method in ("draft_model", "eagle:adaptive")
        for b in PlanState(16)(toy.after("build-accept", method=method)).program.state.values()
        if ".v." not in b.name
    ]
    assert_expected_inline(
        "\n".join(both),
        """\
state $target.k.0: f32[1, 16, 4] (target kv_cache, zone target)
state $target.k.1: f32[1, 16, 4] (target kv_cache, zone target)
state $drafter.k.0: f32[1, 16, 4] (drafter kv_cache, zone drafter)
state $target.k.0: f32[1, 16, 4] (target kv_cache, zone target)
state $target.k.1: f32[1, 16, 4] (target kv_cache, zone target)
state $tap.1: f32[8, 4] (drafter hidden_states, zone taps)""",
    )


def test_caches_hold_several_texts() -> None:
    program = toy.after("build-accept", method="eagle:adaptive")
    rewritten = PlanState(16, 3)(program).program
    shapes = {b.name: b.type.shape for b in rewritten.state.values()}
    assert shapes["target.k.0"] == (1, 48, 4)
    assert shapes["tap.1"] == program.state["tap.1"].type.shape
    assert (rewritten.max_model_len, rewritten.max_num_seqs) == (16, 3)
    assert toy.refusal(PlanState(16, 0), program) == (
        "SPECC-E0353 plan-state: caches for 0 texts cannot be planned"
    )


def test_caches_of_another_type() -> None:
    program = toy.after("build-accept", method="eagle:adaptive")
    for dtype in ("f16", "bf16"):
        toy.assert_twice_is_once(PlanState(16, kv_cache_dtype=dtype), program)
        rewritten = PlanState(16, kv_cache_dtype=dtype)(program).program
        check(rewritten)
        types = {b.name: b.type.dtype for b in rewritten.state.values()}
        assert (types["target.k.0"], types["target.v.1"], types["tap.1"]) == (dtype, dtype, "f32")
    assert toy.refusal(PlanState(16, kv_cache_dtype="f8"), program) == (
        "SPECC-E0353 plan-state: caches of f8 cannot be planned"
    )


def test_caches_of_quantised_models_are_halves() -> None:
    program = toy.after("build-accept")
    name, weight = next((n, w) for n, w in program.weights.items() if n.startswith("w"))
    packed = replace(weight, packing=Packing(Encoding.parse("q8g32"), 4, 4))
    store = program.weights.replaced({name: packed})
    for dtype, quantised in (("f16", True), ("f32", False)):
        chosen = replace(program, weights=store) if quantised else program
        rewritten = PlanState(16)(chosen).program
        assert {b.type.dtype for b in rewritten.state.values()} == {dtype}
        assert not PlanState(16)(rewritten).modified


def test_no_open_size_is_left() -> None:
    rewritten = PlanState(12)(toy.after("build-accept")).program
    assert rewritten.max_model_len == 12
    assert "S]" not in str(rewritten)
    assert "S," not in str(rewritten)
    assert sum(b.bytes for b in rewritten.state.values()) == 2 * 2 * 12 * toy.HIDDEN * 4


def test_refuses() -> None:
    program = toy.after("build-accept")
    assert toy.refusal(PlanState(17), program) == (
        "SPECC-E0353 plan-state: a context of 17 positions cannot be planned"
    )
    assert toy.refusal(PlanState(1), program).startswith("SPECC-E0353")
    free = replace(program, model=replace(program.model, max_position=0))
    assert PlanState(16)(free).modified


def test_numbers_that_disagree() -> None:
    short = toy.after("build-accept")
    unlimited = replace(short, model=replace(short.model, max_position=0))
    assert toy.refusal(PlanState(17), unlimited) == (
        "SPECC-E0335 plan-state: too few rows of @table.0"
    )
    assert toy.refusal(PlanState(16), replace(short, prefill_chunk=0)) == (
        "SPECC-E0335 plan-state: too few rows of a prefill"
    )
    tapped = toy.after("build-accept", method="eagle:adaptive")
    assert toy.refusal(PlanState(16), replace(tapped, prefill_chunk=9)) == (
        "SPECC-E0335 plan-state: too few rows of $tap.1"
    )
    wide = replace(tapped.contract, num_speculative_tokens=(0, 8))
    assert toy.refusal(PlanState(16), replace(tapped, contract=wide)) == (
        "SPECC-E0335 plan-state: too few rows of $tap.1"
    )
    draft = toy.after("build-accept", method="draft_model")
    rows = draft.weights["draft.table.0"].load()[:8]
    cut = draft.weights.replaced({"draft.table.0": Weight.of(rows)})
    assert toy.refusal(PlanState(16), replace(draft, weights=cut)) == (
        "SPECC-E0335 plan-state: too few rows of @draft.table.0"
    )


def test_a_cache_of_another_length_is_refused() -> None:
    program = toy.after("build-accept")
    cache = program.state["target.k.0"]
    short = replace(cache, type=TensorType("f32", (1, 8, 4)))
    state = {**program.state, cache.name: short}
    assert toy.refusal(PlanState(16), replace(program, state=state)) == (
        "SPECC-E0335 plan-state: $target.k.0 holds another number of positions"
    )


def test_refuses_another_length_later() -> None:
    planned = PlanState(12)(toy.after("build-accept")).program
    assert toy.refusal(PlanState(13), planned) == (
        "SPECC-E0334 plan-state: this was done before, with other options: max_model_len"
    )


def test_features_are_not_rounded_with_the_caches() -> None:
    program = toy.after("build-accept", method="eagle3")
    planned = PlanState(16, kv_cache_dtype="f16")(program).program
    types = {name: str(buffer.type) for name, buffer in planned.state.items()}
    assert types["features"] == "f32[1, 16, 4]"
    assert types["drafter.k.0"] == types["target.k.0"] == "f16[1, 16, 4]"


def test_only_what_a_cache_is_passed_to_is_a_cache() -> None:
    """A leaf may take other tables of S rows, which keep their type."""
    builder = Builder()
    table = builder.input("table", TensorType("f32", ("S", 4)))
    loose = Function("loose", Role.LEAF, builder.output(table), ("table",))
    program = toy.after("build-accept").with_functions(loose)
    planned = PlanState(16, kv_cache_dtype="f16")(program).program
    check(planned)
    (kept,) = planned.functions["loose"].inputs
    assert str(kept.meta["type"]) == "f32[16, 4]"
    assert str(planned.state["target.k.0"].type) == "f16[1, 16, 4]"
