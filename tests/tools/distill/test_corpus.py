"""A corpus is what the target says, to questions that it made up."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from specc.distill.corpus import SEEDS, Sample, write
from specc.runtime import Artifact
from specc.templates import ChatTemplate


@pytest.fixture(scope="module")
def samples(tiny_artifact: Path) -> list[Sample]:
    with Artifact.load(tiny_artifact) as artifact:
        return list(islice(write(artifact, seed=3, answer_tokens=24), 12))


def test_answers_are_the_targets_own(tiny_artifact: Path, samples: list[Sample]) -> None:
    """Plain decoding of the prompt by itself, no drafts and no state of before: two of three answers are greedy."""
    greedy = 0
    with Artifact.load(tiny_artifact) as artifact:
        for sample in samples:
            with artifact.session() as session:
                session.configure(num_speculative_tokens=0, max_tokens=24)
                session.append(sample.prompt)
                greedy += list(session.iterate()) == sample.ids
    assert 3 <= greedy < len(samples)


def test_a_prompt_is_one_turn_of_the_template(tiny_artifact: Path, samples: list[Sample]) -> None:
    template = ChatTemplate.of_artifact(tiny_artifact)
    with Artifact.load(tiny_artifact) as artifact:
        for sample in samples:
            text = artifact.detokenize(sample.prompt, skip_special=False)
            empty = template.render([{"role": "user", "content": ""}])
            assert text.endswith(template.render([{"role": "user", "content": "x"}])[-8:])
            assert len(text) > len(empty)
            assert sample.kind in SEEDS


def test_a_seed_says_it_all(tiny_artifact: Path, samples: list[Sample]) -> None:
    with Artifact.load(tiny_artifact) as artifact:
        assert list(islice(write(artifact, seed=3, answer_tokens=24), 4)) == samples[:4]
        assert list(islice(write(artifact, seed=4, answer_tokens=24), 4)) != samples[:4]
