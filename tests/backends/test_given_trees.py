"""Compiled rounds of host drafters whose drafts are trees: the tokens of plain decoding, whole and in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specc.runtime import Artifact
from tests.conftest import compiled
from tests.passes import knowing_drafters
from tests.passes.test_trees import circle
from tests.runtime.test_batch import alone, played

EAGER = {
    "suffix": {"max_spec_factor": 8, "min_token_prob": 0},
    "ngram": {"prompt_lookup_min": 1},
}
TEXT = circle(7, 64)
PROMPT = [*TEXT[:9], *TEXT[2:4], 0, 0, *TEXT[2:4], 1, 1, *TEXT[2:4]]
"""What followed TEXT[2:4] lately is wrong; the third way back is what the target says."""
COUNT = 24


@pytest.fixture(
    scope="module",
    params=[("suffix", "inductor"), ("ngram", "inductor"), ("suffix", "tvm")],
    ids="-".join,
)
def artifacts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Rounds of up to 8 drafts: of any tree, and of chains alone."""
    (method, backend), folder = request.param, tmp_path_factory.mktemp("trees")
    knowing_drafters.target().save_pretrained(folder / "model")
    return {
        name: compiled(
            folder / "model", folder / f"{name}.specc", method, num_speculative_tokens=(0, 2, 8),
            drafter_options=EAGER[method], prefill_chunk=4, max_num_seqs=3, backend=backend, **more,
        )
        for name, more in (("tree", {"tree": 8}), ("chain", {}))
    }  # fmt: skip


def _made(artifact: Path, k: int, **options: Any) -> tuple[list[int], int]:
    """The text, and how many drafts of the first round with any were kept."""
    with Artifact.load(artifact) as engine, engine.session() as session:
        session.configure(ignore_eos=True, max_tokens=COUNT, num_speculative_tokens=k, **options)
        session.append(PROMPT)
        text, first = [], 0
        while len(text) < COUNT:
            text.append(session.next())
            if session.stat("drafts") == 1:
                first = int(session.stat("accepted_tokens"))
        return text, first


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"logprobs": 2},
        {"repetition_penalty": 1.1, "frequency_penalty": 0.1},
        {"temperature": 1.2, "seed": 3},
        {"temperature": 1.2, "seed": 4, "top_p": 0.9},
    ],
)  # fmt: skip
def test_text_is_that_of_plain_decoding(
    artifacts: dict[str, Path], options: dict[str, Any]
) -> None:
    """And it goes on behind a path that was moved, in whole rounds and (logprobs) in pieces."""
    tree = artifacts["tree"]
    plain, _ = _made(tree, 0, **options)
    for k in (2, 8, -1):
        assert _made(tree, k, **options)[0] == plain
    if "temperature" not in options and "repetition_penalty" not in options:
        assert plain == TEXT[4 : 4 + COUNT]
        assert _made(artifacts["chain"], 8, **options) == (plain, 0)
        assert _made(tree, 8, **options)[1] >= 1, "the way that was right is in the tree"


def test_laws_other_than_the_tokens_take_what_they_can(artifacts: dict[str, Path]) -> None:
    """Rejection walks trees, block verification takes chains: the law is tests/runtime/test_acceptance_laws.py's."""
    for rule in ("rejection", "block"):
        text, first = _made(artifacts["tree"], 8, temperature=0.01, acceptance_rule=rule)
        assert text == TEXT[4 : 4 + COUNT]
        assert (first > 0) == (rule == "rejection")


def test_a_mask_is_asked_along_a_chain(artifacts: dict[str, Path]) -> None:
    """Whose drafts the caller sees one after the other; the text stays."""
    asked: list[int] = []

    def everything(tokens: Any, drafts: Any, rows: Any) -> int:
        asked.append(len(drafts))
        for row in rows:
            row[:] = b"\xff" * len(row)
        return len(drafts)

    with Artifact.load(artifacts["tree"]) as engine, engine.session() as session:
        session.configure(ignore_eos=True, max_tokens=COUNT, num_speculative_tokens=8)
        session.set_mask(everything)
        session.append(PROMPT)
        assert [session.next() for _ in range(COUNT)] == TEXT[4 : 4 + COUNT]
    assert max(asked) == 8


def test_several_texts_in_one_pass(artifacts: dict[str, Path]) -> None:
    """Each with a tree of its own, or none; paths are moved to where each text's caches lie."""
    prompts = [PROMPT, [*TEXT[20:28], *TEXT[21:23], 5, 5, *TEXT[21:23]], PROMPT[:-3]]
    with Artifact.load(artifacts["tree"]) as engine:
        for lengths in ((8, 8, 2), (-1, 0, 8)):
            options = [{"num_speculative_tokens": k, "max_tokens": COUNT} for k in lengths]
            with engine.batch() as batch:
                got, stats = played(batch, prompts, options)
            assert got == [circle(prompt[-1], COUNT + 1)[1:] for prompt in prompts]
            assert all(
                (s.accepted_tokens > 0) == (k != 0) for s, k in zip(stats, lengths, strict=True)
            )
        sampled = [{"temperature": 1.2, "seed": seed, "max_tokens": COUNT} for seed in range(3)]
        with engine.batch() as batch:
            got, _ = played(batch, prompts, sampled)
        plain = [{**asked, "num_speculative_tokens": 0} for asked in sampled]
        assert got == [alone(engine, p, **o) for p, o in zip(prompts, plain, strict=True)]
