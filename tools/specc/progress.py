"""What is happening, while it happens: phases with their time and the peak of memory."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

WORTH_A_LINE = 0.5
"""Seconds. Phases below it leave no line: a list of zeros tells nobody anything."""

WORTH_ANNOUNCING = 2.0
"""Seconds after which a phase is announced, where lines cannot be updated in place."""


class Progress(Protocol):
    """Where a long job reports what it is doing."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Enclose a step that may take seconds. Phases may be nested."""
        ...

    def note(self, text: str) -> None:
        """Say something worth knowing."""
        ...


class SilentProgress:
    """Says nothing."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        del name
        return _nothing()

    def note(self, text: str) -> None:
        del text


class NotingProgress:
    """Passes all on to another, and remembers the notes."""

    def __init__(self, to: Progress) -> None:
        self._to = to
        self.notes: list[str] = []

    def phase(self, name: str) -> AbstractContextManager[None]:
        return self._to.phase(name)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._to.note(text)


class JsonProgress:
    """One JSON object a line: phase_begin, phase_end, note."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        self._write({"event": "phase_begin", "phase": name})
        try:
            yield
        finally:
            elapsed = round(time.monotonic() - began, 3)
            self._write(
                {"event": "phase_end", "phase": name, "elapsed_s": elapsed,
                 "peak_rss_bytes": peak_rss()}
            )  # fmt: skip

    def note(self, text: str) -> None:
        self._write({"event": "note", "text": text})

    def _write(self, event: dict[str, object]) -> None:
        with self._lock:
            self._stream.write(json.dumps({"schema": 1, **event}) + "\n")
            self._stream.flush()


class TerminalProgress:
    """For people, on stderr: a line for each phase that took its time.

    On a TTY the phase that runs is shown too, and updated in place.
    """

    def __init__(
        self, stream: TextIO | None = None, *, live: bool | None = None, tick: float = 0.1
    ) -> None:
        self._stream = stream or sys.stderr
        self._live = is_terminal(self._stream) if live is None else live
        self._colour = self._live and not os.environ.get("NO_COLOR")
        self._tick = tick
        self._lock = threading.Lock()
        self._open: list[_Phase] = []
        self._shown = False
        self._done = threading.Event()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        phase = _Phase(name, len(self._open))
        with self._lock:
            self._open.append(phase)
        if phase.depth == 0:
            self._done = threading.Event()
            threading.Thread(target=self._watch, args=(self._done,), daemon=True).start()
        try:
            yield
        except BaseException:
            self._end(phase, failed=True)
            raise
        else:
            self._end(phase, failed=False)

    def note(self, text: str) -> None:
        with self._lock:
            self._print(text)

    def _end(self, phase: _Phase, *, failed: bool) -> None:
        with self._lock:
            del self._open[phase.depth :]
            self._clear()
            if phase.elapsed >= WORTH_A_LINE:
                end = "  failed" if failed else f"  peak {human_bytes(peak_rss())}"
                self._print(f"{phase}{self._dim(end)}")
        if phase.depth == 0:
            self._done.set()

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(self._tick):
            with self._lock:
                if done.is_set() or not self._open:
                    continue
                phase = self._open[-1]
                if self._live and phase.elapsed >= WORTH_A_LINE:
                    self._stream.write(f"\r\x1b[2K{phase}")
                    self._stream.flush()
                    self._shown = True
                elif not self._live and phase.elapsed >= WORTH_ANNOUNCING and not phase.announced:
                    phase.announced = True
                    self._print(f"{'  ' * phase.depth}{phase.name} ...")

    def _clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[2K")
            self._shown = False

    def _print(self, text: str) -> None:
        self._clear()
        self._stream.write(text + "\n")
        self._stream.flush()

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._colour else text


class _Phase:
    def __init__(self, name: str, depth: int) -> None:
        self.name, self.depth = name, depth
        self.began = time.monotonic()
        self.announced = False

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def __str__(self) -> str:
        label = "  " * self.depth + self.name
        return f"{label:<44.44} {self.elapsed:7.1f} s"


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def peak_rss() -> int:
    """Most bytes that this process, or a compiler it started, has had resident so far."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 1024
    return max(resource.getrusage(kind).ru_maxrss for kind in kinds) * unit


def is_terminal(stream: TextIO) -> bool:
    """Whether lines on `stream` can be updated in place."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    except ValueError:  # closed
        return False


def human_bytes(count: float) -> str:
    """A size for people: 134.5 MB. Powers of 1000, as disks and memory prices are written."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
