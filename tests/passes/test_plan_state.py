from dataclasses import replace

from expecttest import assert_expected_inline

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
    assert PlanState(1 << 20)(free).modified
