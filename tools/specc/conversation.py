"""A conversation over one session: only what is new is prefilled, and Ctrl-C ends an answer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from specc.runtime import Engine, Session, Stats
from specc.streaming import TextStream
from specc.templates import ChatTemplate, Message


@dataclass(frozen=True)
class Answer:
    """One turn of the model. `reused_tokens`: those of the prompt whose state was there already."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    reused_tokens: int
    stats: Stats


class Conversation:
    """Messages, and a session whose text follows them."""

    def __init__(
        self, engine: Engine, session: Session, template: ChatTemplate, system: str | None = None
    ) -> None:
        self._engine, self._session, self._template = engine, session, template
        self._opening: list[Message] = (
            [] if system is None else [{"role": "system", "content": system}]
        )
        self.messages: list[Message] = list(self._opening)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._opening)

    def ask(self, text: str, show: Callable[[str], None]) -> Answer:
        """Say `text` and let the model answer; `show` gets the answer in whole pieces.

        Ctrl-C ends it early. A question whose answer failed, or was cancelled before it began, is
        not kept.
        """
        messages: list[Message] = [*self.messages, {"role": "user", "content": text}]
        wanted = self._engine.tokenize(
            self._template.render(messages), add_special=False, parse_special=True
        )
        # The last answer is read back from the rendered conversation, not taken from the session
        # as it was generated: templates may trim it, or drop its reasoning. What differs is taken
        # back, the rest stays.
        kept = common_prefix(self._session.tokens, wanted)
        self._session.rewind(kept)
        ids: list[int] = []
        pieces: list[str] = []
        stream = TextStream(self._engine.detokenize)

        def out(piece: str) -> None:
            if piece:
                pieces.append(piece)
                show(piece)

        with interrupting(self._session.cancel):
            if self._append(wanted[kept:]):
                for token in self._session.iterate():
                    ids.append(token)
                    out(stream.push(token))
        out(stream.finish())
        if ids:
            self.messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]
        return Answer(
            "".join(pieces), tuple(ids), self._session.finish_reason, len(wanted), kept,
            self._session.stats,
        )  # fmt: skip

    def _append(self, ids: Sequence[int]) -> bool:
        """Prefill on another thread: signal handlers run on this one, if it is not inside C."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._session.append, ids).result()


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading elements agree."""
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))


@contextmanager
def interrupting(cancel: Callable[[], None]) -> Iterator[None]:
    """Within this context Ctrl-C calls `cancel` instead of raising (on the main thread alone)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        cancel()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
