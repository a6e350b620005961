"""One connection to a draft service: packets, each one frame, over a Unix socket or gRPC."""

from __future__ import annotations

import select
import socket
import time
from pathlib import Path
from typing import Protocol

from specc.errors import RequestError
from specc.runtime import draft_frames as frames
from specc.runtime.draft_address import Address
from specc.runtime.draft_frames import Frame, Kind, Reason, Vocabulary

_WHY = {
    Reason.VOCABULARY: "it has another tokenizer",
    Reason.FULL: "it has no room for another connection",
    Reason.FRAME: "it does not understand this version of specc",
}


class Link(Protocol):
    """What carries packets."""

    def send(self, packet: bytes) -> bool:
        """False if there is no room for it now; raises OSError if the connection has ended."""
        ...

    def receive(self, until: float) -> bytes | None:
        """The next packet, None if none comes before `until`, of time.monotonic().

        One that is here already is given even later. Raises OSError if the connection has ended.
        """
        ...

    def close(self) -> None: ...


class SocketLink:
    """Over a Unix socket of packets."""

    def __init__(self, path: Path, seconds: float) -> None:
        """Raises OSError, and ValueError for a path with a zero in it."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(seconds)
            self._socket.connect(str(path))
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def send(self, packet: bytes) -> bool:
        try:
            self._socket.send(packet)
        except BlockingIOError:
            return False
        return True

    def receive(self, until: float) -> bytes | None:
        left = until - time.monotonic()
        if not self._poll.poll(max(0.0, left) * 1000):
            return None
        data = self._socket.recv(frames.MOST_BYTES + 1)
        if not data:
            raise ConnectionResetError("the draft service closed the connection")
        return data

    def close(self) -> None:
        self._socket.close()


class Channel:
    """Never blocks for longer than it is told. Belongs to one thread at a time."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.send = link.send

    @classmethod
    def connect(cls, address: Address, vocabulary: Vocabulary, seconds: float) -> Channel:
        """A connection to the service at `address`, whose tokens are `vocabulary`'s.

        Raises RequestError: SPECC-E0719 if nobody answers within `seconds`, SPECC-E0720 if it refuses; UsageError
        (SPECC-E0726, E0728) where gRPC lacks certificates or itself.
        """
        until = time.monotonic() + seconds
        try:
            channel = cls(_link(address, seconds))
        except (OSError, ValueError) as error:
            raise _no_answer(address, str(error)) from error
        try:
            channel._greet(address, vocabulary, until)
        except BaseException as error:
            channel.close()
            if isinstance(error, OSError):
                raise _no_answer(address, str(error)) from error
            raise
        return channel

    def _greet(self, address: Address, vocabulary: Vocabulary, until: float) -> None:
        answer = self.receive(until) if self.send(frames.hello(vocabulary)) else None
        if answer is None:
            raise _no_answer(address, "no answer in time")
        if (reason := _refusal(answer, vocabulary)) is not None:
            raise RequestError(
                "SPECC-E0720", f"the draft service refuses: {_WHY[reason]}", where=str(address),
                expected="a service whose artifact has the same tokenizer",
                cure="specc draft-service ARTIFACT --socket PATH with a model of the same family",
            )  # fmt: skip

    def receive(self, until: float) -> Frame | None:
        """The next frame; None if there is none before `until`, of time.monotonic().

        One that is here already is given even later: whoever reads on in a loop looks at the clock.
        Raises OSError if the connection has ended, RequestError (SPECC-E0718) if what came is no frame.
        """
        data = self._link.receive(until)
        return None if data is None else frames.read(data)

    def close(self) -> None:
        self._link.close()


def _link(address: Address, seconds: float) -> Link:
    if isinstance(address, Path):
        return SocketLink(address, seconds)
    from specc.runtime.draft_grpc import GrpcLink

    return GrpcLink(address)


def _refusal(answer: Frame, vocabulary: Vocabulary) -> Reason | None:
    """Why a service that answers a greeting so is of no use; None if it is."""
    if answer.kind == Kind.HELLO and answer.vocabulary is not None:
        return None if answer.vocabulary.digest == vocabulary.digest else Reason.VOCABULARY
    known = answer.kind == Kind.REFUSED and answer.reason in set(Reason)
    return Reason(answer.reason) if known else Reason.FRAME


def _no_answer(address: Address, found: str) -> RequestError:
    return RequestError(
        "SPECC-E0719", "no draft service answers", where=str(address), found=found,
        cure="start it first: specc draft-service ARTIFACT --socket PATH",
    )  # fmt: skip
