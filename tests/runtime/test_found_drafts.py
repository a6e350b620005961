"""A drafter on the host beside one in the graph: the text stays, whoever drafts a round."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

import pytest

from specc.errors import ArtifactError
from specc.runtime import Artifact, Stats, native
from specc.runtime.engine import LIBRARY
from tests.conftest import artifact_of
from tests.faults.helpers import altered, plain

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
    # (An adaptive K may leave the graph's drafter out for good.)
    assert 0 < said.stats.found_drafts < said.stats.drafts + (k == -1)


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


def test_what_is_found_needs_a_verify_of_its_own(
    tiny_model: Path, shared_folder: Path, tmp_path: Path
) -> None:
    """Rounds in one piece, as trees have them, cannot take drafts from outside: neither reader lets them through."""

    def fused(manifest: dict[str, Any]) -> None:
        manifest["drafter"].update(host_drafter="suffix", options={})
        for played in manifest["rounds"]:
            del played["verify"], played["propose"]

    alone = artifact_of("draft_model", tiny_model, shared_folder)
    path = altered(alone, tmp_path / "fused.specc", fused)
    with pytest.raises(ArtifactError, match="SPECC-E0502") as refused:
        Artifact.load(path)
    assert "verify" in refused.value.expected
    library, handle = native.load_library(path / LIBRARY), c_void_p()
    result = library.specc_artifact_load(str(path).encode(), 1, byref(handle))
    with pytest.raises(ArtifactError, match="SPECC-E0502") as refused:
        native.check(library, result)
    assert "verify" in refused.value.expected
