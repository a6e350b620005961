"""Whose turn it is: one worker thread that lets the texts in, gives each a turn and tells what came of it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from specc.errors import RequestError, SpeccError
from specc.runtime import Logprobs, Stats
from specc.serve.slots import Ask, Progress, Slot, Slots
from specc.streaming import StopStrings, TextStream

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """Text that became sure, and the tokens since the last event, with `logprobs` if asked for.

    `prompt_logprobs`, if those were asked for, are in the first event, before any token.
    The last event of a job has `finish` (stop, length, context) or `error`.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish: str = ""
    logprobs: tuple[Logprobs, ...] = ()
    prompt_logprobs: tuple[Logprobs | None, ...] = ()
    error: SpeccError | None = None


class Job:
    """One text to make, from its arrival to its end. The scheduler's thread alone writes to it."""

    def __init__(
        self, ask: Ask, detokenize: Callable[[Sequence[int]], str], stops: Sequence[str],
        deliver: Callable[[Event], None], timeout: float = 0,
    ) -> None:  # fmt: skip
        self.ask, self.deliver = ask, deliver
        self._stream, self._stops = TextStream(detokenize), StopStrings(stops)
        self.cancelled = False
        self.arrived = time.monotonic()
        self.deadline = self.arrived + timeout if timeout else None
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.ended: float | None = None
        self.token_ids: list[int] = []
        self.reason = ""
        self.stats: Stats | None = None

    def read(self, progress: Progress) -> tuple[Event, int]:
        """What the caller may see of it, and how many of its tokens came before a stop string."""
        text, finish, seen = "", progress.finish, 0
        for token in progress.tokens:
            seen += 1
            shown, stopped = self._stops.push(self._stream.push(token))
            text += shown
            if stopped:
                return self._event(text, progress, seen, "stop"), seen
        if finish:
            shown, stopped = self._stops.push(self._stream.finish())
            text += shown + self._stops.finish()
            finish = "stop" if stopped else finish
        return self._event(text, progress, seen, finish), seen

    def _event(self, text: str, progress: Progress, seen: int, finish: str) -> Event:
        tokens = progress.tokens[:seen]
        self.token_ids += tokens
        return Event(text, tokens, finish, progress.logprobs[:seen], progress.prompt_logprobs)


def _told(failure: Exception) -> SpeccError:
    if isinstance(failure, SpeccError):
        return failure
    _LOG.error("internal error", exc_info=failure)
    return SpeccError(
        "SPECC-E0100", f"internal error: {type(failure).__name__}: {failure}", cure="report it"
    )


def stopped() -> RequestError:
    """The error for whoever comes, or waits, when the server ends."""
    return RequestError("SPECC-E0710", "the server is stopping", cure="ask another server")


class Observer(Protocol):
    """Who counts. Called on the scheduler's thread."""

    def turned(self, job: Job, progress: Progress, seen: int) -> None:
        """A job had a turn; of its tokens, `seen` were given out."""
        ...

    def ended(self, job: Job) -> None:
        """A job ended: `reason` is stop, length, context, cancelled, timeout or error."""
        ...


class Scheduler:
    """Jobs wait in order of arrival, at most `most_waiting` of them, for one of the slots."""

    def __init__(self, slots: Slots, observer: Observer, most_waiting: int) -> None:
        self._slots, self._observer, self._most_waiting = slots, observer, most_waiting
        self._waiting: deque[Job] = deque()
        self._running: dict[Slot, Job] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="specc-scheduler", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs without a slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs with one."""
        return len(self._running)

    @property
    def alive(self) -> bool:
        """Whether anything would be done."""
        return self._thread.is_alive() and not self._stopping

    def submit(self, jobs: Sequence[Job]) -> None:
        """All of them or none: raises RequestError (SPECC-E0709) if there is no room to wait."""
        with self._changed:
            if self._stopping:
                raise stopped()
            free = self._slots.capacity - self.running
            room = max(0, free) + self._most_waiting - self.waiting
            if len(jobs) > room:
                raise RequestError(
                    "SPECC-E0709", "too many requests are waiting",
                    expected=f"room for {len(jobs)} more texts", found=f"{self.running} running, "
                    f"{self.waiting} waiting", cure="try again later, or serve with a larger --max-queue",
                )  # fmt: skip
            self._waiting.extend(jobs)
            self._changed.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End them at the next turn; nothing more is delivered, and their state is freed."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._changed.notify()

    def stop(self) -> None:
        """Cancel everything and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        error: SpeccError = stopped()
        try:
            while self._wait():
                self._drop_overdue()
                self._admit()
                for slot, progress in self._slots.turn(list(self._running)):
                    job = self._running[slot]
                    if isinstance(progress, Exception):
                        self._fail(job, _told(progress))
                        self._close(slot)
                        continue
                    try:
                        self._tell(slot, job, progress)
                    except Exception as failure:  # of reading or telling this text, not of others
                        self._fail(job, _told(failure))
                        if slot in self._running:
                            self._close(slot)
        except Exception as failure:  # nobody may wait for ever; /health tells
            error = _told(failure)
            raise
        finally:
            self._abandon(error)

    def _wait(self) -> bool:
        """Until there is something to do; False if that is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._waiting or self._running)
            return not self._stopping

    def _abandon(self, error: SpeccError) -> None:
        with self._changed:
            self._stopping = True
            waiting, self._waiting = list(self._waiting), deque()
        for slot, job in list(self._running.items()):
            self._fail(job, error)
            self._close(slot)
        for job in waiting:
            self._fail(job, error)
            self._end(job)

    def _drop_overdue(self) -> None:
        """Before each turn, so that none is played for somebody who has gone."""
        for slot, job in list(self._running.items()):
            if self._overdue(job):
                self._close(slot)
        with self._changed:
            overdue = [job for job in self._waiting if self._overdue(job)]
            self._waiting = deque(job for job in self._waiting if not job.reason)
        for job in overdue:
            self._end(job)

    def _admit(self) -> None:
        while len(self._running) < self._slots.capacity:
            with self._changed:
                if not self._waiting:
                    return
                job = self._waiting.popleft()
            job.admitted = time.monotonic()
            try:
                self._running[self._slots.open(job.ask)] = job
            except Exception as error:
                self._fail(job, _told(error))
                self._end(job)

    def _overdue(self, job: Job) -> bool:
        """Whether nobody wants it any more; says so to whoever still listens."""
        if job.cancelled:
            job.reason = "cancelled"
        elif job.deadline is not None and time.monotonic() > job.deadline:
            self._fail(job, RequestError(
                "SPECC-E0711", "the request took too long",
                found=f"{len(job.token_ids)} tokens after {time.monotonic() - job.arrived:.1f} s",
                cure="ask for fewer tokens, or serve with a larger --timeout",
            ))  # fmt: skip
            job.reason = "timeout"
        return bool(job.reason)

    def _tell(self, slot: Slot, job: Job, progress: Progress) -> None:
        event, seen = job.read(progress)
        self._observer.turned(job, progress, seen)
        if seen:
            job.last_token = time.monotonic()
            job.first_token = job.first_token or job.last_token
        if event.finish:
            job.reason = event.finish
            self._close(slot)
        if event.token_ids or event.text or event.finish or event.prompt_logprobs:
            job.deliver(event)

    def _fail(self, job: Job, error: SpeccError) -> None:
        job.reason = "error"
        try:
            job.deliver(Event(error=error))
        except Exception:  # whoever listened is gone
            _LOG.exception("an error could not be told")

    def _close(self, slot: Slot) -> None:
        job = self._running[slot]
        job.stats = slot.stats
        slot.close()
        del self._running[slot]
        self._end(job)

    def _end(self, job: Job) -> None:
        job.ended = time.monotonic()
        try:
            self._observer.ended(job)
        except Exception:  # a text that is not counted is no reason to end the others
            _LOG.exception("a text could not be counted")
