"""What Python hands to C is what C can hold, and what the model knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specc.errors import RequestError
from specc.runtime import Artifact


def test_numbers_are_not_cut_to_what_c_holds(tiny_artifact: Path) -> None:
    refused = pytest.raises(RequestError, match="SPECC-E0601")
    with refused:
        Artifact.load(tiny_artifact, threads=1 << 33)
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        with refused:
            artifact.use_threads((1 << 32) + 1)
        session.append([5, 6, 7])
        for count in (1 << 64, -1):
            with refused:
                session.rewind(count)
        assert session.next() is not None
        for name in ("max_tokens\0x", "\ud800"):
            with refused:
                session.set(name, 5)
            with refused:
                session.stat(name)


def test_a_temperature_is_0_or_large_enough_to_divide_by(tiny_artifact: Path) -> None:
    """The least draws what is likeliest; below it logits would be infinite, and all alike."""
    with Artifact.load(tiny_artifact) as artifact:
        greedy = artifact.generate([5, 6, 7], max_tokens=12, ignore_eos=True).token_ids
        for rule in ("match", "rejection", "block"):
            told = artifact.generate(
                [5, 6, 7], max_tokens=12, ignore_eos=True, temperature=1e-30, options={"acceptance_rule": rule}
            )  # fmt: skip
            assert told.token_ids == greedy
        for little in (1e-31, 1e-310, float("inf")):
            with pytest.raises(RequestError, match="SPECC-E0601"):
                artifact.generate([5, 6, 7], temperature=little)


def test_stop_tokens_are_the_vocabularys(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        for token in (-1, artifact.manifest.model.vocab_size):
            with pytest.raises(RequestError, match="SPECC-E0602"):
                session.set_stop_tokens([token])


def test_what_a_mask_says_is_a_number(tiny_artifact: Path) -> None:
    nothing: Any = lambda new, drafts, rows: None  # noqa: E731
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        session.set_mask(nothing)
        session.append([5, 6, 7])
        with pytest.raises(TypeError):
            session.next()
