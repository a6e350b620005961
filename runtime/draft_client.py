"""Drafts from another process: asked for with a deadline, dropped if they come late, and never waited for in vain."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from specc.errors import SpeccError
from specc.runtime import draft_frames as frames
from specc.runtime.draft_address import Address
from specc.runtime.draft_channel import Channel
from specc.runtime.draft_frames import Frame, Kind, Vocabulary
from specc.runtime.draft_health import PING_S, Health
from specc.runtime.manifest import Manifest

CONNECT_S = 5.0
"""For a service that has just been started."""
CONNECTIONS = 2
"""That a client holds: one for drafts, one for pings."""
FIRST_S, LEAST_S, MOST_S = 0.05, 0.0005, 2.0
"""Deadlines: while nothing was measured, and the bounds of what follows from it."""
LEAST_ACCEPTANCE = 0.25
"""A lower one would end in deadlines that nothing could meet, and never be measured again."""
_STEP = 0.05
LATE, LOST, PASSED = "timeout", "draft_lost", "passed"
"""Why there is no draft: it did not come in time, the service is not well, or it was not asked."""
MOST_PASSED = 255
"""Rounds that are passed over, at most, after drafts that came too late one after the other."""


@dataclass
class Counts:
    """Since the beginning: drafts that came in time, that did not, and answers that nobody waited for any more."""

    answered: int = 0
    late: int = 0
    stale: int = 0


class DraftClient:
    """A draft service, as one server sees it: texts ask it by `text()`, from one thread at a time.

    A thread of its own pings it over a connection of its own, and connects again when it has come back.
    """

    def __init__(
        self, address: Address, manifest: Manifest, *, deadline_s: float | None = None,
        ping_s: float = PING_S,
    ) -> None:  # fmt: skip
        """Connect. `deadline_s`: of every draft; None takes it from what rounds cost and drafts gave.

        Raises RequestError: SPECC-E0605 (no tokenizer here), E0719 (nobody answers), E0720 (it refuses); and what
        Channel.connect raises for gRPC.
        """
        self.address, self.counts = address, Counts()
        self.round_trip_s = 0.0  # of the last draft that came in time
        self._vocabulary = Vocabulary.of(manifest)
        self._fixed_s, self._ping_s = deadline_s, ping_s
        self._plain_s: float | None = None  # of a round without drafts
        self._with_drafts_s: float | None = None
        self._acceptance = 1.0
        self._late_in_a_row = self._passed = self._last_text = 0
        self._asking: dict[int, RemoteText] = {}
        self._ended: deque[int] = deque()  # texts that the service was not told of yet
        self._health = Health(str(address))
        self._lock = threading.Lock()  # of _channel
        self._channel: Channel | None = Channel.connect(address, self._vocabulary, CONNECT_S)
        self._pings: Channel | None = Channel.connect(address, self._vocabulary, CONNECT_S)
        self._nonce = 0
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="specc-draft-pings", daemon=True)
        self._watcher.start()

    @property
    def healthy(self) -> bool:
        """Whether it is asked at all."""
        return self._health.healthy and self._channel is not None

    def text(self, temperature: float = 0.0, seed: int = 0) -> RemoteText:
        """A drafter for one text of these options: the same noise lets both sides draw the same tokens."""
        self._last_text += 1
        return RemoteText(self, self._last_text, temperature, seed)

    def learn(self, round_s: float, drafted: int = 0, accepted: int = 0) -> None:
        """What a round took, without the wait for its drafts, and what became of them.

        Until there was one without drafts, one with them stands for it.
        """
        if drafted:
            self._acceptance += _STEP * (accepted / drafted - self._acceptance)
            self._with_drafts_s = round_s
        else:
            before = round_s if self._plain_s is None else self._plain_s
            self._plain_s = before + _STEP * (round_s - before)

    def deadline_s(self, k: int) -> float:
        """How long `k` drafts are waited for: what plain decoding takes for those that will be kept."""
        if self._fixed_s is not None:
            return self._fixed_s
        plain_s = self._with_drafts_s if self._plain_s is None else self._plain_s
        if plain_s is None:
            return FIRST_S
        worth = plain_s * k * max(self._acceptance, LEAST_ACCEPTANCE)
        return min(max(worth, LEAST_S), MOST_S)

    def close(self) -> None:
        """Let go of the service, which forgets all texts."""
        self._closing.set()
        self._watcher.join()
        self._drop_channel()
        if self._pings is not None:
            self._pings.close()

    def ask(self, text: RemoteText, tokens: array[int], k: int) -> tuple[Sequence[int], str]:
        """A draft after `tokens`, and why there is none: LATE, LOST, PASSED, or "" if it has none."""
        with self._lock:
            channel = self._channel
            if channel is None or not self._health.healthy:
                return (), LOST
            if self._passed > 0:
                self._passed -= 1
                return (), PASSED
            begun, drafted = time.monotonic(), None
            try:
                if asked := self._request(text, tokens, k):
                    drafted = self._exchange(channel, text, tokens, k, begun + self.deadline_s(k))
            except (OSError, SpeccError):
                self._lose()
                return (), LOST
            if drafted is None:
                # Too slow, or stalled: until pings tell which, less and less time is lost on it.
                self.counts.late += asked
                self._late_in_a_row += 1
                self._passed = min((1 << min(self._late_in_a_row, 16)) - 2, MOST_PASSED)
                return (), LATE if asked else PASSED
            self.counts.answered += 1
            self._late_in_a_row = 0
            self.round_trip_s = time.monotonic() - begun
        return list(takewhile(lambda token: token < self._vocabulary.size, drafted)), ""

    def tell(self, text: RemoteText, tokens: array[int], k: int = 0) -> int | None:
        """Send what the service lacks of `tokens`, and ask for `k` drafts; their crc, or None if it did not fit.

        Raises OSError if the connection has ended.
        """
        channel = self._channel
        if channel is None:
            return None
        if text.channel is not channel:
            text.channel, text.sent = channel, 0
        start, count = min(text.sent, len(tokens)), len(tokens)
        crc = frames.checksum(tokens[:start])
        self._tell_ended(channel)
        while True:
            end = min(start + frames.MOST_TOKENS, count)
            part, asked = tokens[start:end], k if end == count else 0
            crc = frames.checksum(part, crc)
            frame = frames.propose(
                text.number, start, end, crc, part, asked, text.temperature, text.seed
            )
            if not channel.send(frame):
                return None
            text.sent = start = end
            if end == count:
                return crc

    def prepare(self, text: RemoteText, ids: Sequence[int]) -> None:
        """Send a prompt ahead, so that both sides read it at once."""
        with self._lock:
            try:
                if self._health.healthy:
                    self.tell(text, array("I", ids))
            except OSError:
                self._lose()

    def forget(self, text: RemoteText) -> None:
        """The text has ended."""
        with self._lock, suppress(OSError):
            self._asking.pop(text.number, None)
            if self._channel is not None and text.channel is self._channel:
                self._ended.append(text.number)
                self._tell_ended(self._channel)

    def ahead(self, text: RemoteText, tokens: array[int], k: int) -> None:
        """Ask for what `ask` will want next, so that the service drafts while others have their turn."""
        with self._lock:
            if not self._health.healthy or self._late_in_a_row:
                return
            try:
                self._request(text, tokens, k)
            except OSError:
                self._lose()

    def _exchange(
        self, channel: Channel, text: RemoteText, tokens: array[int], k: int, until: float
    ) -> Sequence[int] | None:
        """The draft that was asked for, None if it did not come in time."""
        lost = False
        while True:
            if (answer := text.answer) is None:
                if (frame := channel.receive(until)) is None:
                    return None
                self._take(frame)
                # There may be more, without end: an answer that is here counts, none is looked for any more.
                if text.answer is None and time.monotonic() >= until:
                    return None
            elif answer.kind == Kind.DRAFT:
                return answer.tokens[:k]
            elif lost:
                return ()  # it cannot hold the text
            else:
                lost, text.sent, text.asked_for = True, 0, None
                if not self._request(text, tokens, k):
                    return None

    def _request(self, text: RemoteText, tokens: array[int], k: int) -> bool:
        """Ask, unless so many drafts were asked for already; whether the question is on its way."""
        if text.channel is not self._channel:
            text.asked_for = None
        about = len(tokens), frames.checksum(tokens)
        if text.asked_for == about and text.asked_k >= k:
            return True
        again = text.asked_for == about
        text.asked_for = text.answer = None
        if self.tell(text, tokens, k) is None:
            return False
        text.unanswered = text.unanswered + 1 if again else 1
        text.asked_for, text.asked_k = about, k
        self._asking[text.number] = text
        return True

    def _tell_ended(self, channel: Channel) -> None:
        """Let the service forget texts that have ended: as many as there is room to tell of now."""
        while self._ended and channel.send(frames.close(self._ended[0])):
            self._ended.popleft()

    def _take(self, frame: Frame) -> None:
        """Give an answer to the text that waits for it, if one does."""
        text = self._asking.get(frame.text)
        if text is not None and text.asked_for == (frame.count, frame.crc):
            text.unanswered -= 1
            if not text.unanswered:  # else it was asked again for more
                text.answer = frame
                return
        self.counts.stale += 1

    def _lose(self) -> None:
        self._drop_channel()
        self._health.lost()

    def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        self._ended.clear()  # with a connection, the service forgets its texts
        if channel is not None:
            channel.close()

    def _watch(self) -> None:
        while not self._closing.wait(self._ping_s):
            try:
                answered = self._ping()
                if answered and self._channel is None:
                    channel = Channel.connect(self.address, self._vocabulary, self._ping_s)
                    with self._lock:
                        self._channel = channel
                        self._late_in_a_row = self._passed = 0
                with self._lock:
                    if answered and self._channel is not None:
                        self._tell_ended(self._channel)
            except (OSError, SpeccError):
                if self._pings is not None:
                    self._pings.close()
                    self._pings = None
                with self._lock:
                    self._lose()
                continue
            if answered:
                self._health.good()
            else:
                self._health.miss()

    def _ping(self) -> bool:
        if self._pings is None:
            self._pings = Channel.connect(self.address, self._vocabulary, self._ping_s)
        self._nonce += 1
        until = time.monotonic() + self._ping_s
        if not self._pings.send(frames.ping(self._nonce)):
            return False
        while (frame := self._pings.receive(until)) is not None:
            if frame.kind == Kind.PONG and frame.text == self._nonce:
                return True
            if time.monotonic() >= until:  # (there may be more, without end)
                return False
        return False


class RemoteText:
    """The drafter of one text, for `Session.set_drafter`. `why`: what the last call had no drafts for."""

    def __init__(self, client: DraftClient, number: int, temperature: float, seed: int) -> None:
        self._client, self.number = client, number
        self.temperature, self.seed = temperature, seed
        self.channel: Channel | None = None  # that `sent` tokens went over
        self.sent = 0
        self.why, self.asked = "", 0
        # What an answer is awaited for: the text's count and crc, its drafts, and how many answers are on their way.
        self.asked_for: tuple[int, int] | None = None
        self.asked_k = self.unanswered = 0
        self.answer: Frame | None = None

    def __call__(self, committed: Sequence[int], k: int) -> Sequence[int]:
        self.asked = min(k, frames.MOST_DRAFTS)
        drafted, self.why = self._client.ask(self, array("I", committed), self.asked)
        return drafted

    def prepare(self, ids: Sequence[int]) -> None:
        """Let the service read the prompt while the target does."""
        self._client.prepare(self, ids)

    def ahead(self, committed: Sequence[int]) -> None:
        """Ask for as many drafts as were asked for last, for a call that comes later."""
        if self.asked:
            self._client.ahead(self, array("I", committed), self.asked)

    def close(self) -> None:
        """Let the service forget it."""
        self._client.forget(self)
