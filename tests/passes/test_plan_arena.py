from dataclasses import replace
from typing import Any

import pytest
from expecttest import assert_expected_inline

from specc.errors import PassError, SpeccError
from specc.ir import SpeculativeProgram, TensorType
from specc.ir.arena import CANARY, LONG_CONTEXT, PAGE, Arena, Plan
from specc.passes.plan_arena import PlanArena
from tests.passes import toy


def shown(program: SpeculativeProgram) -> str:
    lines = str(program).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("arena"))
    last = next(i for i, line in enumerate(lines) if line.startswith("weight"))
    return "\n".join(lines[first:last])


def placed(method: str, **options: object) -> Plan:
    program = PlanArena(**options)(toy.after("fuse-round", method=method)).program  # type: ignore[arg-type]
    assert program.arena is not None
    return program.arena.plans[-1]


def test_every_buffer_gets_a_place() -> None:
    program = toy.after("fuse-round", method="draft_model")
    assert program.arena is None
    toy.assert_twice_is_once(PlanArena(), program)
    assert_expected_inline(
        shown(PlanArena()(program).program),
        """\
arena auto (30 writes proved): 16 rows, 20480 bytes
  zone target at 4096: 4096 bytes, 1664 used
    $target.k.0 at 6656
    $target.v.0 at 7040
    $target.k.1 at 7424
    $target.v.1 at 7808
  zone drafter at 12288: 4096 bytes, 896 used
    $drafter.k.0 at 15616
    $drafter.v.0 at 16000""",
    )


@pytest.mark.parametrize(
    "method", ["ngram", "layerskip", "draft_model", "eagle:adaptive", "eagle3", "dspark", "medusa"]
)
@pytest.mark.parametrize("splits", [(), ((30, 70),), ((1, 1),)])
def test_nothing_touches_anything_else(method: str, splits: tuple[tuple[int, int], ...]) -> None:
    """By definition of a layout: guards between zones and between buffers, all within the arena."""
    program = toy.after("fuse-round", method=method)
    zones = {b.zone for b in program.state.values()}
    if splits and "drafter" not in zones:
        assert "nothing to split" in toy.refusal(PlanArena(splits), program)
        return
    plan = placed(method, splits=splits)
    assert sorted(n for z in plan.zones for n in z.buffers) == sorted(program.state)
    taken = set()
    for zone in plan.zones:
        assert zone.offset % PAGE == zone.bytes % PAGE == 0
        for name, at in zone.buffers.items():
            assert at % CANARY == 0
            mine = set(range(at - CANARY, at + program.state[name].bytes))
            assert not mine & taken
            taken |= mine
            assert zone.offset <= min(mine)
            assert max(mine) + CANARY < zone.offset + zone.bytes
        guard = set(range(zone.offset - PAGE, zone.offset)) | set(
            range(zone.offset + zone.bytes, zone.offset + zone.bytes + PAGE)
        )
        assert not guard & taken
        assert max(guard) < plan.bytes
        assert min(guard) >= 0


def test_zones_are_as_large_as_asked() -> None:
    auto = {z.name: z.bytes for z in placed("draft_model").zones}
    assert auto == {"target": PAGE, "drafter": PAGE}
    split = {z.name: z.bytes for z in placed("draft_model", splits=((30, 70),)).zones}
    assert split["target"] >= PAGE
    assert split["drafter"] >= PAGE
    sized = {
        z.name: z.bytes for z in placed("draft_model", splits=((30, 70),), size=100 * PAGE).zones
    }
    assert sized == {"drafter": 30 * PAGE, "target": 70 * PAGE}


def long(positions: int, **options: Any) -> Arena:
    """The arena of the toy with a longer context, of which only state and numbers are right: no check looks on."""
    program = toy.after("fuse-round", method="draft_model")
    longer = TensorType("f32", (1, positions, 4))
    state = {n: replace(b, type=longer) for n, b in program.state.items()}
    program = replace(program, state=state, max_model_len=positions)
    pass_ = PlanArena(**options)
    pass_.requires(program)
    found = pass_.call(program).program
    pass_.ensures(found)
    assert found.arena is not None
    return found.arena


def refused(positions: int, **options: Any) -> PassError:
    with pytest.raises(PassError) as error:
        long(positions, **options)
    assert error.value.code == "SPECC-E0377"
    return error.value


def test_short_texts_have_a_plan_of_their_own() -> None:
    arena = long(3 * LONG_CONTEXT, splits=((30, 70), (20, 80)), shorter=True)
    assert [p.rows for p in arena.plans] == [LONG_CONTEXT, 3 * LONG_CONTEXT]
    shares = []
    for plan in arena.plans:
        zones = {z.name: z.bytes for z in plan.zones}
        shares.append(zones["drafter"] / sum(zones.values()))
    assert shares == pytest.approx([0.3, 0.2], abs=0.01)
    assert 2.5 < arena.plans[1].bytes / arena.plans[0].bytes < 5
    assert [p.rows for p in long(LONG_CONTEXT, shorter=True).plans] == [LONG_CONTEXT]
    assert [p.rows for p in long(3 * LONG_CONTEXT).plans] == [3 * LONG_CONTEXT]


def test_what_cannot_hold_the_context_is_refused() -> None:
    """The target has four caches and the drafter two, of 4096 positions of four floats: 65536 bytes each."""
    error = refused(4096, splits=((50, 50),), size=400_000)
    assert error.what == "--kv-arena 50:50@400000 cannot hold 4096 positions with K up to 2"
    assert error.where == "zone target"
    assert int(error.expected.split()[0]) >= 4 * 65536
    assert error.found.startswith("196608, about 30")  # whole pages of a half
    assert refused(4096, splits=((30, 70),), size=400_000).where == "zone drafter"
    arena = long(4096, splits=((1, 2),), size=420_000)
    assert {z.name: z.bytes for z in arena.plans[0].zones} == {"target": 278528, "drafter": 139264}
    assert refused(4096, size=300_000).where == "zone target and drafter"
    long(4096, size=410_000)
    assert "second split" in refused(4096, splits=((30, 70), (20, 80))).what


def test_refuses() -> None:
    assert toy.refusal(PlanArena(), toy.after("build-accept")).startswith("SPECC-E0330")
    assert toy.refusal(PlanArena(), toy.after("plan-state")).startswith("SPECC-E0330")
    program = PlanArena()(toy.after("fuse-round", method="draft_model")).program
    assert toy.refusal(PlanArena(((1, 1),)), program) == (
        "SPECC-E0334 plan-arena: this was done before, with other options: split"
    )


def test_an_npu_s_buffers_lie_further_apart() -> None:
    """On whole blocks of 512 bytes, with one free between any two."""
    program = toy.after("fuse-round", method="draft_model")
    made = PlanArena(canary=512)(program).program
    assert toy.refusal(PlanArena(), made).endswith("with other options: canary")
    assert made.arena is not None
    assert_expected_inline(
        shown(made),
        """\
arena auto (30 writes proved): 16 rows, 24576 bytes
  zone target at 4096: 8192 bytes, 4608 used
    $target.k.0 at 8192
    $target.v.0 at 9216
    $target.k.1 at 10240
    $target.v.1 at 11264
  zone drafter at 16384: 4096 bytes, 2560 used
    $drafter.k.0 at 18432
    $drafter.v.0 at 19456""",
    )


def test_a_write_that_may_leave_its_place_is_refused() -> None:
    """A cache that is smaller than what rounds write, as a pass with a fault might plan it."""
    program = toy.after("fuse-round")
    assert PlanArena()(program).modified
    cache = program.state["target.k.0"]
    short = replace(cache, type=TensorType("f32", (1, 8, 4)))
    with pytest.raises(SpeccError, match=r"a write may leave its place: \$target.k.0") as refused:
        PlanArena().call(replace(program, state={**program.state, cache.name: short}))
    assert refused.value.code == "SPECC-E0376"
