"""A draft service under requests, in processes of their own: killed, stopped, restarted, lied to. No token changes."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import openai
import pytest

from bench.drafts import way_us
from specc import cli
from specc.draft_service import listen
from specc.errors import RequestError, SpeccError, UsageError
from specc.runtime import Artifact
from specc.runtime import draft_frames as frames
from specc.runtime.draft_client import DraftClient, RemoteText
from specc.runtime.draft_frames import Kind, Vocabulary
from specc.runtime.draft_health import PING_S
from specc.serve.policy import Dispatcher
from specc.serve.slots import Ask, Progress, SessionSlots
from tests.conftest import artifact_of
from tests.faults.helpers import altered, plain
from tests.tools.serve.conftest import Server, running
from tests.tools.serve.drafting import drafting, eventually
from tests.tools.serve.test_http import ask

PROMPTS = [[7, 21, 40, 99, 150, 7, 21], [5, 6], [9] * 30]
SAMPLED: dict[str, Any] = {"temperature": 0.5, "seed": 11}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "drafts"


@pytest.fixture(params=[5.0], ids=["patient"])
def client(
    request: pytest.FixtureRequest, artifact: Artifact, tiny_artifact: Path, path: Path
) -> Iterator[DraftClient]:
    """Of a service that holds the same model, so that every draft is right."""
    with drafting(tiny_artifact, path, "--threads", 1) as process:
        made = DraftClient(path, artifact.manifest, deadline_s=20, ping_s=request.param)
        made.process = process  # type: ignore[attr-defined]
        yield made
        made.close()


PINGS = pytest.mark.parametrize("client", [PING_S], indirect=True, ids=["usual"])
"""As a server has them; where they do not matter, a busy machine may be late with them."""


class Texts:
    """Texts in slots of one server, turn by turn."""

    def __init__(self, artifact: Artifact, client: DraftClient, length: int = 120) -> None:
        dispatcher = Dispatcher(artifact.manifest, None, draft_service=True)
        self.slots = SessionSlots(artifact, 8, client, dispatcher)
        asks = [Ask(tuple(p), length, ignore_eos=True, num_speculative_tokens=4) for p in PROMPTS]
        asks += [
            Ask(tuple(p), length, ignore_eos=True, num_speculative_tokens=2, **SAMPLED)
            for p in PROMPTS
        ]
        self.said: dict[Any, list[int]] = {self.slots.open(ask): [] for ask in asks}
        self.wanted = [plain(artifact, p, length, **s) for s in ({}, SAMPLED) for p in PROMPTS]
        self.going = list(self.said)
        self.seen: list[Progress] = []

    def turn(self, count: int = 1000) -> list[Progress]:
        """What so many turns gave, or all that are left."""
        seen: list[Progress] = []
        for _ in range(count):
            if not self.going:
                break
            for slot, progress in self.slots.turn(list(self.going)):
                assert not isinstance(progress, SpeccError), progress
                seen.append(progress)
                self.said[slot] += progress.tokens
                if progress.finish:
                    self.going.remove(slot)
        return seen

    def check(self) -> None:
        """All have ended, with the tokens of plain decoding."""
        assert self.going == []
        assert [tuple(said) for said in self.said.values()] == self.wanted
        for slot in self.said:
            slot.close()


def test_drafts_of_the_same_model_are_right(artifact: Artifact, client: DraftClient) -> None:
    texts = Texts(artifact, client)
    seen = texts.turn()
    texts.check()
    drafted, accepted = (sum(getattr(p, n) for p in seen) for n in ("drafted", "accepted"))
    assert drafted == accepted > 300
    assert {p.method for p in seen if p.played} == {"remote"}
    assert client.counts.late == 0
    assert client.counts.answered > 100


@PINGS
def test_killed(artifact: Artifact, client: DraftClient, tiny_artifact: Path, path: Path) -> None:
    """In the middle of all texts; the artifact's own drafter goes on. Then another service takes its place."""
    texts = Texts(artifact, client)
    assert {p.method for p in texts.turn(6) if p.played} == {"remote"}
    assert len(texts.going) == 6
    client.process.kill()  # type: ignore[attr-defined]
    client.process.wait()  # type: ignore[attr-defined]
    lost = texts.turn(8)
    assert len([p for p in lost if p.fallback == "draft_lost"]) <= 1  # what it said before counts
    assert lost[-1].method == "ngram"
    assert not client.healthy
    with drafting(tiny_artifact, path, "--threads", 1):
        assert eventually(lambda: client.healthy)
        back = texts.turn()
        assert sum(p.accepted for p in back if p.method == "remote") > 0
    texts.check()


@PINGS
def test_stopped_and_continued(artifact: Artifact, client: DraftClient) -> None:
    """It holds its connections, and says nothing; later it says what nobody waits for any more."""
    client._fixed_s = 0.05
    texts = Texts(artifact, client)
    texts.turn(6)
    assert eventually(
        lambda: client.healthy
    )  # (on a busy machine it may have missed pings already)
    process = client.process  # type: ignore[attr-defined]
    process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{process.pid}/stat")
    assert eventually(lambda: stat.read_text().rsplit(") ", 1)[1].startswith("T"))
    before = client.counts.late
    stalled = texts.turn(2)
    late = [p for p in stalled if p.fallback == "timeout"]
    assert sum(p.late for p in late) > 0
    assert len([p for p in stalled if p.late]) == client.counts.late - before  # no round in between
    assert all(len(p.tokens) == 1 for p in late)  # the rounds were played without
    assert eventually(lambda: not client.healthy)
    own = texts.turn(3)
    assert {p.method for p in own} == {"ngram"}
    process.send_signal(signal.SIGCONT)
    assert eventually(lambda: client.healthy)
    client._passed = 0
    back = texts.turn()
    texts.check()
    assert client.counts.stale > 0
    assert sum(p.accepted for p in back if p.method == "remote") > 0


def test_more_texts_than_it_holds(artifact: Artifact, tiny_artifact: Path, path: Path) -> None:
    """The one asked for longest ago makes room, and is read again from its beginning when it is its turn."""
    with drafting(tiny_artifact, path, "--threads", 1, "--max-texts", 2):
        client = DraftClient(path, artifact.manifest, deadline_s=20, ping_s=5)
        texts = Texts(artifact, client, length=40)
        seen = texts.turn()
        texts.check()
        client.close()
    assert sum(p.accepted for p in seen) > 50


def test_another_server_gets_its_share(artifact: Artifact, tiny_artifact: Path, path: Path) -> None:
    """Of the texts that a service holds: the one asked for longest ago makes room, whoever asked."""
    right = [plain(artifact, prompt, 4) for prompt in PROMPTS]
    with drafting(tiny_artifact, path, "--threads", 1, "--max-texts", 2), ExitStack() as held:
        first, other = (DraftClient(path, artifact.manifest, deadline_s=20, ping_s=5) for _ in "12")
        held.callback(first.close)
        held.callback(other.close)
        full = [first.text(), first.text()]
        assert [tuple(text(p, 4)) for text, p in zip(full, PROMPTS, strict=False)] == right[:2]
        late = other.text()
        assert (tuple(late(PROMPTS[2], 4)), late.why) == (right[2], "")

        def again(texts: list[RemoteText], prompts: list[list[int]]) -> list[tuple[int, ...]]:
            return [tuple(t(p, 4)) for _ in range(20) for t, p in zip(texts, prompts, strict=True)]

        with ThreadPoolExecutor(2) as both:  # at once, and one text more than there is room for
            asked = both.submit(again, full, PROMPTS[:2]), both.submit(again, [late], PROMPTS[2:])
        assert asked[0].result() == right[:2] * 20
        assert asked[1].result() == right[2:] * 20


def test_taken_back_and_gone_on(artifact: Artifact, client: DraftClient) -> None:
    """The service follows a text that is rewound, and keeps no draft that was not taken."""
    wanted = plain(artifact, PROMPTS[0], 30)
    text = client.text()
    told = [*PROMPTS[0], *wanted]
    for end in (7, 12, 8, 20, 7, 9):
        assert tuple(text(told[:end], 4)) == tuple(told[end : end + 4])
    other = [*PROMPTS[0], 9, 9]
    assert tuple(text(other, 4)) == plain(artifact, other, 4)
    assert tuple(text(told[:20], 4)) == tuple(told[20:24])
    size = artifact.manifest.model.max_model_len
    assert list(text([9] * (size + 5), 4)) == []  # beyond what it can hold
    assert list(text([10**6], 4)) == []  # a word that only the target has
    assert tuple(text(told[:20], 4)) == tuple(told[20:24])
    assert client.counts.late == 0


def test_another_tokenizer(
    artifact: Artifact, tiny_artifact: Path, tmp_path: Path, path: Path
) -> None:
    def other(manifest: dict[str, Any]) -> None:
        manifest["files"]["tokenizer.bin"]["sha256"] = "0" * 64

    strange = altered(tiny_artifact, tmp_path / "a.specc", other)
    with drafting(strange, path, "--threads", 1):
        with pytest.raises(RequestError, match="SPECC-E0720") as refused:
            DraftClient(path, artifact.manifest)
        assert "another tokenizer" in str(refused.value)


def test_packets_of_anybody(artifact: Artifact, client: DraftClient, path: Path) -> None:
    """Each ends its connection with a refusal, if it is no frame, and no other one."""
    rng = random.Random(1)
    hello = frames.hello(Vocabulary.of(artifact.manifest))
    good = frames.propose(1, 0, 2, 0, array("I", [5, 6]), 4)
    refusals = 0
    for turn in range(60):
        packet = bytearray(rng.choice([good, hello, frames.ping(3), frames.lost(1, 2, 3)]))
        for _ in range(turn % 4):
            packet[rng.randrange(len(packet))] = rng.randrange(256)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
            end.settimeout(5)
            end.connect(str(path))
            if turn % 3:
                end.send(hello)
                assert frames.read(end.recv(1000)).kind == Kind.HELLO
            end.send(bytes(packet)[: rng.randrange(1, 60) if turn % 5 == 0 else None])
            end.shutdown(socket.SHUT_WR)
            while data := end.recv(1000):
                refusals += frames.read(data).kind == Kind.REFUSED
    assert refusals > 20
    wanted = plain(artifact, PROMPTS[0], 4)
    assert tuple(client.text()(PROMPTS[0], 4)) == wanted


def test_too_many_connections(client: DraftClient, artifact: Artifact, path: Path) -> None:
    ends = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(14)]
    try:
        for end in ends:
            end.connect(str(path))
        with pytest.raises(RequestError, match="SPECC-E0720") as refused:
            DraftClient(path, artifact.manifest)
        assert "no room" in str(refused.value)
    finally:
        for end in ends:
            end.close()


def test_it_ends_in_order(client: DraftClient, path: Path) -> None:
    process = client.process  # type: ignore[attr-defined]
    process.terminate()
    assert process.wait(60) == 0
    assert not path.exists()


def test_where_it_listens(tmp_path: Path, path: Path) -> None:
    """In the place of a socket that nobody has, never of one that somebody has, or of a file."""
    with closing(listen(path)):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(UsageError, match="end the service that has it"):
            listen(path)
    listen(path).close()
    (tmp_path / "file").write_text("precious")
    for place, cure in (
        (tmp_path / "file", "choose another"), (tmp_path / "no" / "folder", "make the folder"),
        (tmp_path / ("x" * 120), "choose a shorter"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="SPECC-E0715") as refused:
            listen(place)
        assert refused.value.cure.startswith(cure)
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize(
    "flags",
    [
        ("--cores", "99999"),
        ("--cores", "1-"),
        ("--cores", "x"),
        ("--cores", "3-1"),
        ("--max-texts", "0"),
        ("--busy", "1.5"),
        ("--min-cores", "0"),
    ],
)
def test_flags_that_cannot_be(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, path: Path, flags: tuple[str, str]
) -> None:
    code = cli.main(["draft-service", str(tiny_artifact), "--socket", str(path), *flags])
    assert code == 2
    assert "SPECC-E0103" in capsys.readouterr().err


def test_on_a_core_of_its_own(tiny_artifact: Path, path: Path) -> None:
    with drafting(tiny_artifact, path, "--cores", "0") as process:
        status = Path(f"/proc/{process.pid}/status").read_text()
    assert "Cpus_allowed_list:\t0\n" in status


def served(server: Server) -> list[int]:
    """The token ids of one answer."""
    made = server.client().completions.create(
        model=server.model, prompt=PROMPTS[0], max_tokens=120, temperature=0,
        extra_body={"specc": True, "ignore_eos": True},
    )  # fmt: skip
    assert made.model_extra is not None
    told: list[int] = made.model_extra["specc"]["choices"][0]["token_ids"]
    return told


def gauges(server: Server) -> dict[str, float]:
    """What /metrics says, by name with its second label."""
    text = ask(server, "GET", "/metrics")[1]
    lines = re.findall(r'^specc:(\w+)\{(?:(\w+="\w+"),)?model_name="[^"]*"\} (\S+)$', text, re.M)
    return {f"{name} {label}".strip(): float(value) for name, label, value in lines}


@pytest.mark.parametrize("stalled", [False, True], ids=["killed", "stalled"])
def test_a_server_that_loses_its_drafts(
    artifact: Artifact, tiny_artifact: Path, path: Path, *, stalled: bool
) -> None:
    """While eight clients ask: all are answered, and rightly. It says so, and comes back."""
    wanted = list(plain(artifact, PROMPTS[0], 120))
    flags = ("--draft-socket", path, "--draft-deadline", 1, "--num-speculative-tokens", 4)
    with ExitStack() as held:
        first = held.enter_context(drafting(tiny_artifact, path, "--threads", 1))
        server = held.enter_context(running(tiny_artifact, *flags))
        with ThreadPoolExecutor(8) as clients:
            asked = [clients.submit(served, server) for _ in range(24)]
            assert eventually(lambda: gauges(server)["draft_service_answers"] > 30)
            first.send_signal(signal.SIGSTOP if stalled else signal.SIGKILL)
            assert [one.result() for one in asked] == [wanted] * 24
        assert eventually(lambda: gauges(server)["draft_service_healthy"] == 0)
        assert served(server) == wanted
        told = gauges(server)
        assert told['method_rounds_total method="remote"'] > 30
        assert told['method_rounds_total method="ngram"'] > 10
        assert ask(server, "GET", "/ready")[0] == 200
        if stalled:
            first.send_signal(signal.SIGCONT)
        else:
            held.enter_context(drafting(tiny_artifact, path, "--threads", 1))
        assert eventually(lambda: gauges(server)["draft_service_healthy"] == 1)
        assert served(server) == wanted


def test_a_server_that_refuses_without_its_drafts(tiny_artifact: Path, path: Path) -> None:
    flags = ("--draft-socket", path, "--on-draft-loss", "503")
    with (
        drafting(tiny_artifact, path, "--threads", 1) as process,
        running(tiny_artifact, *flags) as server,
    ):
        assert len(served(server)) == 120
        process.kill()
        assert eventually(lambda: ask(server, "GET", "/ready")[0] == 503)
        with pytest.raises(openai.InternalServerError, match="SPECC-E0723") as refused:
            served(server)
        assert refused.value.status_code == 503
        assert ask(server, "GET", "/health")[0] == 200


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--draft-socket", "/nowhere/s"], "SPECC-E0719"), (["--on-draft-loss", "503"], "SPECC-E0104"),
        (["--draft-deadline", "1"], "SPECC-E0104"), (["--draft-socket", "s", "--draft-deadline", "0"], "SPECC-E0103"),
        (["--method-policy", "/nowhere/p"], "SPECC-E0721"), (["--on-draft-loss", "later"], "SPECC-E0103"),
    ],
)  # fmt: skip
def test_flags_of_serve(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, flags: list[str], code: str
) -> None:
    assert cli.main(["serve", str(tiny_artifact), "--port", "0", *flags]) in (1, 2)
    assert code in capsys.readouterr().err


def test_an_artifact_whose_rounds_take_no_drafts(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, tmp_path: Path
) -> None:
    document = json.loads((tiny_artifact / "manifest.json").read_text())
    plain = {"num_speculative_tokens": [0], "rounds": document["rounds"][:1]}
    (tmp_path / "manifest.json").write_text(json.dumps({**document, **plain}))
    assert cli.main(["serve", str(tmp_path), "--port", "0", "--draft-socket", "s"]) == 2
    assert "SPECC-E0725" in capsys.readouterr().err


@pytest.mark.parametrize("socket", [None, "grpc://127.0.0.1:0"])
def test_the_way_is_measured(tiny_artifact: Path, socket: str | None) -> None:
    found = way_us(tiny_artifact, count=20, socket=socket)
    assert set(found) == {"ping", "draft_1", "draft_4", "draft_8"}
    assert all(0 < times["median"] <= times["p99"] for times in found.values())


def test_the_graph_takes_over(
    tiny_model: Path, shared_folder: Path, tiny_artifact: Path, path: Path
) -> None:
    """An artifact that drafts in its graph leaves that to the service, and goes on by itself when it is killed."""
    graph = artifact_of("draft_model", tiny_model, shared_folder)
    with Artifact.load(graph) as opened, drafting(tiny_artifact, path, "--threads", 1) as process:
        client = DraftClient(path, opened.manifest, deadline_s=20, ping_s=5)
        texts = Texts(opened, client, length=60)
        first = texts.turn(6)
        process.kill()
        process.wait()
        then = texts.turn()
        texts.check()
        client.close()
    assert {p.method for p in first if p.played} == {"remote"}
    assert sum(p.accepted for p in first) > 20
    assert {p.method for p in then} >= {"draft_model"}
    assert sum(p.drafted for p in then if p.method == "draft_model") > 0
    assert len([p for p in then if p.fallback == "draft_lost"]) <= 1
