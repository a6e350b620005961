"""Benchmarks: medians, ratios, what a round costs, and plain words when speculation loses."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.commands import bench_
from specc.measurement import (
    Measurements,
    Run,
    acceptance_needed,
    expected_tokens,
    measure,
    synthetic_drafter,
)
from specc.prompts import Prompt
from specc.runtime import Artifact, Manifest
from specc.runtime.stats import LengthStats, PositionStats, Stats
from specc.verification import Arm
from tests.runtime.manifests import document, parse
from tests.runtime.test_python import stats

ARMS = ("plain", "K=2", "K=4", "adaptive")


def manifest() -> Manifest:
    return parse(document())


def run(arm: str, repeat: int, tokens: int, seconds: float, **more: Any) -> Run:
    values: dict[str, Any] = {
        "new_tokens": tokens, "decode_s": seconds, "round_s": seconds, **more
    }  # fmt: skip
    return Run(arm, "chat", repeat, stats(**values))


def made_up(speeds: dict[str, list[float]]) -> Measurements:
    return Measurements(
        [run(a, i, 100, 100 / s) for a, each in speeds.items() for i, s in enumerate(each)]
    )


def test_speeds_are_medians_and_ratios_are_of_the_same_repeat() -> None:
    found = made_up({"plain": [10, 5, 10], "K=2": [20, 10, 22]})
    speed = found.speed("K=2")
    assert speed.tokens_per_s == pytest.approx(20)
    assert speed.ratio == pytest.approx(2)
    assert (speed.ratio_least, speed.ratio_most) == pytest.approx((2, 2.2))
    assert speed.spread == pytest.approx(12 / 20)
    assert found.speed("plain").ratio == 1


def test_one_repeat_has_no_spread() -> None:
    found = made_up({a: [10] for a in ARMS})
    assert found.speed("K=2").spread is None
    shown = bench_.render(manifest(), found, {"other_s": 1.0}, ())
    assert "one repeat\n" in shown
    assert shown.split("K=2", 1)[1].split()[:3] == ["10.0", "-", "1.00"]


def test_the_break_even_table_names_its_numbers() -> None:
    """A round of 2 at 1.25 plain rounds: 1 + a + a^2 = 1.25, so a = (sqrt(2) - 1) / 2 = 0.207."""
    found = Measurements([
        *(run(a, i, 10, 1, per_k=per_k(0, 10, 1.0, 10)) for a in ARMS for i in (0, 1)),
        run("K=2", 0, 30, 1, per_k=per_k(2, 10, 1.25, 30)),
    ])  # fmt: skip
    shown = bench_.render(manifest(), found, {"other_s": 1.0}, ())
    assert "medians of 2 repeats\n" in shown
    title, row = shown.split("break-even", 1)[1].splitlines()[2:4]
    assert title.split("  ")[-1] == "acceptance needed"
    assert row.split() == ["2", "125.0", "1.25", "3.00", "21%", "pays"]


@pytest.mark.parametrize(
    ("fast", "said"),
    [
        (0.5, "plain is faster here"),
        (1.0, "plain is faster here"),
        (1.5, "K=2 is 1.50 times plain"),
    ],
)
def test_the_verdict_is_plain(fast: float, said: str) -> None:
    speeds = {a: [10.0, 10.0] for a in ARMS} | {"K=2": [10 * fast] * 2}
    if fast <= 1:
        speeds |= {"K=4": [10 * fast] * 2, "adaptive": [10 * fast] * 2}
    said_so = bench_.verdict(manifest(), made_up(speeds))
    assert said in said_so
    assert ("--method none" in said_so) is (fast <= 1)


def test_a_gain_within_the_spread_is_none() -> None:
    speeds = {a: [10.0, 10.0, 10.0] for a in ARMS} | {"K=2": [9.0, 11.0, 12.0]}
    assert "within the spread" in bench_.verdict(manifest(), made_up(speeds))


@given(st.integers(1, 16), st.floats(0, 1))
def test_acceptance_that_breaks_even(k: int, acceptance: float) -> None:
    needed = acceptance_needed(k, expected_tokens(k, acceptance))
    assert needed is not None
    assert expected_tokens(k, needed) == pytest.approx(expected_tokens(k, acceptance))


def test_costs_no_acceptance_can_pay() -> None:
    assert acceptance_needed(2, 3.5) is None
    assert acceptance_needed(2, 0.9) == 0


def per_k(k: int, rounds: int, seconds: float, tokens: int) -> tuple[LengthStats, ...]:
    return (LengthStats(k, rounds, seconds, tokens),)


def test_round_costs_come_from_rounds_that_drafted() -> None:
    found = Measurements([
        run("plain", 0, 10, 1, per_k=per_k(0, 10, 1.0, 10)),
        run("K=2", 0, 12, 1, per_k=(*per_k(0, 90, 9.9, 90), *per_k(2, 5, 0.6, 12))),
    ])  # fmt: skip
    (cost,) = found.round_costs((0, 2, 4))
    assert (cost.k, cost.cost, cost.tokens_per_round) == pytest.approx((2, 1.2, 2.4))
    assert cost.pays
    assert cost.acceptance_needed == pytest.approx(0.1708, abs=1e-3)


def test_acceptance_is_summed_before_it_is_divided() -> None:
    found = Measurements([
        run("K=2", 0, 1, 1, drafts=1, accepted_tokens=2,
            by_position=(PositionStats(1, 1), PositionStats(1, 1), PositionStats(0, 0))),
        run("K=2", 1, 1, 1, drafts=3, accepted_tokens=0,
            by_position=(PositionStats(3, 0), PositionStats(0, 0), PositionStats(0, 0))),
    ])  # fmt: skip
    assert found.acceptance("K=2") == [(4, 1), (1, 1)]
    assert found.mean_acceptance_length("K=2") == 1.5


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_synthetic_drafts_are_right_as_often_as_told(rate: float) -> None:
    told = list(range(1000))
    draft = synthetic_drafter(told, [1.0, rate], 2000, seed=0)
    blocks = [(n, draft(told[:n], 2)) for n in range(1, 900)]
    assert all(b[0] == n for n, b in blocks)
    right = sum(b[1] == n + 1 for n, b in blocks) / len(blocks)
    assert right == pytest.approx(rate, abs=0.06)


def test_measures_a_real_artifact(tiny_artifact: Path) -> None:
    asked = [Prompt("a", token_ids=(5, 6, 7, 5, 6, 7), kind="copy")]
    with Artifact.load(tiny_artifact) as artifact:
        found = measure(artifact, asked, 16, 2)
        phases = bench_._phases(artifact, found, asked)
        shown = bench_.payload(artifact.manifest, found, phases, ())
    assert {r.arm for r in found.runs} == set(ARMS)
    assert all(r.stats.new_tokens == 16 for r in found.runs)
    plain: Any = shown["plain"]
    speculative: Any = shown["speculative"]
    assert plain["tokens_per_s"] > 0
    assert speculative["tokens_per_s"] > 0
    assert plain["ratio"] == 1
    assert all(v >= 0 for v in phases.values())
    assert found.of("plain")[0].stats.drafts == 0


def test_processor_time_is_of_the_tokens_after_the_first(tiny_artifact: Path) -> None:
    """Drafts are counted as ever, and a process that is alone has no more of it than of the clock's time."""
    asked = [Prompt("a", token_ids=(5, 6, 7, 5, 6, 7))]
    with Artifact.load(tiny_artifact, 1) as artifact:
        began = time.monotonic()
        found = measure(
            artifact, asked, 16, 1, synthetic=(1.0,), processor_time=True,
            arms=(Arm("plain", 0), Arm("K=4", 4)),
        )  # fmt: skip
        whole = time.monotonic() - began
    assert [(r.arm, r.stats.new_tokens) for r in found.runs] == [("plain", 15), ("K=4", 15)]
    assert 0 < sum(r.stats.decode_s for r in found.runs) < whole + 0.1
    assert [r.stats.accepted_tokens for r in found.runs] == [0, 12]  # 15 in 3 rounds


def test_a_perfect_synthetic_drafter_is_accepted(tiny_artifact: Path) -> None:
    asked = [Prompt("a", token_ids=(5, 6, 7))]
    with Artifact.load(tiny_artifact) as artifact:
        found = measure(artifact, asked, 17, 1, synthetic=(1.0,))
    accepted: list[Stats] = [r.stats for r in found.of("K=4")]
    assert all(s.accepted_tokens == s.draft_tokens > 0 for s in accepted)
