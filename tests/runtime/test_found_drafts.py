"""A drafter on the host beside one in the graph: the text stays, whoever drafts a round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specc.runtime import Artifact, Stats
from tests.faults.helpers import altered, artifact_of, plain

PROMPT = [7, 21, 40, 99, 150, 7, 21, 40, 99, 150, 7, 21]
METHODS = ("draft_model", "layerskip", "eagle:adaptive")


@pytest.fixture(scope="module", params=METHODS)
def both(
    request: pytest.FixtureRequest, tiny_model: Path, shared_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Artifact]:  # fmt: skip
    """An artifact whose graph drafts, which is told of a suffix drafter too: that takes no other code.

    It proposes as soon as a token has occurred before: a random model repeats little more.
    """
    alone = artifact_of(request.param, tiny_model, shared_folder)
    place = tmp_path_factory.mktemp("both") / "a.specc"
    eager = {"max_spec_factor": 8, "min_token_prob": 0, "max_tree_depth": 24}
    change = {"host_drafter": "suffix", "options": eager}
    with Artifact.load(altered(alone, place, lambda m: m["drafter"].update(change))) as opened:
        yield opened


@pytest.mark.parametrize("temperature", [0.0, 0.4])
@pytest.mark.parametrize("k", [-1, 2, 4])
def test_the_text_stays(both: Artifact, k: int, temperature: float) -> None:
    asked = {"ignore_eos": True, "max_tokens": 150, "temperature": temperature, "seed": 5}
    told = plain(both, PROMPT, 150, temperature=temperature, seed=5)
    said = both.generate(PROMPT, num_speculative_tokens=k, **asked)
    assert said.token_ids == told
    assert 0 < said.stats.found_drafts < said.stats.drafts


def test_with_processors_too(both: Artifact) -> None:
    """Few tokens are left to choose from, so the text repeats itself; tokens are chosen by the engine."""
    banned = list(range(6, both.manifest.model.vocab_size))

    def said(k: int) -> tuple[list[int], Stats]:
        with both.session() as session:
            session.configure(
                num_speculative_tokens=k, ignore_eos=True, max_tokens=120, repetition_penalty=1.3,
                banned_token_ids=banned,
            )  # fmt: skip
            session.append(PROMPT)
            return list(session.iterate()), session.stats

    told, stats = said(-1)
    assert told == said(0)[0]
    assert stats.found_drafts > 0
    assert stats.accepted_tokens > 0


def test_rewound_and_appended(both: Artifact) -> None:
    """Rounds of either kind leave the state as the other expects it."""
    with both.session() as session:
        session.configure(ignore_eos=True, max_tokens=60)
        session.append(PROMPT)
        first = list(session.iterate())
        session.rewind(len(PROMPT) + 31)
        session.append([5, 6, 7])
        again = list(session.iterate())
    assert tuple(first) == plain(both, PROMPT, 60)
    assert tuple(again) == plain(both, [*PROMPT, *first[:31], 5, 6, 7], 60)


def test_without_speculation_nothing_is_found(both: Artifact) -> None:
    said = both.generate(PROMPT, ignore_eos=True, max_tokens=40, num_speculative_tokens=0)
    assert (said.stats.drafts, said.stats.found_drafts) == (0, 0)
