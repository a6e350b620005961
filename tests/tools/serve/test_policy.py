"""Which method drafts: each condition by itself, files that say what they cannot, and one that changes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.drafts import decision_us
from specc.errors import UsageError
from specc.runtime import Artifact, Manifest
from specc.serve.policy import (
    Decision,
    Dispatcher,
    Facts,
    Policy,
    Rule,
    When,
    methods_of,
    read,
    usual,
)
from specc.serve.slots import Ask, Progress, SessionSlot, SessionSlots
from tests.conftest import artifact_of, compiled
from tests.faults.helpers import altered, plain
from tests.ir.importers.drafters import synthetic

HYBRID = Path(__file__).parents[3] / "examples/hybrid.json"
METHODS = ("ngram", "eagle3", "remote", "off")


@pytest.mark.parametrize(
    ("when", "yes", "no"),
    [
        (When(context_over=4096), Facts(4097), Facts(4096)),
        (When(context_under=1024), Facts(1023), Facts(1024)),
        (When(batch_over=8), Facts(1, 9), Facts(1, 8)),
        (When(batch_up_to=8), Facts(1, 8), Facts(1, 9)),
        (When(memory_over=0.7), Facts(1, 1, 0.71), Facts(1, 1, 0.7)),
        (When(memory_below=0.7), Facts(1, 1, 0.69), Facts(1, 1, 0.7)),
        (When(draft_service_healthy=True), Facts(1, draft_service=True), Facts(1)),
        (When(draft_service_healthy=False), Facts(1), Facts(1, draft_service=True)),
        (When(context_over=10, batch_up_to=2), Facts(11, 2), Facts(11, 3)),
    ],
)  # fmt: skip
def test_a_condition(when: When, yes: Facts, no: Facts) -> None:
    policy = Policy((Rule("a", when),), "b")
    assert (policy.wanted(yes), policy.wanted(no)) == ("a", "b")


@pytest.mark.parametrize(
    ("facts", "method"),
    [
        (Facts(4097, 1, 0.69), "suffix"), (Facts(4097, 9, 0.69), "suffix"),
        (Facts(4097, 8, 0.7), "eagle3"), (Facts(4097, 9, 0.7), "off"),
        (Facts(4096, 8, 0.1), "eagle3"), (Facts(4096, 9, 0.1), "off"),
        (Facts(20, 1, 0.1, True), "eagle3"), (Facts(5000, 1, 0.5, True), "suffix"),
    ],
)  # fmt: skip
def test_the_hybrid_rules(facts: Facts, method: str) -> None:
    """Of the example file: long texts where memory is left, others in small batches, else nothing."""
    assert read(HYBRID, ("eagle3", "suffix", "off")).wanted(facts) == method


def test_an_artifact_of_the_hybrid_rules(tmp_path: Path) -> None:
    """One can be made, by the flags that the docs say, and both methods draft."""
    model = synthetic.target()
    model.save_pretrained(tmp_path / "model")
    drafter = synthetic.eagle3(tmp_path / "drafter", model)
    made = compiled(
        tmp_path / "model", tmp_path / "a.specc", "eagle3", drafter=str(drafter), host_drafter="suffix",
        num_speculative_tokens=(0, 2),
    )  # fmt: skip
    small = json.loads(HYBRID.read_text()) | {"hold_rounds": 1}
    small["rules"][0]["when"]["context_over"] = 30  # (the model is tiny)
    prompt = [7, 21, 40, 7, 21, 40, 7, 21]
    with Artifact.load(made) as artifact:
        assert Dispatcher(artifact.manifest, HYBRID, draft_service=False).methods == (
            "eagle3", "suffix", "off",
        )  # fmt: skip
        file = written(tmp_path / "p.json", small)
        dispatcher = Dispatcher(artifact.manifest, file, draft_service=False)
        slots = SessionSlots(artifact, 2, None, dispatcher)
        slot = slots.open(Ask(tuple(prompt), 60, ignore_eos=True, num_speculative_tokens=2))
        seen = played(slots, slot)
        slot.close()
        assert tuple(t for p in seen for t in p.tokens) == plain(artifact, prompt, 60)
    methods = [p.method for p in seen if p.played]
    assert methods == sorted(methods)
    assert set(methods) == {"eagle3", "suffix"}


def test_a_service_that_is_unwell_is_passed_over() -> None:
    policy = Policy((Rule("remote"), Rule("suffix", When(context_over=100))), "remote")
    assert policy.wanted(Facts(200, draft_service=True)) == "remote"
    assert policy.wanted(Facts(200)) == "suffix"
    assert policy.wanted(Facts(10)) == "off"


def test_a_text_does_not_go_to_and_fro() -> None:
    policy = Policy((Rule("a", When(batch_up_to=4)),), "b", hold_rounds=3)
    few, many = Facts(1, 4), Facts(1, 5)
    decision = Decision()
    asked = [many, few, few, many, few, few, few, many, many, few, many, many, many]
    told = [decision.next(policy, facts) for facts in asked]
    assert told == ["b", "b", "b", "b", "b", "b", "a", "a", "a", "a", "a", "a", "b"]


def test_but_leaves_a_service_that_is_lost_at_once() -> None:
    policy = Policy((Rule("remote"),), "ngram", hold_rounds=100)
    decision = Decision()
    assert decision.next(policy, Facts(1, draft_service=True)) == "remote"
    assert decision.next(policy, Facts(1)) == "ngram"
    assert decision.next(policy, Facts(1, draft_service=True)) == "ngram"  # for a while


def manifest(kind: str, host: str | None, *, speculates: bool = True) -> Manifest:
    drafter = SimpleNamespace(kind=kind, host_drafter=host)
    return SimpleNamespace(drafter=drafter, speculates=speculates)  # type: ignore[return-value]


def test_what_an_artifact_holds() -> None:
    assert methods_of(manifest("eagle3", "suffix"), draft_service=True) == (
        "eagle3", "suffix", "remote", "off",
    )  # fmt: skip
    assert methods_of(manifest("ngram", "ngram"), draft_service=False) == ("ngram", "off")
    assert methods_of(manifest("none", None, speculates=False), draft_service=False) == ("off",)
    assert usual(("eagle3", "remote", "off")) == Policy((Rule("remote"),), "eagle3", 1)
    assert usual(("ngram", "off")) == Policy((), "ngram", 1)


def written(path: Path, said: Any) -> Path:
    """A file with that, which is newer than the one before."""
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    os.utime(path, ns=(time.time_ns(), time.time_ns()))
    return path


def saying(**changes: Any) -> dict[str, Any]:
    return {"schema_version": 1, "rules": [{"method": "ngram"}], "otherwise": "off", **changes}


def played(slots: SessionSlots, slot: SessionSlot) -> list[Progress]:
    """What its turns gave, to the end of the text."""
    seen: list[Progress] = []
    while not (seen and seen[-1].finish):
        for _, progress in slots.turn([slot]):
            assert isinstance(progress, Progress), progress
            seen.append(progress)
    return seen


def when(**conditions: Any) -> dict[str, Any]:
    return saying(rules=[{"method": "ngram", "when": conditions}])


@pytest.mark.parametrize(
    "said",
    [
        "", "{", "[" * 100_000, "[]", "1", saying(schema_version=2), saying(schema_version=True), saying(extra=1),
        saying(otherwise=None), saying(otherwise=""), saying(otherwise=3),
        saying(hold_rounds=0), saying(hold_rounds=1.5),
        saying(rules={}), saying(rules=[1]), saying(rules=[{}]), saying(rules=[{"method": "ngram", "if": {}}]),
        saying(rules=[{"method": "ngram"}] * 65), when(context_above=1), when(context_over=-1), when(context_over="1"),
        when(context_over=True), when(context_over=1.5), when(memory_below=1.1), when(memory_below=True),
        when(memory_below=float("nan")), when(draft_service_healthy=1), when(batch_up_to=None), " " * 70_000,
        {"schema_version": 1}, '{"schema_version": 1, "otherwise": "ngram", "otherwise": "off"}',
    ],
)  # fmt: skip
def test_what_is_no_policy(tmp_path: Path, said: Any) -> None:
    with pytest.raises(UsageError, match="SPECC-E0721"):
        read(written(tmp_path / "p.json", said), METHODS)


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="SPECC-E0721"):
        read(tmp_path / "none.json", METHODS)


@pytest.mark.parametrize("said", [saying(otherwise="mtp"), saying(rules=[{"method": "eagle3"}])])
def test_a_method_that_is_not_there(tiny_artifact: Path, tmp_path: Path, said: Any) -> None:
    file = written(tmp_path / "p.json", said)
    with pytest.raises(UsageError, match="SPECC-E0722") as refused:
        Dispatcher(Manifest.read(tiny_artifact), file, draft_service=False)
    assert refused.value.expected == "ngram, off"
    assert refused.value.found in ("mtp", "eagle3")


def test_a_file_that_changes(artifact: Artifact, tmp_path: Path) -> None:
    """From one turn to the next, at most a second later; what cannot be used changes nothing, and is counted."""
    file = written(tmp_path / "p.json", saying(hold_rounds=1))
    dispatcher = Dispatcher(artifact.manifest, file, draft_service=False)
    slots = SessionSlots(artifact, 2, None, dispatcher)
    prompt = (7, 21, 40, 7, 21, 40, 7, 21)
    slot = slots.open(Ask(prompt, 100, ignore_eos=True, num_speculative_tokens=4))
    said: list[int] = []

    def methods(turns: int) -> set[str]:
        seen = set()
        for _ in range(turns):
            for _, progress in slots.turn([slot]):
                assert not isinstance(progress, Exception)
                said.extend(progress.tokens)
                seen.add(progress.method)
                if progress.method == "off":
                    assert (progress.drafted, progress.fallback) == (0, "policy")
        return seen - {""}

    assert methods(6) == {"ngram"}
    written(file, saying(rules=[], hold_rounds=1))
    assert methods(3) == {"ngram"}  # it is looked at once a second
    dispatcher._next_look = 0
    assert methods(3) == {"off"}
    written(file, "{")
    dispatcher._next_look = 0
    assert methods(3) == {"off"}
    assert dispatcher.file is not None
    assert dispatcher.file.refused == 1
    written(file, saying(hold_rounds=1))
    dispatcher._next_look = 0
    assert methods(3) == {"ngram"}
    slot.close()
    assert tuple(said) == plain(artifact, list(prompt), len(said))


@pytest.mark.parametrize("named", [False, True], ids=["usual", "named"])
def test_a_method_that_is_named_drafts_alone(
    tiny_model: Path, shared_folder: Path, tmp_path: Path, *, named: bool
) -> None:
    """What --host-drafter finds stands beside the graph's drafts, but not where a rule says the graph's method."""
    eager = {"max_spec_factor": 8, "min_token_prob": 0, "max_tree_depth": 24}
    change = {"host_drafter": "suffix", "options": eager}
    alone = artifact_of("draft_model", tiny_model, shared_folder)
    place = altered(alone, tmp_path / "a.specc", lambda m: m["drafter"].update(change))
    file = written(tmp_path / "p.json", saying(rules=[], otherwise="draft_model"))
    prompt = (7, 21, 40, 7, 21, 40, 7, 21)
    with Artifact.load(place) as both:
        dispatcher = Dispatcher(both.manifest, file if named else None, draft_service=False)
        slots = SessionSlots(both, 2, None, dispatcher)
        slot = slots.open(Ask(prompt, 80, ignore_eos=True, num_speculative_tokens=4))
        seen = played(slots, slot)
        stats = slot.stats
        slot.close()
        assert tuple(t for p in seen for t in p.tokens) == plain(both, list(prompt), 80)
    assert {p.method for p in seen if p.played} == {"draft_model"}
    assert stats.drafts > stats.found_drafts
    assert (stats.found_drafts == 0) == named


def test_a_request_for_plain_decoding_is_one(artifact: Artifact, tmp_path: Path) -> None:
    file = written(tmp_path / "p.json", saying())
    dispatcher = Dispatcher(artifact.manifest, file, draft_service=False)
    slots = SessionSlots(artifact, 2, None, dispatcher)
    slot = slots.open(Ask((7, 21, 7, 21), 20, ignore_eos=True, num_speculative_tokens=0))
    seen = [p for _ in range(21) for _, p in slots.turn([slot])]
    slot.close()
    assert sum(p.drafted for p in seen) == 0
    assert {p.fallback for p in seen if p.played} == {"disabled"}


def test_a_decision_takes_no_time() -> None:
    """Below 15 us, with the rules of the example and more; the best of some tries, as others run tests beside."""
    assert min(decision_us(16, 200)["median"] for _ in range(5)) < 15
