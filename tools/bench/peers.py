"""Engines side by side: the same model and prompts, in turns, so that all meet the same machine."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.prepare import Absent, Contender
from bench.texts import Text

_WEIGHT = {"fp32": 2}
"""Of a precision's part of the time: twice to eight times the bytes take longer."""

_WORKER = Path(__file__).resolve().parent / "worker.py"


@dataclass(frozen=True)
class Task:
    """A prompt to continue by `new` tokens; `draft`: with the engine's own n-gram drafter."""

    text: Text
    new: int
    draft: bool


@dataclass(frozen=True)
class Answer:
    """One engine's run of a task."""

    contender: Contender
    task: Task
    first_s: float
    rest_s: float
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Figure:
    """Medians over `repeats`, with the least and the most: tokens a second.

    Prefill counts the prompt's tokens until the first new one is there; decoding counts the others.
    """

    contender: Contender
    task: Task
    repeats: int
    decode: float
    decode_least: float
    decode_most: float
    prefill: float
    prefill_least: float
    prefill_most: float
    same_as_plain: bool | None
    """Of a task with drafts: whether its tokens are those of the same engine without."""


class EngineError(Exception):
    """An engine that does not load, or does not answer."""


class Engine:
    """A worker process. It is stopped while others have their turn, so that it takes no CPU."""

    def __init__(self, contender: Contender, threads: int) -> None:
        self.contender = contender
        command = [
            contender.python, str(_WORKER), contender.kind, contender.model, str(threads),
            contender.option,
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise EngineError(f"{contender.python}: {error.strerror}") from error
        try:
            self._answer()
        except EngineError:
            self.close()
            raise
        self._signal(signal.SIGSTOP)
        self.spent_s = 0.0

    def run(self, task: Task) -> Answer:
        """Continue the prompt. Raises EngineError with what the engine said."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        asked = {"ids": task.text.ids, "new": task.new, "draft": task.draft}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        told = self._answer()
        self._signal(signal.SIGSTOP)
        ids = tuple(told["ids"])
        self.spent_s += told["first_s"] + told["rest_s"]
        return Answer(self.contender, task, told["first_s"], told["rest_s"], ids)

    def close(self) -> None:
        """End it and what it started."""
        self._signal(signal.SIGKILL)
        with self._process:  # closes the pipes and waits
            pass

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"{self.contender.kind} ended without a word")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise EngineError(str(told["error"])[:300])
        return told

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def compare(
    contenders: Sequence[Contender],
    tasks: Sequence[Task],
    threads: int,
    seconds: float,
    say: Callable[[str], object],
) -> tuple[list[Answer], list[Absent]]:
    """All tasks by all contenders, again and again for about `seconds`, at least once.

    One precision after the other, so that few models are in memory at once.
    """
    answers: list[Answer] = []
    absent: list[Absent] = []
    groups = {bits: [c for c in contenders if c.bits == bits] for bits in _bits(contenders)}
    end = time.monotonic() + seconds
    for place, (bits, group) in enumerate(groups.items()):
        weights = [_WEIGHT.get(b, 1) for b in list(groups)[place:]]
        share = (end - time.monotonic()) * weights[0] / sum(weights)
        until = time.monotonic() + share
        with _engines(group, threads, absent) as engines:
            repeat = 0
            while engines:
                began = time.monotonic()
                say(f"{bits}, repeat {repeat + 1}: {', '.join(e.contender.name for e in engines)}")
                answers += _round(engines, tasks, repeat, absent)
                repeat += 1
                # One that is much slower than the others is measured once, to leave them the time.
                engines[:] = [e for e in engines if e.spent_s < share / 4 or repeat > 1]
                if time.monotonic() + (time.monotonic() - began) > until:
                    break
    return answers, absent


def _bits(contenders: Sequence[Contender]) -> list[str]:
    return list(dict.fromkeys(c.bits for c in contenders))


@contextmanager
def _engines(
    group: Sequence[Contender], threads: int, absent: list[Absent]
) -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        engines = []
        for contender in group:
            try:
                engine = Engine(contender, threads)
            except EngineError as error:
                absent.append(Absent(f"{contender.name} {contender.bits}", str(error)))
                continue
            stack.callback(engine.close)
            engines.append(engine)
        yield engines


def _round(
    engines: list[Engine], tasks: Sequence[Task], repeat: int, absent: list[Absent]
) -> list[Answer]:
    """Every task by every engine; who goes first changes. An engine that fails is let go."""
    answers = []
    for place, task in enumerate(tasks):
        turn = (repeat + place) % max(1, len(engines))
        for engine in [*engines[turn:], *engines[:turn]]:
            try:
                answers.append(engine.run(task))
            except EngineError as error:
                how = "with drafts" if task.draft else "plain"
                who = engine.contender
                absent.append(Absent(f"{who.name} {who.bits}", f"{task.text.name} {how}: {error}"))
                engines.remove(engine)
    return answers


def figures(answers: Sequence[Answer]) -> list[Figure]:
    """Medians, in the order in which contenders and tasks first came."""
    grouped: dict[tuple[Contender, Task], list[Answer]] = {}
    for answer in answers:
        grouped.setdefault((answer.contender, answer.task), []).append(answer)
    found = []
    for (contender, task), mine in grouped.items():
        decode = [(task.new - 1) / a.rest_s for a in mine]
        prefill = [len(task.text.ids) / a.first_s for a in mine]
        plain = grouped.get((contender, Task(task.text, task.new, draft=False)))
        same = mine[0].ids == plain[0].ids if task.draft and plain else None
        found.append(Figure(contender, task, len(mine), *_spread(decode), *_spread(prefill), same))
    return found


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)
