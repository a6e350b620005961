"""Verification: what counts as exact, a tie, a mismatch. Whole artifacts are in test_end_to_end."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.commands.verify_ import payload, render
from specc.prompts import Prompt
from specc.runtime import Artifact
from specc.verification import (
    Arm,
    Divergence,
    Limits,
    Report,
    Verdict,
    Verifier,
    first_difference,
    planted_drafter,
)
from tests.conftest import compiled

TOKENS = st.lists(st.integers(0, 9))


@given(TOKENS, TOKENS)
def test_first_difference(left: list[int], right: list[int]) -> None:
    place = first_difference(left, right)
    if place is None:
        assert left == right
        return
    assert left[:place] == right[:place]
    assert left[place : place + 1] != right[place : place + 1]


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_planted_drafts_reach_every_accepted_length(k: int) -> None:
    prompt, plain = [1, 2], list(range(3, 90))
    draft = planted_drafter(prompt, plain, 100)
    told = [*prompt, *plain]
    reached = set()
    for length in range(2, 60):
        block = draft(told[:length], k)
        assert len(block) == k
        assert all(0 <= t < 100 for t in block)
        truth = told[length : length + k]
        reached.add(next((i for i, (a, b) in enumerate(zip(block, truth)) if a != b), k))  # noqa: B905
    assert reached == set(range(k + 1))


def test_planted_drafts_beyond_the_known_end() -> None:
    draft = planted_drafter([1], [2, 3], 4)
    assert len(draft([1, 2, 3], 8)) == 8
    assert all(0 <= t < 4 for t in draft([1, 2, 3, 3, 3], 8))


def divergence(verdict: Verdict, position: int = 3, arm: str = "K=2") -> Divergence:
    return Divergence("p:1", position, 5, 6, 0.25, arm, verdict)


def test_a_prompt_is_as_good_as_its_worst_arm() -> None:
    report = Report(["K=2", "adaptive"], eager=True)
    report.add("a", 10, [])
    report.add("b", 10, [divergence(Verdict.TIE)])
    report.add("c", 10, [divergence(Verdict.TIE), divergence(Verdict.MISMATCH, 7, "eager")])
    assert [report.count(v) for v in Verdict] == [1, 1, 1]
    first = report.first_divergence
    assert first is not None
    assert (first.position, first.arm) == (7, "eager")
    printed = json.loads(json.dumps(payload(report)))
    assert (printed["exact"], printed["ties"], printed["mismatches"]) == (1, 1, 1)
    assert printed["first_divergence"] == {
        "prompt": "p:1", "position": 7, "expected": 5, "found": 6, "margin": 0.25, "arm": "eager",
        "verdict": "mismatch",
    }  # fmt: skip
    assert "mismatch of eager at p:1, new token 7" in render(report)


def test_nothing_diverged() -> None:
    report = Report(["K=2"])
    report.add("a", 4, [])
    assert payload(report)["first_divergence"] is None
    assert "not asked" in render(report)


# With a real artifact, and an eager whose answers are made up from it.

PROMPTS = [Prompt("a", token_ids=(5, 6, 7, 5, 6, 7)), Prompt("b", token_ids=(9,))]


def eager_like(artifact: Artifact, change: dict[int, float]) -> Any:
    """The artifact's own logits, but at new token i another token is ahead by change[i]."""

    def eager(tokens: torch.Tensor) -> torch.Tensor:
        rows = []
        for end in range(1, len(tokens) + 1):
            with artifact.session() as session:
                session.append(tokens[:end].tolist())
                inputs = {
                    "tokens": [int(tokens[end - 1])],
                    "positions": [end - 1],
                    "rows": [end - 1],
                }
                view = session.run("verify_0", inputs)
                rows.append(torch.tensor(view.tolist()[0]))
        logits = torch.stack(rows)
        (start,) = [
            len(p.token_ids)
            for p in PROMPTS
            if list(p.token_ids) == tokens[: len(p.token_ids)].tolist()
        ]
        for place, ahead in change.items():
            row = logits[start - 1 + place]
            row[(int(row.argmax()) + 1) % len(row)] = row.max() + ahead
        return logits

    return eager


@pytest.mark.parametrize(
    ("change", "verdict", "position"),
    [
        ({}, Verdict.EXACT, None),
        ({2: 1e-5}, Verdict.TIE, 2),
        ({2: 0.5}, Verdict.MISMATCH, 2),
        ({0: 0.5}, Verdict.MISMATCH, 0),
        ({1: 1e-5, 4: 0.5}, Verdict.MISMATCH, 4),
    ],
)
def test_against_eager(
    tiny_artifact: Path, change: dict[int, float], verdict: Verdict, position: int | None
) -> None:
    with Artifact.load(tiny_artifact) as artifact:
        limits = Limits(max_tokens=6, ignore_eos=True)
        report = Verifier(artifact, limits, eager_like(artifact, change)).run(PROMPTS)
    assert report.count(verdict) == 2
    first = report.first_divergence
    assert (first.position if first else None) == position
    if first is not None:
        assert first.arm == "eager"
        assert first.margin is not None
        assert abs(first.margin - change[position or 0]) < 1e-4


def test_rounded_caches_are_no_mismatch_with_the_original(
    tiny_model: Path, shared_folder: Path
) -> None:
    """What the original says then is counted; what the arms say is judged all the same."""
    path = shared_folder / "tiny-halves.specc"
    compiled(tiny_model, path, "ngram", kv_cache_dtype="f16")
    with Artifact.load(path) as artifact:
        assert (artifact.manifest.reduced, artifact.manifest.approximations) == (
            (),
            ("f16 caches",),
        )
        limits = Limits(max_tokens=6, ignore_eos=True)
        report = Verifier(artifact, limits, eager_like(artifact, {2: 0.5})).run(PROMPTS)
    assert (report.count(Verdict.EXACT), report.divergences) == (2, [])
    assert (report.agreed, report.tokens) == (10, 12)
    assert "f16 caches" in render(report)
    assert "10 of 12 tokens" in render(report)


def test_an_arm_that_says_something_else_is_a_mismatch(tiny_artifact: Path) -> None:
    """Nothing in the engine can be made to lie, so the comparison itself is given a lie."""
    with Artifact.load(tiny_artifact) as artifact:
        verifier = Verifier(artifact, Limits(max_tokens=6, ignore_eos=True), None)
        honest = verifier._generate
        other = artifact.generate([8], max_tokens=6, ignore_eos=True)

        def lie(ids: Any, arm: Arm, plain: Any) -> Any:
            return other if arm.name == "K=4" else honest(ids, arm, plain)

        verifier._generate = lie  # type: ignore[method-assign]
        report = verifier.run(PROMPTS[:1])
    assert report.count(Verdict.MISMATCH) == 1
    first = report.first_divergence
    assert first is not None
    assert first.arm == "K=4"
