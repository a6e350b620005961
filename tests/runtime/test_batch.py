"""Compiled artifacts for several texts: each says what it says alone, bit for bit, whatever its neighbours do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specc.errors import RequestError
from specc.runtime import Artifact, Batch, Session, Stats
from tests.conftest import BATCH_LENGTH as LENGTH
from tests.conftest import BATCH_TEXTS as TEXTS
from tests.conftest import batch_of, greedy
from tests.faults.helpers import altered

IN_GRAPH = ("eagle:adaptive", "draft_model")


@pytest.fixture(scope="module")
def ngram(tiny_batch: Path) -> Iterator[Artifact]:
    with Artifact.load(tiny_batch, threads=1) as artifact:
        yield artifact


@pytest.fixture(scope="module", params=IN_GRAPH)
def in_graph(
    request: pytest.FixtureRequest, tiny_model: Path, shared_folder: Path
) -> Iterator[Artifact]:
    """Drafters that read what the last pass left, and that have caches of their own."""
    path = batch_of(request.param, tiny_model, shared_folder)
    with Artifact.load(path, threads=1) as artifact:
        yield artifact


def alone(artifact: Artifact, prompt: Sequence[int], **options: Any) -> list[int]:
    with artifact.session() as session:
        session.configure(ignore_eos=True, **options)
        session.append(prompt)
        return list(session.iterate())


def read(session: Session, got: list[int]) -> bool:
    """Whether it goes on, after all that a step gave."""
    got += session.round()
    assert len(got) == session.stat("new_tokens")
    return not session.finish_reason


def together(
    batch: Batch, prompts: Sequence[Sequence[int]], options: Sequence[dict[str, Any]]
) -> list[list[int]]:
    """What each says, played in passes of all that have not ended."""
    return played(batch, prompts, options)[0]


def played(
    batch: Batch, prompts: Sequence[Sequence[int]], options: Sequence[dict[str, Any]]
) -> tuple[list[list[int]], list[Stats]]:
    """As `together`, and what was counted."""
    sessions = [batch.session() for _ in prompts]
    made: list[list[int]] = [[] for _ in prompts]
    for session, prompt, chosen in zip(sessions, prompts, options, strict=True):
        session.configure(ignore_eos=True, **chosen)
        session.append(prompt)
    running = list(zip(sessions, made, strict=True))
    while running:
        batch.step([session for session, _ in running])
        running = [(session, got) for session, got in running if read(session, got)]
    stats = [session.stats for session in sessions]
    for session in sessions:
        session.close()
    return made, stats


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.1, "seed": 5},
    {"repetition_penalty": 1.3, "logprobs": 2},
    {"num_speculative_tokens": 4, "temperature": 0.7, "top_p": 0.9, "acceptance_rule": "rejection"},
    {"num_speculative_tokens": 2, "length_policy": "adaptive", "min_p": 0.1, "temperature": 1.0},
    {"num_speculative_tokens": 0},
]  # fmt: skip
ASK = st.tuples(
    st.lists(st.integers(5, 12), min_size=1, max_size=20), st.sampled_from(OPTIONS), st.integers(1, 24)
)  # fmt: skip


def test_plain_decoding_of_transformers(ngram: Artifact, tiny_model: Path) -> None:
    prompts = [[5, 6, 7, 5, 6, 7, 5], [9, 10, 11, 12] * 4, [20]]
    with ngram.batch() as batch:
        got = together(batch, prompts, [{"max_tokens": 20}] * 3)
        passes = batch.passes
    assert got == [greedy(tiny_model, prompt, 20) for prompt in prompts]
    assert passes.texts > passes.passes


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=st.lists(ASK, min_size=1, max_size=TEXTS))
def test_texts_of_other_requests(
    ngram: Artifact, asked: list[tuple[list[int], dict[str, Any], int]]
) -> None:
    each_as_alone(ngram, asked)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=st.lists(ASK, min_size=1, max_size=TEXTS))
def test_and_of_drafters_in_the_graph(
    in_graph: Artifact, asked: list[tuple[list[int], dict[str, Any], int]]
) -> None:
    each_as_alone(in_graph, asked)


def each_as_alone(artifact: Artifact, asked: list[tuple[list[int], dict[str, Any], int]]) -> None:
    options = [{**chosen, "max_tokens": count} for _, chosen, count in asked]
    prompts = [prompt for prompt, _, _ in asked]
    with artifact.batch() as batch:
        got = together(batch, prompts, options)
    assert got == [alone(artifact, p, **o) for p, o in zip(prompts, options, strict=True)]


def test_drafters_in_the_graph(in_graph: Artifact) -> None:
    prompts = [
        [5, 6, 7, 5, 6, 7, 5],
        [9, 10, 11, 12] * 4,
        [20],
        [7] * 55,
    ]  # the last fills its context
    options: list[dict[str, Any]] = [
        {"num_speculative_tokens": 4, "max_tokens": 24}, {"max_tokens": 30},
        {"num_speculative_tokens": 2, "max_tokens": 9, "temperature": 1.0, "acceptance_rule": "rejection"},
        {"num_speculative_tokens": 4, "temperature": 1.0},
    ]  # fmt: skip
    with in_graph.batch() as batch:
        got = together(batch, prompts, options)
        assert got == [alone(in_graph, p, **o) for p, o in zip(prompts, options, strict=True)]
        assert batch.passes.rows > batch.passes.texts


def test_a_host_drafter_beside_one_in_the_graph(
    in_graph: Artifact, tiny_model: Path, shared_folder: Path, tmp_path: Path
) -> None:
    """It takes no other code, so the manifest is told of it; it proposes as soon as a token has occurred before."""
    alone_in_it = batch_of(in_graph.manifest.method, tiny_model, shared_folder)
    eager = {"max_spec_factor": 8, "min_token_prob": 0, "max_tree_depth": 24}
    change = {"host_drafter": "suffix", "options": eager}
    path = altered(alone_in_it, tmp_path / "both.specc", lambda m: m["drafter"].update(change))
    prompts = [[7, 21, 40, 99, 150, 7, 21, 40, 99, 150, 7, 21], [9, 10] * 6, [20, 21] * 4]
    options: list[dict[str, Any]] = [
        {"num_speculative_tokens": 4, "max_tokens": 48}, {"max_tokens": 48},
        {"num_speculative_tokens": 2, "max_tokens": 48, "temperature": 0.4, "seed": 5},
    ]  # fmt: skip
    with Artifact.load(path, threads=1) as artifact, artifact.batch() as batch:
        got, stats = played(batch, prompts, options)
    plain = [{**chosen, "num_speculative_tokens": 0} for chosen in options]
    assert got == [alone(in_graph, p, **o) for p, o in zip(prompts, plain, strict=True)]
    assert sum(s.found_drafts for s in stats) > 0
    assert sum(s.found_drafts for s in stats) < sum(s.drafts for s in stats), "nor does it alone"


class _Turns:
    """Texts that come, go on, are cut, stopped and left; what each says is held against a session alone."""

    def __init__(self, artifact: Artifact, batch: Batch) -> None:
        self.batch, self.alone = batch, artifact.session()
        self.texts: dict[Session, tuple[list[int], dict[str, Any]]] = {}

    def join(self, ask: tuple[list[int], dict[str, Any], int]) -> None:
        if len(self.texts) == TEXTS:
            with pytest.raises(RequestError, match="SPECC-E0607"):
                self.batch.session()
            return
        prompt, options, count = ask
        # Tokens of p/q follow from where its rounds begin, which turns move.
        options = {k: v for k, v in options.items() if k != "acceptance_rule"}
        session = self.batch.session()
        session.configure(ignore_eos=True, max_tokens=count, **options)
        session.append(prompt)
        self.texts[session] = (list(prompt), options)

    def told(self, session: Session) -> None:
        text, options = self.texts[session]
        token = session.next()
        if token is not None:
            assert [token] == alone_after(self.alone, text, options)
            text.append(token)


def alone_after(session: Session, text: list[int], options: dict[str, Any]) -> list[int]:
    """The token after `text`, whose penalties are counted from the prompt on: none is generated yet."""
    session.rewind(0)
    plain = {"temperature": 0.0, "seed": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    session.configure(**{**plain, **options, "max_tokens": 1, "ignore_eos": True})
    session.append(text)
    return list(session.iterate())


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    turns=st.lists(
        st.one_of(
            st.tuples(st.just("join"), ASK),
            st.tuples(st.sampled_from(["leave", "cancel", "rewind", "append", "alone"]), st.integers(0, 99)),
            st.tuples(st.just("step"), st.integers(0, 2**TEXTS - 1)),
        ), min_size=10, max_size=30,
    )
)  # fmt: skip
def test_texts_that_come_and_go(ngram: Artifact, turns: list[tuple[str, Any]]) -> None:
    """Rows that are taken again are full of another text: nothing of it is read."""
    with ngram.batch() as batch:
        state = _Turns(ngram, batch)
        for what, value in turns:
            sessions = list(state.texts)
            if what == "join":
                state.join(value)
            elif what == "step":
                some = [s for i, s in enumerate(sessions) if value >> i & 1]
                batch.step(some)
                for session in some:
                    state.told(session)
            elif sessions:
                session = sessions[value % len(sessions)]
                text, _ = state.texts[session]
                if what == "leave":
                    del state.texts[session]
                    session.close()
                elif what == "cancel":
                    session.cancel()
                    assert session.next() is None
                    assert session.finish_reason == "cancelled"
                elif what == "rewind":
                    del text[1 + value % len(text) :]
                    session.rewind(len(text))
                elif what == "append" and len(text) + 3 <= LENGTH:
                    session.append([value % 9 + 5] * 3)
                    text += [value % 9 + 5] * 3
                elif what == "alone":
                    state.told(session)
        for session in [*state.texts, state.alone]:
            session.close()


def test_a_failure_is_its_own(ngram: Artifact) -> None:
    def broken(committed: list[int], k: int) -> list[int]:
        raise ZeroDivisionError

    with ngram.batch() as batch, batch.session() as bad, batch.session() as good:
        for session in (bad, good):
            session.configure(max_tokens=8, ignore_eos=True, num_speculative_tokens=2)
            session.append([5, 6, 7])
        bad.set_mask(lambda new, drafts, rows: 1 // 0)
        got: list[int] = []
        batch.step([bad, good])
        with pytest.raises(ZeroDivisionError):
            bad.next()
        while read(good, got):
            batch.step([good])
        assert got == alone(ngram, [5, 6, 7], max_tokens=8)
        bad.set_mask(None)
        assert list(bad.iterate()) == got


def test_what_is_refused(ngram: Artifact, tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as single, pytest.raises(RequestError) as refused:
        single.batch()
    assert refused.value.code == "SPECC-E0601"
    assert "--max-num-seqs" in refused.value.cure
    with pytest.raises(RequestError, match="SPECC-E0601"):
        ngram.batch(TEXTS + 1)
    with ngram.batch(2) as batch, batch.session() as session, ngram.session() as other:
        for several in ([session, session], [other]):
            with pytest.raises(RequestError, match="SPECC-E0601"):
                batch.step(several)
        batch.step([session])
        with pytest.raises(RequestError, match="SPECC-E0607"):
            session.next()
    with pytest.raises(RequestError, match="SPECC-E0607"):
        batch.session()


def test_logits_have_the_bits_of_a_text_alone(ngram: Artifact) -> None:
    """`score` of three ragged texts against `verify_K` of each, on one state."""
    words = list(range(5, 40))
    whole: dict[str, list[int]] = {"tokens": [], "positions": [], "rows": []}
    want = []
    with ngram.session() as session:

        def rows(text: int, begin: int, end: int) -> dict[str, list[int]]:
            at = list(range(begin, end))
            here = [i + text * LENGTH for i in at]
            return {"tokens": words[begin:end], "positions": at, "rows": here}

        for text, n, k in ((0, 6, 2), (2, 3, 0), (3, 7, 4)):  # n tokens, k drafts
            session.run("prefill", rows(text, 0, n))
            block = rows(text, n, n + k + 1)
            want.append(session.run(f"verify_{k}", block).tobytes())
            whole = {name: whole[name] + block[name] for name in whole}
        assert session.run("score", whole).tobytes() == b"".join(want)
