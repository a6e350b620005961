"""Turns, counts and ends on a real artifact, without HTTP. All is told on the worker's thread, one after another."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specc.errors import RequestError
from specc.runtime import Artifact
from specc.serve.metrics import Metrics
from specc.serve.scheduler import Event, Job, Scheduler
from specc.serve.slots import Ask, Progress, SessionSlot, SessionSlots

PROMPT = (7, 21, 40, 7, 21, 99, 150, 7, 21)
LOOPS = ((201,) * 6, (300, 185) * 4, (233,) * 6)
"""The model goes round in circles after these, so that drafts are right now and then."""


class Watched(SessionSlots):
    """Keeps what it opened."""

    def __init__(self, artifact: Artifact, capacity: int) -> None:
        super().__init__(artifact, capacity)
        self.opened: list[SessionSlot] = []

    def open(self, ask: Ask) -> SessionSlot:
        self.opened.append(super().open(ask))
        return self.opened[-1]


class Stage:
    """A scheduler, its counters and what was told, in order."""

    def __init__(
        self, artifact: Artifact, capacity: int, waiting: int, kind: type[Any] = Watched
    ) -> None:
        self.artifact = artifact
        self.told: list[tuple[Job, Event]] = []
        self.slots = kind(artifact, capacity)
        self.metrics = Metrics(artifact.manifest, "m", "specc:")
        self._over = threading.Semaphore(0)
        self.scheduler = Scheduler(self.slots, self, waiting)

    def turned(self, job: Job, progress: Progress, seen: int) -> None:
        self.metrics.turned(job, progress, seen)

    def ended(self, job: Job) -> None:
        try:
            self.metrics.ended(job)
        finally:
            self._over.release()

    def job(
        self, hear: Callable[[Job, Event], object] | None = None, *, prompt: tuple[int, ...] = PROMPT,
        stops: tuple[str, ...] = (), timeout: float = 0, **options: Any,
    ) -> Job:  # fmt: skip
        def deliver(event: Event) -> None:
            self.told.append((job, event))
            if hear is not None:
                hear(job, event)

        asked = {"max_tokens": 30, "ignore_eos": True, **options}
        job = Job(Ask(prompt, **asked), self.artifact.detokenize, stops, deliver, timeout)
        return job

    def play(self, *jobs: Job) -> None:
        """Until all have ended."""
        self.scheduler.submit(jobs)
        self.wait(len(jobs))

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self._over.acquire(timeout=120)

    def counts(self, name: str) -> dict[str, float]:
        """Of a metric, by its second label."""
        page = self.metrics.page().decode()
        found = re.findall(rf"^specc:{name}{{(.*)}} (\S+)$", page, re.M)
        assert found, name
        labels = [dict(re.findall(r'(\w+)="(.*?)"', text)) for text, _ in found]
        assert all(label.pop("model_name") == "m" for label in labels)
        return {
            "".join(label.values()): float(v) for label, (_, v) in zip(labels, found, strict=True)
        }

    def count(self, name: str) -> float:
        return sum(self.counts(name).values())


@pytest.fixture
def stage(artifact: Artifact) -> Iterator[Callable[..., Any]]:
    """Makes a stage; ends it at the end of the test."""
    made: list[Stage] = []

    def make(capacity: int = 2, waiting: int = 50) -> Stage:
        made.append(Stage(artifact, capacity, waiting))
        return made[-1]

    yield make
    for one in made:
        one.scheduler.stop()


Make = Callable[..., Stage]


def test_texts_take_turns(stage: Make) -> None:
    on = stage(capacity=2)
    jobs = [on.job(num_speculative_tokens=0) for _ in range(2)]
    on.play(*jobs)
    order = [jobs.index(job) for job, _ in on.told]
    assert order == [0, 1] * 30


def test_a_long_prompt_keeps_nobody_waiting(stage: Make, artifact: Artifact) -> None:
    """One chunk of it is fed between two rounds of another text."""
    chunk = artifact.manifest.model.prefill_chunk
    on = stage(capacity=2)
    short = on.job(num_speculative_tokens=0, prompt=(5,))
    long = on.job(num_speculative_tokens=0, prompt=PROMPT * (3 * chunk // len(PROMPT)))
    on.play(short, long)
    before = [job for job, _ in on.told].index(long)
    assert before >= len(long.ask.prompt_ids) // chunk
    alone = artifact.generate(long.ask.prompt_ids, max_tokens=30, ignore_eos=True)
    assert tuple(long.token_ids) == alone.token_ids


def test_in_order_of_arrival_and_no_more_than_fit(stage: Make) -> None:
    on = stage(capacity=2, waiting=4)
    seen = []
    jobs = [
        on.job(lambda job, _: seen.append(on.scheduler.running), max_tokens=n)
        for n in (9, 3, 5, 5, 5)
    ]
    on.play(*jobs)
    assert max(seen) <= 2
    assert [job.admitted for job in jobs] == sorted(job.admitted or 0 for job in jobs)
    with pytest.raises(RequestError, match="SPECC-E0709"):
        on.scheduler.submit([on.job() for _ in range(7)])
    assert (on.scheduler.waiting, on.scheduler.running) == (0, 0)


@pytest.mark.parametrize("heard", [1, 3])
def test_a_cancelled_text_is_heard_no_more_and_its_state_is_freed(stage: Make, heard: int) -> None:
    on = stage(capacity=2)

    def hear(job: Job, _: Event) -> None:
        if len(job.token_ids) >= heard:
            on.scheduler.cancel([job, waiting])

    cancelled, other = on.job(hear, num_speculative_tokens=0), on.job(num_speculative_tokens=0)
    waiting = on.job()
    on.play(cancelled, other, waiting)
    assert len(cancelled.token_ids) == heard
    assert [j.reason for j in (cancelled, other, waiting)] == ["cancelled", "length", "cancelled"]
    assert waiting.admitted is None
    assert len(on.slots.opened) == 2
    for slot in on.slots.opened:
        with pytest.raises(RequestError, match="the session is closed"):
            slot.turn()
    assert on.counts("request_end_total")["cancelled"] == 2


def test_too_late(stage: Make) -> None:
    on = stage(capacity=1)
    first = on.job(num_speculative_tokens=0, timeout=1e-9)
    second = on.job(timeout=30)
    on.play(first, second)
    assert (first.reason, second.reason) == ("timeout", "length")
    (event,) = (event for job, event in on.told if job is first)
    assert event.error is not None
    assert event.error.code == "SPECC-E0711"


def test_what_fails_does_not_touch_the_others(stage: Make, artifact: Artifact) -> None:
    """Options and prompts that slipped through are refused by the engine, to their own text alone."""
    on = stage(capacity=4)
    vocabulary = artifact.manifest.model.vocab_size
    bad = [
        on.job(num_speculative_tokens=3),
        on.job(prompt=(vocabulary,)),
        on.job(prompt=(5,) * 300),
    ]
    good = on.job(seed=3, temperature=1.0)
    on.play(*bad, good)
    codes = {e.error.code for j, e in on.told if e.error is not None and j in bad}
    assert codes == {"SPECC-E0601", "SPECC-E0602", "SPECC-E0603"}
    assert [job.reason for job in bad] == ["error"] * 3
    alone = artifact.generate(PROMPT, max_tokens=30, ignore_eos=True, seed=3, temperature=1.0)
    assert tuple(good.token_ids) == alone.token_ids
    assert on.scheduler.alive


class _Broken:
    """A grammar whose mask fails in a way that nobody foresaw."""

    def mask(self) -> Callable[..., int]:
        def call(*_: object) -> int:
            raise ZeroDivisionError("a fault of our own")

        return call


@pytest.mark.parametrize("where", ["grammar", "read", "turned", "ended", "deliver"])
def test_a_fault_in_one_text_ends_that_alone(
    stage: Make, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    on = stage(capacity=2)

    def fail(job: Job, *_: object) -> None:
        if job is bad:
            raise ZeroDivisionError("a fault of our own")

    grammar = {"grammar": _Broken()} if where == "grammar" else {}
    bad = on.job(fail if where == "deliver" else None, **grammar)
    good = on.job()
    if where == "read":
        monkeypatch.setattr(bad, "read", lambda progress: fail(bad))
    elif where == "turned":
        counted = on.metrics.turned
        monkeypatch.setattr(on.metrics, "turned", lambda *a: (fail(*a), counted(*a)))
    elif where == "ended":
        ended = on.metrics.ended
        monkeypatch.setattr(on.metrics, "ended", lambda job: (fail(job), ended(job)))
    on.play(bad, good)
    assert on.scheduler.alive
    assert (good.reason, len(good.token_ids)) == ("length", 30)
    assert bad.reason == ("length" if where == "ended" else "error")
    codes = [e.error.code for job, e in on.told if e.error is not None and job is bad]
    assert set(codes) == (set() if where == "ended" else {"SPECC-E0100"})
    assert on.scheduler.running == 0


def test_whoever_waits_is_told_when_the_worker_ends(
    stage: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = stage(capacity=1)
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda about: died.append(about.exc_value))

    def turn(slots: object) -> object:
        raise ZeroDivisionError("a fault of our own")

    monkeypatch.setattr(on.slots, "turn", turn)
    jobs = [on.job(), on.job()]
    on.play(*jobs)
    assert [e.error.code for _, e in on.told if e.error is not None] == ["SPECC-E0100"] * 2
    on.scheduler.stop()
    assert not on.scheduler.alive
    assert [type(e) for e in died] == [ZeroDivisionError]
    with pytest.raises(RequestError, match="SPECC-E0710"):
        on.scheduler.submit([on.job()])


@pytest.mark.parametrize("k", [2, 4])
def test_counts_are_those_of_the_engine(stage: Make, artifact: Artifact, k: int) -> None:
    """By the statistics of plain `generate` over the same requests; the rest follows from what a round gives."""
    on = stage(capacity=3)
    asked = [(prompt, n) for prompt in LOOPS for n in (1, 15, 22, 31, 60)]
    on.play(*(on.job(prompt=p, max_tokens=n, num_speculative_tokens=k) for p, n in asked))
    alone = [
        artifact.generate(p, max_tokens=n, num_speculative_tokens=k, ignore_eos=True).stats
        for p, n in asked
    ]
    drafted = sum(s.draft_tokens for s in alone)
    accepted = sum(s.accepted_tokens for s in alone)
    assert drafted > accepted > 0
    assert on.count("spec_decode_num_drafts_total") == sum(s.drafts for s in alone)
    assert on.count("spec_decode_num_draft_tokens_total") == drafted
    assert on.count("spec_decode_num_accepted_tokens_total") == accepted
    by_position = on.counts("spec_decode_num_accepted_tokens_per_pos_total")
    for place in range(4):
        expected = sum(s.by_position[place].accepted for s in alone)
        assert by_position[str(place)] == expected
    assert on.count("speculative_accept_rate") == pytest.approx(accepted / drafted)
    assert on.count("rounds_total") == sum(s.rounds for s in alone)
    assert on.count("fallback_rounds_total") == sum(s.rounds - s.drafts for s in alone)
    assert on.counts("fallback_rounds_total")["length"] >= 1
    assert on.count("generation_tokens_total") == sum(n for _, n in asked)
    assert on.count("prompt_tokens_total") == sum(len(p) for p, _ in asked)
    rejected = on.counts("speculative_rejection_cause_total")
    assert rejected["mismatch"] == drafted - accepted
    assert on.counts("request_success_total")["length"] == len(asked)
    assert on.count("time_to_first_token_seconds_count") == len(asked)
    phases = on.counts("phase_seconds_total")
    assert phases["prefill"] > 0
    assert phases["round"] > 0


def test_accepted_drafts_after_the_end_count_as_rejected(stage: Make, artifact: Artifact) -> None:
    """A round gives what was accepted and one more; what lies after a stop string came to nothing."""
    on = stage()
    options: dict[str, Any] = {"max_tokens": 60, "num_speculative_tokens": 4}
    whole = artifact.generate(LOOPS[0], ignore_eos=True, **options).token_ids
    stops = [artifact.detokenize(whole[:end]) for end in range(1, 60)]
    jobs = [on.job(prompt=LOOPS[0], stops=(stop,), **options) for stop in stops]
    on.play(*jobs[:50])
    on.play(*jobs[50:])
    cut = [
        job.stats.rounds + job.stats.accepted_tokens - len(job.token_ids) - 1
        for job in jobs if job.stats is not None and job.reason == "stop"
    ]  # fmt: skip
    rejected = on.counts("speculative_rejection_cause_total")
    assert rejected["stop"] == sum(c for c in cut if c > 0) > 0


def test_plain_rounds_say_why(stage: Make, artifact: Artifact) -> None:
    on = stage()
    on.play(on.job(num_speculative_tokens=0, max_tokens=5))
    assert on.counts("fallback_rounds_total")["disabled"] == 5
    full = (5, 6, 7) * 85  # one less than fits: a round would have no room for drafts
    on.play(on.job(prompt=full, max_tokens=5, num_speculative_tokens=2))
    assert on.counts("fallback_rounds_total")["context"] == 1
    assert on.counts("request_end_total")["context"] == 1
    assert artifact.manifest.model.max_model_len == 256


@pytest.mark.parametrize("k", [0, 2, 4])
def test_stop_tokens_and_stop_strings(stage: Make, artifact: Artifact, k: int) -> None:
    on = stage()
    options = {"num_speculative_tokens": k, "max_tokens": 30}
    whole = artifact.generate(PROMPT, ignore_eos=True, **options).token_ids
    place = max(whole.index(token) for token in set(whole))
    by_token = on.job(stop_token_ids=(whole[place],), **options)
    text = artifact.detokenize(whole)
    by_string = on.job(stops=(text[12:16],), **options)
    on.play(by_token, by_string)
    assert tuple(by_token.token_ids) == whole[:place]
    assert (by_token.reason, by_string.reason) == ("stop", "stop")
    shown = "".join(event.text for job, event in on.told if job is by_string)
    assert shown == text[: text.find(text[12:16])]
    assert on.count("generation_tokens_total") == place + len(by_string.token_ids)
