"""Frames over gRPC, for a draft service on another machine: one stream of bytes each way.

In a .proto: `package specc; service Drafts { rpc Talk(stream google.protobuf.BytesValue) returns (stream
google.protobuf.BytesValue); }`, each value one frame of `draft_frames`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from specc.errors import UsageError
from specc.runtime.draft_address import Network
from specc.runtime.draft_frames import MOST_BYTES

try:
    import grpc
    from google.protobuf.wrappers_pb2 import BytesValue
except ImportError as error:
    raise UsageError(
        "SPECC-E0728", "drafts over a network need packages that are not installed", found=str(error),
        cure="pip install 'specc-compiler[remote]'",
    ) from error  # fmt: skip

__all__ = ["METHOD", "OPTIONS", "SERVICE", "GrpcLink", "grpc", "pack", "unpack"]

SERVICE, METHOD = "specc.Drafts", "Talk"
OPTIONS = (
    ("grpc.max_receive_message_length", MOST_BYTES + 64),
    ("grpc.so_reuseport", 0),  # two services at one port would share its clients
    ("grpc.enable_retries", 0),  # whoever lost a service says so, and asks again when it is well
)
_ROOM = 16
"""Frames that wait to be sent; a service that does not read is told of no more."""


def pack(frame: bytes) -> bytes:
    """A frame as a message."""
    message: bytes = BytesValue(value=frame).SerializeToString()
    return message


def unpack(message: bytes) -> bytes:
    """The frame of a message; raises google.protobuf.message.DecodeError."""
    frame: bytes = BytesValue.FromString(message).value
    return frame


class GrpcLink:
    """Carries frames to a service and back, one thread reading ahead."""

    def __init__(self, address: Network) -> None:
        """Begin to connect; raises UsageError (SPECC-E0726) without the certificates that `address` names."""
        identity = address.identity()
        if identity is None:
            self._channel = grpc.insecure_channel(address.target, OPTIONS)
        else:
            ca, cert, key = identity
            shown = grpc.ssl_channel_credentials(ca, key, cert)
            self._channel = grpc.secure_channel(address.target, shown, OPTIONS)
        self._out: queue.Queue[bytes | None] = queue.Queue(_ROOM)
        self._in: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._why = ""
        self._ended = threading.Event()
        talk = self._channel.stream_stream(f"/{SERVICE}/{METHOD}", pack, unpack)
        self._call = talk(self._sent())
        self._reader = threading.Thread(target=self._read, name="specc-draft-grpc", daemon=True)
        self._reader.start()

    def send(self, packet: bytes) -> bool:
        """False if there is no room for it now; raises OSError if the connection has ended."""
        self._check()
        try:
            self._out.put_nowait(packet)
        except queue.Full:
            return False
        return True

    def receive(self, until: float) -> bytes | None:
        """The next packet, None if none comes before `until`; raises OSError if the connection has ended."""
        try:
            packet = self._in.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None
        if packet is None:
            self._in.put(None)  # for whoever asks again
            self._check()
        return packet

    def close(self) -> None:
        self._call.cancel()
        self._reader.join()
        self._channel.close()

    def _sent(self) -> Iterator[bytes]:
        while (packet := self._out.get()) is not None:
            yield packet

    def _read(self) -> None:
        try:
            for packet in self._call:
                self._in.put(packet)
            self._why = "the draft service closed the connection"
        except grpc.RpcError as error:
            self._why = str(error.details())
        self._ended.set()
        self._in.put(None)
        while True:  # (a full queue has frames that nobody takes any more)
            with suppress(queue.Full):
                self._out.put_nowait(None)
                return
            self._out.get()

    def _check(self) -> None:
        if self._ended.is_set():
            raise ConnectionResetError(self._why)
