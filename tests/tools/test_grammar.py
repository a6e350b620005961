"""Grammars beside a session: drafts that they forbid are cut, and what is taken back is taken back there too (B28)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specc.errors import RequestError
from specc.grammar import Grammars
from specc.runtime import Artifact
from tests.faults.helpers import PROMPT, half_wrong, oracle, spoken

PATTERN = "([a-f]{3},){8}"


@pytest.fixture(scope="module")
def engine(tiny_artifact: Path) -> Iterator[Artifact]:
    with Artifact.load(tiny_artifact) as opened:
        yield opened


@pytest.fixture(scope="module")
def grammars(engine: Artifact) -> Grammars:
    return Grammars(engine)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_drafts_that_a_grammar_forbids_are_cut(
    engine: Artifact, grammars: Grammars, temperature: float, seed: int
) -> None:
    texts = []
    for k in (0, 4):
        with engine.session() as session:
            session.configure(
                max_tokens=60, num_speculative_tokens=k, temperature=temperature, seed=seed
            )
            session.set_mask(grammars.compile("regex", PATTERN).mask())
            if k:
                session.set_drafter(oracle([*PROMPT, *texts[0]], half_wrong(seed)))
            texts.append(spoken(session, PROMPT))
            assert session.finish_reason == "stop"
            stats = session.stats
    assert texts[0] == texts[1]
    assert re.fullmatch(PATTERN, engine.detokenize(texts[0]))
    assert stats.accepted_tokens > 0
    assert stats.cut_grammar > 0


def test_a_text_taken_back_is_followed_again(engine: Artifact, grammars: Grammars) -> None:
    with engine.session() as session:
        session.configure(max_tokens=60, num_speculative_tokens=4)
        session.set_mask(grammars.compile("regex", PATTERN).mask())
        whole = spoken(session, PROMPT)
        session.rewind(len(PROMPT) + 5)
        assert list(session.iterate()) == whole[5:]
        session.rewind(len(PROMPT))
        assert list(session.iterate()) == whole


@pytest.mark.parametrize(
    ("kind", "source"),
    [("regex", "[a"), ("json", "{"), ("json", {"type": 3}), ("grammar", "root ::= (")],
)  # fmt: skip
def test_what_is_no_grammar_is_refused(grammars: Grammars, kind: str, source: object) -> None:
    with pytest.raises(RequestError, match="SPECC-E0717") as refused:
        grammars.compile(kind, source, "guided_thing")
    assert refused.value.where == "guided_thing"
