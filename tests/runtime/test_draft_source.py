"""Who drafts may change between rounds, and the text does not: the graph, a drafter on the host, the caller's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specc.errors import RequestError
from specc.runtime import Artifact
from tests.conftest import artifact_of
from tests.faults.helpers import altered, oracle, plain

PROMPT = [7, 21, 40, 99, 150, 7, 21, 40, 99, 150, 7, 21]


@pytest.fixture(scope="module", params=["draft_model", "layerskip"])
def graph(
    request: pytest.FixtureRequest, tiny_model: Path, shared_folder: Path
) -> Iterator[Artifact]:
    """An artifact whose graph drafts."""
    with Artifact.load(artifact_of(request.param, tiny_model, shared_folder)) as opened:
        yield opened


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("k", [-1, 2, 4])
def test_the_callers_alone(graph: Artifact, k: int, temperature: float) -> None:
    """Half of what it says is wrong; the graph is never asked."""
    sampled: dict[str, Any] = {"temperature": temperature, "seed": 3}
    told = plain(graph, PROMPT, 81, **sampled)
    with graph.session() as session:
        session.configure(
            max_tokens=80, ignore_eos=True, num_speculative_tokens=k, draft_source="host", **sampled
        )
        session.set_drafter(oracle([*PROMPT, *told], lambda place: place % 3 == 0))
        session.append(PROMPT)
        assert tuple(session.iterate()) == told[:80]
        counted = session.stats
    assert counted.found_drafts == counted.drafts
    assert counted.accepted_tokens > 0 or k < 0  # (what does not pay here may be left out)


def test_it_changes_between_rounds(graph: Artifact) -> None:
    told = plain(graph, PROMPT, 101)
    asked = 0

    def draft(committed: list[int], k: int) -> list[int]:
        nonlocal asked
        asked += 1
        return [*PROMPT, *told][len(committed) : len(committed) + k]

    with graph.session() as session:
        session.configure(max_tokens=100, ignore_eos=True, num_speculative_tokens=4)
        session.set_drafter(draft)
        session.append(PROMPT)
        for place in range(100):
            session.set("draft_source", ("graph", "host", "any")[place // 7 % 3])
            session.set("num_speculative_tokens", 0 if place % 5 == 4 else 4)
            assert session.next() == told[place]
        assert asked == 0 or session.stats.drafts > 0
        assert asked >= session.stats.found_drafts > 0


def test_the_graph_alone(graph: Artifact) -> None:
    asked: list[int] = []
    with graph.session() as session:
        session.configure(
            max_tokens=60, ignore_eos=True, num_speculative_tokens=2, draft_source="graph"
        )
        session.set_drafter(lambda committed, k: asked.append(k) or [1])
        session.append(PROMPT)
        assert tuple(session.iterate()) == plain(graph, PROMPT, 60)
        assert (asked, session.stats.found_drafts) == ([], 0)
        assert session.stats.drafts > 0


def test_a_caller_who_says_nothing(graph: Artifact) -> None:
    """Alone, its rounds are plain; beside the graph, they are the graph's."""
    for source, drafts in (("host", False), ("any", True)):
        with graph.session() as session:
            session.configure(max_tokens=40, ignore_eos=True, num_speculative_tokens=2)
            session.set("draft_source", source)
            session.set_drafter(lambda committed, k: [])
            session.append(PROMPT)
            assert tuple(session.iterate()) == plain(graph, PROMPT, 40)
            assert (session.stats.drafts > 0) == drafts


def test_the_artifacts_own_on_the_host(
    tiny_model: Path, shared_folder: Path, tmp_path: Path
) -> None:
    eager = {"max_spec_factor": 8, "min_token_prob": 0, "max_tree_depth": 24}
    change = {"host_drafter": "suffix", "options": eager}
    alone = artifact_of("draft_model", tiny_model, shared_folder)
    place = altered(alone, tmp_path / "a.specc", lambda m: m["drafter"].update(change))
    with Artifact.load(place) as opened:
        said = opened.generate(
            PROMPT, max_tokens=80, ignore_eos=True, num_speculative_tokens=4,
            options={"draft_source": "host"},
        )  # fmt: skip
        assert said.token_ids == plain(opened, PROMPT, 80)
    assert 0 < said.stats.found_drafts == said.stats.drafts


def test_what_is_refused(tiny_artifact: Path, graph: Artifact, tmp_path: Path) -> None:
    with Artifact.load(tiny_artifact) as opened, opened.session() as session:
        for value in ("graph", "nobody"):
            with pytest.raises(RequestError, match="SPECC-E0601"):
                session.set("draft_source", value)
        session.set("draft_source", "host")  # as it is

    def fused(manifest: dict[str, Any]) -> None:
        for played in manifest["rounds"]:
            del played["verify"], played["propose"]

    whole = altered(Path(graph.path), tmp_path / "fused.specc", fused)
    with Artifact.load(whole) as opened, opened.session() as session:
        with pytest.raises(RequestError, match="SPECC-E0601"):
            session.set_drafter(lambda committed, k: [])
        with pytest.raises(RequestError, match="SPECC-E0601"):
            session.set("draft_source", "host")
