"""One connection to a draft service: packets over a Unix socket, each one frame."""

from __future__ import annotations

import select
import socket
import time
from pathlib import Path

from specc.errors import RequestError
from specc.runtime import draft_frames as frames
from specc.runtime.draft_frames import Frame, Kind, Reason, Vocabulary

_WHY = {
    Reason.VOCABULARY: "it has another tokenizer",
    Reason.FULL: "it has no room for another connection",
    Reason.FRAME: "it does not understand this version of specc",
}


class Channel:
    """Never blocks for longer than it is told. Belongs to one thread at a time."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)

    @classmethod
    def connect(cls, path: Path, vocabulary: Vocabulary, seconds: float) -> Channel:
        """A connection to the service at `path`, whose tokens are `vocabulary`'s.

        Raises RequestError: SPECC-E0719 if nobody answers within `seconds`, SPECC-E0720 if it refuses.
        """
        until = time.monotonic() + seconds
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connecting.settimeout(seconds)
            connecting.connect(str(path))
            channel = cls(connecting)
            answer = channel.receive(until) if channel.send(frames.hello(vocabulary)) else None
        except (OSError, ValueError) as error:  # (a path with a zero in it is a ValueError)
            connecting.close()
            raise _no_answer(path, str(error)) from error
        except RequestError:
            connecting.close()
            raise
        if answer is None:
            channel.close()
            raise _no_answer(path, f"no answer within {seconds:g} s")
        if answer.kind == Kind.HELLO and answer.vocabulary is not None:
            if answer.vocabulary.digest == vocabulary.digest:
                return channel
            reason = Reason.VOCABULARY
        else:
            reason = (
                Reason(answer.reason)
                if answer.reason in set(Reason) and answer.kind == Kind.REFUSED
                else Reason.FRAME
            )
        channel.close()
        raise RequestError(
            "SPECC-E0720", f"the draft service refuses: {_WHY[reason]}", where=str(path),
            expected="a service whose artifact has the same tokenizer",
            cure="specc draft-service ARTIFACT --socket PATH with a model of the same family",
        )  # fmt: skip

    def send(self, frame: bytes) -> bool:
        """False if there is no room for it now; raises OSError if the connection has ended."""
        try:
            self._socket.send(frame)
        except BlockingIOError:
            return False
        return True

    def receive(self, until: float) -> Frame | None:
        """The next frame; None if there is none before `until`, of time.monotonic().

        One that is here already is given even later: whoever reads on in a loop looks at the clock.
        Raises OSError if the connection has ended, RequestError (SPECC-E0718) if what came is no frame.
        """
        left = until - time.monotonic()
        if not self._poll.poll(max(0.0, left) * 1000):
            return None
        data = self._socket.recv(frames.MOST_BYTES + 1)
        if not data:
            raise ConnectionResetError("the draft service closed the connection")
        return frames.read(data)

    def close(self) -> None:
        self._socket.close()


def _no_answer(path: Path, found: str) -> RequestError:
    return RequestError(
        "SPECC-E0719", "no draft service answers", where=str(path), found=found,
        cure="start it first: specc draft-service ARTIFACT --socket PATH",
    )  # fmt: skip
