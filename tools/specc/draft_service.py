"""The process that drafts for others: an artifact, and a session of it for each text that somebody continues."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from array import array
from collections import OrderedDict
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from specc.errors import RequestError, SpeccError, UsageError
from specc.runtime import Artifact
from specc.runtime import draft_frames as frames
from specc.runtime.draft_address import Address
from specc.runtime.draft_frames import Frame, Kind, Reason, Vocabulary

_LOG = logging.getLogger(__name__)
MOST_CONNECTIONS = 16
HELLO_S = 5.0
"""For the first frame; later ones may take for ever."""
_MOST_PATH = 107
"""Bytes of a Unix socket's path (sys/un.h)."""


class Listener(Protocol):
    """Where clients come in."""

    address: Address

    def serve(self, service: DraftService) -> None:
        """Until interrupted; then lets running drafts end."""
        ...

    def close(self) -> None: ...


def listen(address: Address) -> Listener:
    """A listener at `address`; raises UsageError (SPECC-E0715) if it cannot be had, and for gRPC E0726 and E0728."""
    if isinstance(address, Path):
        return SocketListener(address)
    from specc.draft_service_grpc import GrpcListener

    return GrpcListener(address)


class SocketListener:
    """A Unix socket that this user alone may connect to. A thread for each connection."""

    def __init__(self, path: Path) -> None:
        """Replaces a socket that nobody listens on any more, and nothing else. Raises UsageError (SPECC-E0715)."""
        self.address: Address = path
        self._path = path
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, socket.socket] = {}
        if len(os.fsencode(path)) > _MOST_PATH:
            raise cannot_listen(path, f"a path of over {_MOST_PATH} bytes", errno.ENAMETOOLONG)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            if path.is_socket() and _is_dead(path):
                path.unlink()
            self._socket.bind(str(path))
            path.chmod(0o600)  # nobody can have connected: it does not listen yet
            self._socket.listen(MOST_CONNECTIONS)
        except OSError as error:
            self._socket.close()
            raise cannot_listen(path, error.strerror or str(error), error.errno) from error

    def serve(self, service: DraftService) -> None:
        try:
            while True:
                connected, _ = self._socket.accept()
                thread = threading.Thread(
                    target=self._talk, args=(service, connected), name="specc-drafts"
                )
                with self._lock:
                    self._open[thread] = connected
                thread.start()
        finally:
            with self._lock:
                threads = list(self._open)
                for connected in self._open.values():
                    with suppress(OSError):
                        connected.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()

    def close(self) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _talk(self, service: DraftService, connected: socket.socket) -> None:
        with connected, suppress(OSError), closing(service.converse(_packets(connected))) as said:
            for packet in said:
                connected.send(packet)
        with self._lock:
            del self._open[threading.current_thread()]


def _packets(connected: socket.socket) -> Iterator[bytes]:
    connected.settimeout(HELLO_S)
    data = connected.recv(frames.MOST_BYTES + 1)
    connected.settimeout(None)
    while data:
        yield data
        data = connected.recv(frames.MOST_BYTES + 1)


class DraftService:
    """Answers proposals with what `artifact` says next."""

    def __init__(self, artifact: Artifact, most_texts: int) -> None:
        self.texts = _Texts(artifact, most_texts)
        self.vocabulary = Vocabulary.of(artifact.manifest)
        self._lock = threading.Lock()
        self._talking = 0

    def converse(self, packets: Iterator[bytes]) -> Generator[bytes]:
        """What one client is told, packet by packet, until `packets` end; close it to forget the client's texts."""
        with self._lock:
            full = self._talking >= MOST_CONNECTIONS
            self._talking += 1
        connection = _Connection(self)
        try:
            if full:
                next(packets, b"")  # unread, it would reset the connection
                yield frames.refused(Reason.FULL)
            else:
                yield from connection.answers(packets)
        except RequestError as error:  # what came is no frame: nothing after it can be trusted
            _LOG.warning("%s", error)
            yield frames.refused(Reason.FRAME)
        finally:
            connection.close()
            with self._lock:
                self._talking -= 1


class _Connection:
    """One client, whose texts are its own although all share the room."""

    def __init__(self, service: DraftService) -> None:
        self._service = service

    def answers(self, packets: Iterator[bytes]) -> Iterator[bytes]:
        """Raises RequestError (SPECC-E0718) for what is no frame, or comes at the wrong time."""
        hello = next(packets, b"")
        if not hello:
            return
        ours, theirs = self._service.vocabulary, frames.read(hello).vocabulary
        if theirs is None or theirs.digest != ours.digest:
            yield frames.refused(Reason.FRAME if theirs is None else Reason.VOCABULARY)
            return
        yield frames.hello(ours)
        for frame in map(frames.read, packets):
            if frame.kind == Kind.PING:
                yield frames.pong(frame.text)
            elif frame.kind == Kind.CLOSE:
                self._service.texts.end((self, frame.text))
            elif frame.kind == Kind.PROPOSE:
                answer = self._propose(frame)
                if frame.k:
                    yield answer
            else:
                raise RequestError(
                    "SPECC-E0718", "what came over the draft socket is no frame",
                    expected="one that a client sends", found=frame.kind.name, cure="report it",
                )  # fmt: skip

    def close(self) -> None:
        self._service.texts.end_all(self)

    def _propose(self, frame: Frame) -> bytes:
        with self._service.texts.use((self, frame.text), begin=frame.start == 0) as text:
            if text is None or not text.follow(frame):
                return frames.lost(frame.text, frame.count, frame.crc)
            try:
                drafted = text.continued(frame.k)
            except SpeccError as error:  # beyond its context, an id that only the target has
                _LOG.info("%s", error)
                drafted = array("I")
        return frames.draft(frame.text, frame.count, frame.crc, drafted)


_Key = tuple[_Connection, int]


class _Texts:
    """Texts of all connections, at most so many that hold state: the one asked for longest ago makes room.

    A text that is in use makes none. A connection uses one at a time, so where fewer may be held than there are
    connections, one may have to ask again.
    """

    def __init__(self, artifact: Artifact, most: int) -> None:
        self._artifact, self._most = artifact, most
        self._lock = threading.Lock()
        self._resting: OrderedDict[_Key, _Text] = OrderedDict()  # the one asked for last at the end
        self._in_use = 0

    @contextmanager
    def use(self, key: _Key, *, begin: bool) -> Iterator[_Text | None]:
        """The text of this key, a new one if there is none and it may `begin`; None without it, or room."""
        with self._lock:
            text, spare = self._resting.pop(key, None), None
            begin = begin and text is None
            if begin and len(self._resting) + self._in_use >= self._most:
                if self._resting:
                    _, spare = self._resting.popitem(last=False)
                else:
                    begin = False
            held = begin or text is not None
            self._in_use += held
        if spare is not None:
            spare.close()
        try:
            if begin:
                text = self._begun()
            yield text
        finally:
            with self._lock:
                self._in_use -= held
                if text is not None:
                    self._resting[key] = text

    def end(self, key: _Key) -> None:
        """Forget it, if it is known. It is not in use: its connection's thread is the one that asks."""
        with self._lock:
            text = self._resting.pop(key, None)
        if text is not None:
            text.close()

    def end_all(self, connection: _Connection) -> None:
        """Forget those of a connection that has ended."""
        with self._lock:
            keys = [key for key in self._resting if key[0] is connection]
        for key in keys:
            self.end(key)

    def _begun(self) -> _Text | None:
        try:
            return _Text(self._artifact)
        except SpeccError as error:  # there is no memory for its state
            _LOG.warning("%s", error)
            return None


class _Text:
    """What a client has committed of a text, and a session that is at most some drafts beside it."""

    def __init__(self, artifact: Artifact) -> None:
        self._session = artifact.session()
        self._tokens = array("I")
        self._said = array("I")  # the session's tokens
        self._options: tuple[float, int] | None = None

    def follow(self, frame: Frame) -> bool:
        """Take over the client's text; False if it does not join on to what is known."""
        if frame.start > len(self._tokens):
            return False
        tokens = self._tokens[: frame.start] + array("I", frame.tokens)
        if frames.checksum(tokens) != frame.crc:
            return False
        self._tokens = tokens
        if self._options != (frame.temperature, frame.seed):
            self._options = frame.temperature, frame.seed
            self._session.configure(temperature=frame.temperature, seed=frame.seed)
        return True

    def continued(self, k: int) -> array[int]:
        """Up to `k` tokens after it, fewer where the text ends; reads what is new of it in any case.

        Raises RequestError for a text that the artifact cannot hold.
        """
        kept = self._common()
        if kept < len(self._said):
            self._session.rewind(kept)
            del self._said[kept:]
        self._session.set("max_tokens", k)
        if new := self._tokens[kept:]:
            self._session.append(new)
            self._said.extend(new)
        elif k:
            self._session.append(())  # counts its tokens anew
        if not (k and self._tokens):
            return array("I")
        try:
            drafted = array("I", self._session.iterate())
        except BaseException:
            self._said = array("I", self._session.tokens)  # some may have been committed
            raise
        self._said.extend(drafted)
        return drafted

    def close(self) -> None:
        self._session.close()

    def _common(self) -> int:
        """Leading tokens that the text and the session share."""
        shared = min(len(self._tokens), len(self._said))
        if self._tokens[:shared] == self._said[:shared]:
            return shared
        return next(i for i in range(shared) if self._tokens[i] != self._said[i])


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(1)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def cannot_listen(address: Address, found: str, number: int | None = None) -> UsageError:
    """The error for a place that cannot be listened on; `number`: of the system's error, if there was one."""
    return UsageError(
        "SPECC-E0715", "the address cannot be listened on", where=str(address), found=found, cure=_cure(number)
    )  # fmt: skip


def _cure(number: int | None) -> str:
    if number == errno.EADDRINUSE:
        return "choose another --socket, or end the service that has it"
    if number == errno.ENOENT:
        return "make the folder that the --socket lies in, or choose another"
    if number == errno.ENAMETOOLONG:
        return "choose a shorter --socket"
    if number is not None:
        return "choose a --socket in a folder that you may write to"
    return (
        "choose an address of this machine and a free port (0: any), and look at the certificates"
    )
