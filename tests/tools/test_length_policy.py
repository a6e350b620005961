"""`--length-policy`: other rules for how much is drafted change no token, and what they cannot do is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from specc import cli, flags
from specc.commands import bench_
from specc.errors import RequestError, UsageError
from specc.measurement import DraftCost, draft_cost, measure
from specc.prompts import Prompt
from specc.runtime import ADAPTIVE, Artifact, Manifest
from tests.conftest import compiled
from tests.tools.serve.conftest import running

POLICIES = ("prompt-length", "aimd", "batch:1", "batch", "priority")
LONG = [5, 6, 7, 8] * 12  # more than 32 tokens
WRONG = ["fast", "batch:0", "batch:x", "batch:", "aimd:3", ""]


@pytest.fixture(scope="module")
def drafting(tiny_model: Path, shared_folder: Path) -> Path:
    """A drafter in the graph, with state of its own."""
    return compiled(
        tiny_model, shared_folder / "tiny-draft.specc", "draft_model", drafter=str(tiny_model)
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["tiny_artifact", "drafting"])
def test_the_tokens_are_those_of_plain_decoding(
    request: pytest.FixtureRequest, kind: str, policy: str
) -> None:
    with Artifact.load(request.getfixturevalue(kind)) as artifact, artifact.session() as other:
        other.append([3, 4, 5])  # a text in the making beside
        for prompt in ([9, 8, 7], LONG):
            for temperature in (0.0, 0.9):
                asked: dict[str, Any] = {
                    "max_tokens": 24, "ignore_eos": True, "temperature": temperature, "seed": 3,
                }  # fmt: skip
                plain = artifact.generate(prompt, **asked, num_speculative_tokens=0)
                options = {"length_policy": policy, "draft_weight": 0.6}
                found = artifact.generate(prompt, **asked, options=options)
                assert found.token_ids == plain.token_ids
                drafted = found.stats.draft_tokens
                assert drafted == 0 or policy != "batch:1"
                assert drafted > 0 or kind == "tiny_artifact" or policy not in flags.ALONE


def test_names(tiny_artifact: Path) -> None:
    manifest = Manifest.read(tiny_artifact)
    assert flags.length_policy(manifest, "adaptive", ADAPTIVE) == {}
    for policy in POLICIES:
        assert flags.length_policy(manifest, policy, ADAPTIVE) == {"length_policy": policy}
    for wrong in WRONG:
        with pytest.raises(UsageError, match="--length-policy") as refused:
            flags.length_policy(manifest, wrong, ADAPTIVE)
        assert refused.value.code == "SPECC-E0103"
    for alone in ("prompt-length", "aimd"):
        with pytest.raises(UsageError, match="both say how much"):
            flags.length_policy(manifest, alone, 2)
    assert flags.length_policy(manifest, "batch:8", 2) == {"length_policy": "batch:8"}


def test_the_engine_knows_the_same_names(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        for policy in flags.LENGTH_POLICIES:
            session.set("length_policy", policy)
        for wrong in WRONG:
            with pytest.raises(RequestError, match="SPECC-E0601"):
                session.set("length_policy", wrong)


def test_a_policy_for_no_drafts_is_refused(tiny_model: Path, shared_folder: Path) -> None:
    path = compiled(tiny_model, shared_folder / "tiny-none.specc", "none")
    arguments = ["run", str(path), "--token-ids", "1,2", "--length-policy", "aimd"]
    assert cli.main([*arguments, "--json"]) == 2
    with Artifact.load(path) as artifact, artifact.session() as session:
        session.set("length_policy", "adaptive")
        with pytest.raises(RequestError, match="drafts nothing"):
            session.set("length_policy", "aimd")


def test_run_says_by_which(capsys: pytest.CaptureFixture[str], tiny_artifact: Path) -> None:
    base = ["run", str(tiny_artifact), "--token-ids", "5,6,7", "--max-tokens", "8"]
    assert cli.main(base) == 0
    text = capsys.readouterr().out
    assert cli.main([*base, "--length-policy", "aimd"]) == 0
    told = capsys.readouterr()
    assert told.out == text
    assert "speculation: ngram, K by aimd, lossless" in told.err


def test_bench_gives_each_an_arm_and_counts_calls(tiny_artifact: Path) -> None:
    asked = [Prompt("a", token_ids=(5, 6, 7, 5, 6, 7), kind="copy")]
    with Artifact.load(tiny_artifact) as artifact:
        manifest = artifact.manifest
        found = measure(artifact, asked, 16, 1, synthetic=(1.0,), policies=["aimd"])
        phases = bench_._phases(artifact, found, asked)
        shown: Any = bench_.payload(manifest, found, phases, ())
    assert list(shown["arms"]) == ["plain", "K=2", "K=4", "adaptive", "aimd"]
    # One function a round, and one return to the engine: a fused round has no more.
    plain = shown["arms"]["plain"]["per_round"]
    assert plain["launches"] == manifest.functions[manifest.round(0).function].calls
    assert [arm["per_round"]["host_syncs"] for arm in shown["arms"].values()] == [1] * 5
    text = bench_.render(manifest, found, phases, ())
    assert "a round makes" in text
    assert "aimd" in text


def test_the_rule_of_thumb_for_drafting(tiny_artifact: Path) -> None:
    manifest = Manifest.read(tiny_artifact)
    cheap = draft_cost(manifest, {"draft_s": 3.0, "verify_s": 10.0, "other_s": 0.0})
    dear = draft_cost(manifest, {"draft_s": 3.1, "verify_s": 10.0, "other_s": 0.0})
    assert cheap == DraftCost(4, 0.3)
    assert cheap.within
    assert dear is not None
    assert not dear.within
    assert draft_cost(manifest, {"draft_s": 1.0, "verify_s": 0.0, "other_s": 0.0}) is None


def test_a_server_shares_drafts_by_weight(tiny_artifact: Path) -> None:
    def say(client: openai.OpenAI, model: str, **extra: object) -> str:
        body = {"ignore_eos": True, **extra}
        answer = client.completions.create(
            model=model, prompt="The quick", max_tokens=12, temperature=0, extra_body=body
        )
        return answer.choices[0].text

    with running(tiny_artifact, "--length-policy", "priority") as server:
        client = server.client()
        texts = {say(client, server.model, draft_weight=weight) for weight in (0.5, 1, 4)}
        assert texts == {say(client, server.model, num_speculative_tokens=0)}
        with pytest.raises(openai.BadRequestError):
            say(client, server.model, draft_weight=0)
    with running(tiny_artifact, "--length-policy", "aimd") as server:
        client = server.client()
        assert {
            say(client, server.model),
            say(client, server.model, num_speculative_tokens=4),
        } == texts
        with pytest.raises(openai.BadRequestError, match="draft_weight"):
            say(client, server.model, draft_weight=2)
