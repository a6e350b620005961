"""The asking side, against a peer whose answers are scripted: late, stale, foreign, or none at all."""

from __future__ import annotations

import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from specc.errors import RequestError
from specc.runtime import Manifest
from specc.runtime import draft_frames as frames
from specc.runtime.draft_client import LATE, LOST, PASSED, DraftClient
from specc.runtime.draft_frames import Frame, Kind, Vocabulary
from specc.runtime.draft_health import GOODS, MISSES, Health

Script = Callable[[Frame], Iterable[bytes]]
"""What is sent back for a frame other than HELLO."""


@pytest.mark.parametrize("before", range(MISSES))
def test_health(before: int, caplog: pytest.LogCaptureFixture) -> None:
    """The state machine, step by step: three misses in a row, five answers in a row; each change is logged once."""
    health = Health("drafts.sock")
    for _ in range(before):
        health.miss()
    assert health.healthy
    health.good()
    for count in range(1, MISSES + 1):
        health.miss()
        assert health.healthy == (count < 3)
    for _ in range(4):
        health.good()
    health.miss()  # all over again
    for count in range(1, GOODS + 1):
        health.good()
        assert health.healthy == (count == 5)
    health.lost()
    health.lost()
    assert not health.healthy
    said = [r.getMessage().split(":")[0] for r in caplog.records]
    about = "the draft service drafts.sock is "
    assert said == [about + "lost", about + "asked again", about + "lost"]


@pytest.fixture
def manifest() -> Manifest:
    """As much of one as a client looks at."""
    entry = SimpleNamespace(sha256="ab" * 32)
    files, model = {"tokenizer.bin": entry}, SimpleNamespace(vocab_size=100)
    return SimpleNamespace(files=files, model=model, name="tiny")  # type: ignore[return-value]


@pytest.fixture
def peer(tmp_path: Path, manifest: Manifest) -> Iterator[Callable[..., Path]]:
    """Starts a service that says what it is told to."""
    ends: list[socket.socket] = []

    def start(script: Script, vocabulary: Vocabulary | None = None) -> Path:
        path = tmp_path / "s"
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(str(path))
        listening.listen()
        ends.append(listening)

        def talk(end: socket.socket) -> None:
            with suppress(OSError):  # it has gone
                while data := end.recv(frames.MOST_BYTES):
                    frame = frames.read(data)
                    if frame.kind == Kind.HELLO:
                        end.send(frames.hello(vocabulary or Vocabulary.of(manifest)))
                    for answer in script(frame) if frame.kind != Kind.HELLO else ():
                        end.send(answer)

        def accept() -> None:
            while True:
                try:
                    end, _ = listening.accept()
                except OSError:
                    return
                ends.append(end)
                threading.Thread(target=talk, args=(end,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return path

    yield start
    for end in ends:
        with end, suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def said(frame: Frame, *tokens: int) -> bytes:
    return frames.draft(frame.text, frame.count, frame.crc, array("I", tokens))


def well(frame: Frame) -> list[bytes]:
    """Pongs, and drafts that count on from the text's length."""
    if frame.kind == Kind.PING:
        return [frames.pong(frame.text)]
    if frame.kind == Kind.PROPOSE and frame.k:
        return [said(frame, *range(frame.count, frame.count + frame.k))]
    return []


@pytest.fixture
def client(manifest: Manifest) -> Iterator[Callable[..., DraftClient]]:
    made: list[DraftClient] = []

    def connect(path: Path, **options: float) -> DraftClient:
        made.append(DraftClient(path, manifest, **options))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def test_a_draft(peer: Callable[..., Path], client: Callable[..., DraftClient]) -> None:
    text = client(peer(well), deadline_s=5).text()
    assert (list(text([1, 2, 3], 2)), text.why) == ([3, 4], "")


def test_only_what_is_new_is_sent(
    peer: Callable[..., Path], client: Callable[..., DraftClient]
) -> None:
    asked: list[tuple[int, list[int], int]] = []

    def script(frame: Frame) -> list[bytes]:
        if frame.kind == Kind.PROPOSE:
            asked.append((frame.start, list(frame.tokens), frame.k))
        return well(frame)

    text = client(peer(script), deadline_s=5).text()
    text.prepare([1, 2])
    text([1, 2, 3], 2)
    text([1, 2, 3, 8, 9], 4)
    assert asked == [(0, [1, 2], 0), (2, [3], 2), (3, [8, 9], 4)]
    asked.clear()
    long = list(range(90)) * 200
    text([1, 2, 3, 8, 9, *long], 1)
    assert [(start, k) for start, _, k in asked] == [(5, 0), (8197, 0), (16389, 1)]
    assert [token for _, tokens, _ in asked for token in tokens] == long


def test_answers_to_other_questions_are_dropped(
    peer: Callable[..., Path], client: Callable[..., DraftClient]
) -> None:
    """Of another text, of this one some tokens ago, and of as many tokens that were others."""

    def script(frame: Frame) -> list[bytes]:
        if frame.kind != Kind.PROPOSE:
            return well(frame)
        wrong = array("I", [66])
        return [
            frames.draft(frame.text + 1, frame.count, frame.crc, wrong),
            frames.draft(frame.text, frame.count - 1, frame.crc, wrong),
            frames.draft(frame.text, frame.count, frame.crc ^ 1, wrong),
            *well(frame),
        ]

    asking = client(peer(script), deadline_s=5)
    assert list(asking.text()([1, 2, 3], 2)) == [3, 4]
    assert asking.counts.stale == 3


def test_a_draft_that_comes_too_late(
    peer: Callable[..., Path], client: Callable[..., DraftClient]
) -> None:
    """It is not waited for, and not taken for the next one's answer."""
    released = threading.Event()

    def script(frame: Frame) -> list[bytes]:
        if frame.kind == Kind.PROPOSE and frame.count == 3:
            released.wait(30)
        return well(frame)

    asking = client(peer(script), deadline_s=0.05)
    text = asking.text()
    begun = time.monotonic()
    assert (text([1, 2, 3], 2), text.why) == ((), LATE)
    assert 0.05 <= time.monotonic() - begun < 10
    released.set()
    asking._fixed_s = 20
    assert (list(text([1, 2, 3, 4], 2)), text.why) == ([4, 5], "")
    assert (asking.counts.late, asking.counts.stale, asking.counts.answered) == (1, 1, 1)


def test_one_that_is_always_late_is_asked_less_and_less(
    peer: Callable[..., Path], client: Callable[..., DraftClient]
) -> None:
    silent = client(peer(lambda f: well(f) if f.kind == Kind.PING else []), deadline_s=0.001)
    text, late = silent.text(), []
    for count in range(1, 101):
        assert list(text([1] * count, 2)) == []
        assert text.why in (LATE, PASSED)
        if text.why == LATE:
            late.append(count)
    assert late == [1, 2, 5, 12, 27, 58]  # 0, 2, 6, 14, 30 and 62 rounds are passed over
    assert silent.counts.late == 6


def test_one_that_says_more_than_there_is_time_for(
    peer: Callable[..., Path], client: Callable[..., DraftClient]
) -> None:
    """Answers to what nobody asked: once its time is over, neither a draft nor a ping reads on in them."""
    sent = {kind: threading.Event() for kind in (Kind.PROPOSE, Kind.PING)}

    def script(frame: Frame) -> Iterator[bytes]:
        if not sent[frame.kind].is_set():
            wrong = said(frame, 1)[:16] + bytes(8)
            yield from [frames.pong(0) if frame.kind == Kind.PING else wrong] * 100
        sent[frame.kind].set()

    asking = client(peer(script), deadline_s=1e-9, ping_s=20)
    text = asking.text()
    text.prepare([1])
    assert sent[Kind.PROPOSE].wait(30)
    assert (text([1, 2, 3], 2), text.why) == ((), LATE)
    assert asking.counts.stale <= 1

    asking._ping_s = 0  # (the thread that pings waits for 20 s before)
    assert not asking._ping()
    assert sent[Kind.PING].wait(30)
    assert not asking._ping()
    assert asking._pings is not None
    left = 0
    while asking._pings.receive(0) is not None:
        left += 1
    assert left >= 98


def test_what_does_not_fit_is_not_late(
    peer: Callable[..., Path], client: Callable[..., DraftClient]
) -> None:
    """Nothing was asked, so nothing is counted as late; texts that ended are told of once there is room."""
    reading, ended = threading.Event(), set[int]()

    def script(frame: Frame) -> list[bytes]:
        if frame.kind == Kind.PROPOSE:
            reading.wait(30)
        if frame.kind == Kind.CLOSE:
            ended.add(frame.text)
        return well(frame)

    asking = client(peer(script), deadline_s=5, ping_s=1)
    texts = [asking.text() for _ in range(20)]
    for text in texts:
        text.prepare([1] * 5000)
    assert (list(asking.text()([1] * 100_000, 2)), asking.counts.late) == ([], 0)
    last = asking.text()
    assert (list(last([1] * 100_000, 2)), last.why, asking.counts.late) == ([], PASSED, 0)
    begun = {text.number for text in texts if text.sent}
    for text in texts:
        text.close()
    reading.set()
    until = time.monotonic() + 30
    while not ended >= begun and time.monotonic() < until:
        time.sleep(0.01)
    assert len(begun) > 1
    assert ended >= begun


def test_a_text_that_the_service_has_forgotten(
    peer: Callable[..., Path], client: Callable[..., DraftClient]
) -> None:
    forgetful = {"once": True}

    def script(frame: Frame) -> list[bytes]:
        if frame.kind == Kind.PROPOSE and frame.start > 0 and forgetful.pop("once", False):
            return [frames.lost(frame.text, frame.count, frame.crc)]
        return well(frame)

    text = client(peer(script), deadline_s=5).text()
    assert list(text([1, 2], 1)) == [2]
    assert list(text([1, 2, 3], 1)) == [3]


def test_ids_that_the_target_does_not_have(
    peer: Callable[..., Path], client: Callable[..., DraftClient]
) -> None:
    def script(frame: Frame) -> list[bytes]:
        return [said(frame, 5, 100)] if frame.kind == Kind.PROPOSE else well(frame)

    assert list(client(peer(script), deadline_s=5).text()([1], 2)) == [5]


def test_no_frame_ends_the_connection(
    peer: Callable[..., Path], client: Callable[..., DraftClient]
) -> None:
    """And nothing else; it is connected to again, and asked once pings are answered."""
    broken = {"once": True}

    def script(frame: Frame) -> list[bytes]:
        if frame.kind == Kind.PROPOSE and broken.pop("once", False):
            return [b"nonsense"]
        return well(frame)

    asking = client(peer(script), deadline_s=5, ping_s=0.1)
    text = asking.text()
    assert (text([1, 2], 1), text.why) == ((), LOST)
    until = time.monotonic() + 30
    while not asking.healthy and time.monotonic() < until:
        time.sleep(0.01)
    assert list(text([1, 2], 1)) == [2]


def test_unanswered_pings(peer: Callable[..., Path], client: Callable[..., DraftClient]) -> None:
    """The first three are not answered; after five that are, it is asked again."""
    made: list[DraftClient] = []
    healthy: list[bool] = []

    def script(frame: Frame) -> list[bytes]:
        healthy.append(made[0].healthy)
        return well(frame) if len(healthy) > 3 else []

    made.append(client(peer(script), deadline_s=5, ping_s=0.1))
    until = time.monotonic() + 30
    while (len(healthy) < 4 or not made[0].healthy) and time.monotonic() < until:
        time.sleep(0.01)
    assert made[0].healthy
    assert len(healthy) >= 8  # (more on a machine that is late with an answer)
    assert healthy[:8] == [True] * 3 + [False] * 5


def test_nobody_there(tmp_path: Path, manifest: Manifest) -> None:
    with pytest.raises(RequestError, match="SPECC-E0719"):
        DraftClient(tmp_path / "none", manifest)


def test_another_vocabulary(peer: Callable[..., Path], manifest: Manifest) -> None:
    path = peer(well, Vocabulary(b"\0" * 32, 100))
    with pytest.raises(RequestError, match="SPECC-E0720"):
        DraftClient(path, manifest)


def test_the_deadline_is_what_drafts_are_worth(
    peer: Callable[..., Path], client: Callable[..., DraftClient]
) -> None:
    """As long as plain decoding takes for the drafts that will be kept."""
    asking = client(peer(well))
    assert asking.deadline_s(4) == 0.05  # nothing is known yet
    asking.learn(0.02, drafted=4, accepted=4)
    assert asking.deadline_s(4) == pytest.approx(0.08)
    asking.learn(0.01)  # the first that is plain
    assert asking.deadline_s(4) == pytest.approx(0.04)
    for _ in range(500):
        asking.learn(0.03, drafted=4, accepted=2)
    assert asking.deadline_s(4) == pytest.approx(0.02)
    for _ in range(500):
        asking.learn(0.03, drafted=4, accepted=0)
    assert asking.deadline_s(4) == pytest.approx(0.01)


def test_asked_ahead(peer: Callable[..., Path], client: Callable[..., DraftClient]) -> None:
    """The answer to one text may come while another one waits; it is asked again only for more drafts."""
    asked: list[tuple[int, int, int]] = []

    def script(frame: Frame) -> list[bytes]:
        if frame.kind == Kind.PROPOSE:
            asked.append((frame.text, frame.count, frame.k))
        return well(frame)

    both = client(peer(script), deadline_s=5)
    one, other = both.text(), both.text()
    one.asked = other.asked = 2
    one.ahead([1, 2, 3])
    other.ahead([1, 2, 3, 4])
    assert list(other([1, 2, 3, 4], 2)) == [4, 5]
    assert list(one([1, 2, 3], 2)) == [3, 4]
    assert asked == [(1, 3, 2), (2, 4, 2)]
    one.ahead([1, 2, 3, 4])
    assert list(one([1, 2, 3, 4], 1)) == [4]
    assert len(asked) == 3
    one.ahead([1, 2, 3, 4, 5])
    assert list(one([1, 2, 3, 4, 5], 3)) == [5, 6, 7]
    assert asked[3:] == [(1, 5, 1), (1, 5, 3)]
    one.ahead([1, 2, 3, 4, 5, 6])  # of which nothing comes
    assert list(one([1, 2, 3, 4, 5, 9], 3)) == [6, 7, 8]
    assert both.counts.stale == 2
    one.close()
    assert list(other([1, 2, 3, 4, 5], 2)) == [5, 6]
