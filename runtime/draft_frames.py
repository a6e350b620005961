"""What a runtime and a draft service say to each other: frames of fixed heads, each one packet of a Unix socket.

Numbers are little-endian, tokens 32 bits. Every frame is checked against its bounds before anything of it is used:
whoever is at the other end, it is data. A text is known by a number of the asking side, and a draft by (count, crc32)
of the text that it continues, so that an answer that comes late is told from one that is awaited.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from specc.errors import RequestError
from specc.runtime.manifest import Manifest

MAGIC, VERSION = b"SPDR", 1
MOST_TOKENS = 8192
"""Tokens that one frame carries; a longer text comes in several."""
MOST_DRAFTS = 64
MOST_TEXT = 1 << 24
"""Tokens of a text."""

_HEAD = struct.Struct("<4sBB2xQ")  # magic, version, kind; text or nonce
_HELLO = struct.Struct("<32sI")  # vocabulary, token ids
_TEXT = struct.Struct("<IIIHdq")  # start, count, crc, k, temperature, seed
_DRAFT = struct.Struct("<II")  # count, crc
MOST_BYTES = _HEAD.size + _TEXT.size + 4 * MOST_TOKENS


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    """Both ways, first: whose tokens they are. Answered by one, or by REFUSED."""
    REFUSED = 2
    """The other end has another vocabulary, no room, or was sent what is no frame; the connection ends."""
    PROPOSE = 3
    """Tokens of a text from `start` on; with k > 0, a draft of so many is asked for."""
    DRAFT = 4
    """The answer; it may have fewer tokens, or none."""
    LOST = 5
    """The other answer: the text is not known so far; it has to be sent from 0 on."""
    CLOSE = 6
    """The text has ended."""
    PING = 7
    PONG = 8


class Reason(IntEnum):
    """Why a connection is refused."""

    VOCABULARY = 1
    FULL = 2
    FRAME = 3


@dataclass(frozen=True)
class Vocabulary:
    """Whose tokens: a digest of the compiled tokenizer, and how many ids the model has (it may pad them)."""

    digest: bytes
    size: int

    @classmethod
    def of(cls, manifest: Manifest) -> Vocabulary:
        """An artifact's. Raises RequestError (SPECC-E0605) if it has no tokenizer."""
        entry = manifest.files.get("tokenizer.bin")
        if entry is None:
            raise RequestError(
                "SPECC-E0605", "the artifact has no tokenizer, so nobody can tell whose tokens it says",
                where=manifest.name, cure="compile it from a model that has one",
            )  # fmt: skip
        return cls(hashlib.sha256(entry.sha256.encode()).digest(), manifest.model.vocab_size)


@dataclass(frozen=True)
class Frame:
    """A frame that was read; which fields count, its kind says."""

    kind: Kind
    text: int = 0
    start: int = 0
    count: int = 0
    crc: int = 0
    k: int = 0
    temperature: float = 0.0
    seed: int = 0
    tokens: Sequence[int] = ()
    vocabulary: Vocabulary | None = None
    reason: int = 0


def checksum(tokens: array[int], before: int = 0) -> int:
    """Crc32 of a text's tokens, `before` that of those before them."""
    return zlib.crc32(tokens.tobytes(), before)


def hello(vocabulary: Vocabulary) -> bytes:
    """Whose tokens this end says."""
    return _head(Kind.HELLO) + _HELLO.pack(vocabulary.digest, vocabulary.size)


def refused(reason: Reason) -> bytes:
    """Why the connection ends."""
    return _head(Kind.REFUSED) + bytes([reason])


def propose(
    text: int, start: int, count: int, crc: int, tokens: array[int], k: int = 0,
    temperature: float = 0.0, seed: int = 0,
) -> bytes:  # fmt: skip
    """`tokens` are text[start:count], and `crc` is of text[:count]."""
    return (
        _head(Kind.PROPOSE, text)
        + _TEXT.pack(start, count, crc, k, temperature, seed)
        + tokens.tobytes()
    )


def draft(text: int, count: int, crc: int, tokens: array[int]) -> bytes:
    """What may follow text[:count], whose checksum is `crc`."""
    return _head(Kind.DRAFT, text) + _DRAFT.pack(count, crc) + tokens.tobytes()


def lost(text: int, count: int, crc: int) -> bytes:
    """That text[:count] does not join on to what is known."""
    return _head(Kind.LOST, text) + _DRAFT.pack(count, crc)


def close(text: int) -> bytes:
    """That the text has ended."""
    return _head(Kind.CLOSE, text)


def ping(nonce: int) -> bytes:
    """A question whose answer is `pong` of the same number."""
    return _head(Kind.PING, nonce)


def pong(nonce: int) -> bytes:
    """The answer."""
    return _head(Kind.PONG, nonce)


def read(data: bytes) -> Frame:
    """The frame in a packet; raises RequestError (SPECC-E0718) if it is none."""
    if not _HEAD.size <= len(data) <= MOST_BYTES:
        raise _no_frame(f"{_HEAD.size} to {MOST_BYTES} bytes", f"{len(data)}")
    magic, version, kind, text = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise _no_frame(f"{MAGIC!r} of version {VERSION}", f"{magic!r} of version {version}")
    body = data[_HEAD.size :]
    if kind == Kind.HELLO:
        _exactly(body, _HELLO.size)
        return Frame(Kind.HELLO, vocabulary=Vocabulary(*_HELLO.unpack(body)))
    if kind == Kind.REFUSED:
        _exactly(body, 1)
        return Frame(Kind.REFUSED, reason=body[0])
    if kind == Kind.PROPOSE:
        return _read_propose(text, body)
    if kind in (Kind.DRAFT, Kind.LOST):
        return _read_answer(Kind(kind), text, body)
    if kind in (Kind.CLOSE, Kind.PING, Kind.PONG):
        _exactly(body, 0)
        return Frame(Kind(kind), text)
    raise _no_frame("a kind that is known", str(kind))


def _read_propose(text: int, body: bytes) -> Frame:
    if len(body) < _TEXT.size:
        raise _no_frame(f"{_TEXT.size} bytes or more", str(len(body)))
    start, count, crc, k, temperature, seed = _TEXT.unpack_from(body)
    if not (0 <= start <= count <= MOST_TEXT and k <= MOST_DRAFTS and 0 <= temperature < 1e6):
        found = f"{start} to {count}, k {k}, temperature {temperature}"
        raise _no_frame("a text, a draft and a temperature within bounds", found)
    _exactly(body, _TEXT.size + 4 * (count - start))
    tokens = array("I", body[_TEXT.size :])
    return Frame(Kind.PROPOSE, text, start, count, crc, k, temperature, seed, tokens)


def _read_answer(kind: Kind, text: int, body: bytes) -> Frame:
    most = MOST_DRAFTS if kind == Kind.DRAFT else 0
    size = len(body) - _DRAFT.size
    if not 0 <= size <= 4 * most or size % 4:
        raise _no_frame(f"at most {most} tokens", f"{size} bytes")
    count, crc = _DRAFT.unpack_from(body)
    return Frame(kind, text, count=count, crc=crc, tokens=array("I", body[_DRAFT.size :]))


def _head(kind: Kind, text: int = 0) -> bytes:
    return _HEAD.pack(MAGIC, VERSION, kind, text)


def _exactly(body: bytes, size: int) -> None:
    if len(body) != size:
        raise _no_frame(f"{size} bytes after the head", str(len(body)))


def _no_frame(expected: str, found: str) -> RequestError:
    return RequestError(
        "SPECC-E0718", "what came over the draft socket is no frame", expected=expected, found=found,
        cure="let both ends be of one version of specc",
    )  # fmt: skip
