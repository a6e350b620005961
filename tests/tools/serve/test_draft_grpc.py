"""A draft service over gRPC: the same conversations, with certificates where it is another machine's."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
import trustme
from google.protobuf.wrappers_pb2 import BytesValue

from specc import cli
from specc.draft_service import MOST_CONNECTIONS, listen
from specc.errors import RequestError, SpeccError, UsageError
from specc.runtime import Artifact, draft_address
from specc.runtime import draft_frames as frames
from specc.runtime.draft_channel import Channel
from specc.runtime.draft_client import CONNECT_S, DraftClient
from specc.runtime.draft_frames import Kind, Vocabulary
from tests.faults.helpers import plain
from tests.tools.serve.conftest import running
from tests.tools.serve.drafting import drafting, eventually
from tests.tools.serve.processes import started
from tests.tools.serve.test_draft_service import PROMPTS, Texts, gauges, served


@pytest.fixture(scope="module")
def port() -> int:
    """One that was free; a service that is started anew takes it again."""
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        return int(asking.getsockname()[1])


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of certificates: `ours` and `same` of one authority, `other` of another."""
    found = {}
    ours = trustme.CA()
    for name, authority in (("ours", ours), ("same", ours), ("other", trustme.CA())):
        folder = found[name] = tmp_path_factory.mktemp(name)
        shown = authority.issue_cert("localhost", "127.0.0.1")
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        shown.private_key_pem.write_to_path(str(folder / "key.pem"))
        for blob in shown.cert_chain_pems:
            blob.write_to_path(str(folder / "cert.pem"), append=True)
    return found


@pytest.fixture
def talks(tiny_artifact: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    with drafting(tiny_artifact, f"grpc://127.0.0.1:{port}", "--threads", 1) as process:
        yield process


def test_killed_and_started_anew(artifact: Artifact, tiny_artifact: Path, port: int) -> None:
    """Drafts are right; without the service texts go on, and it is asked again once it is back. No token changes."""
    where = f"grpc://127.0.0.1:{port}"
    with drafting(tiny_artifact, where, "--threads", 1) as process:
        client = DraftClient(draft_address.read(where), artifact.manifest, deadline_s=20, ping_s=5)
        texts = Texts(artifact, client)
        first = texts.turn(6)
        assert {p.method for p in first if p.played} == {"remote"}
        drafted, accepted = (sum(getattr(p, n) for p in first) for n in ("drafted", "accepted"))
        assert drafted == accepted > 50
        process.kill()
        process.wait()
    lost = texts.turn(5)
    assert lost[-1].method == "ngram"
    assert not client.healthy
    client._ping_s = 0.2
    with drafting(tiny_artifact, where, "--threads", 1):
        assert eventually(lambda: client.healthy)
        back = texts.turn()
        assert sum(p.accepted for p in back if p.method == "remote") > 0
    texts.check()
    client.close()


@pytest.mark.usefixtures("talks")
def test_a_server_asks_it(artifact: Artifact, tiny_artifact: Path, port: int) -> None:
    flags = (
        "--draft-socket",
        f"grpc://localhost:{port}",
        "--draft-deadline",
        10,
        "--num-speculative-tokens",
        4,
    )
    with running(tiny_artifact, *flags) as server:
        assert served(server) == list(plain(artifact, PROMPTS[0], 120))
        assert gauges(server)["draft_service_answers"] > 10


@pytest.mark.usefixtures("talks")
def test_what_is_no_frame(artifact: Artifact, port: int) -> None:
    """Each ends its connection with a refusal, or its stream with an error; others go on."""
    hello = frames.hello(Vocabulary.of(artifact.manifest))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        talk = channel.stream_stream("/specc.Drafts/Talk")

        def told(*messages: bytes) -> list[Kind]:
            try:
                return [
                    frames.read(BytesValue.FromString(m).value).kind for m in talk(iter(messages))
                ]
            except grpc.RpcError:
                return []

        good, ping = (BytesValue(value=f).SerializeToString() for f in (hello, frames.ping(7)))
        assert told(good, ping) == [Kind.HELLO, Kind.PONG]
        assert told(good, BytesValue(value=b"nothing").SerializeToString()) == [
            Kind.HELLO,
            Kind.REFUSED,
        ]
        assert told(BytesValue(value=bytes(40)).SerializeToString()) == [Kind.REFUSED]
        assert told(good, b"\xff\xff") in ([Kind.HELLO], [])  # no message at all
        assert told(BytesValue(value=bytes(1 << 20)).SerializeToString()) == []
        assert told(ping) == [Kind.REFUSED]  # before a greeting
        assert told(good, ping) == [Kind.HELLO, Kind.PONG]


@pytest.mark.usefixtures("talks")
def test_too_many(artifact: Artifact, port: int) -> None:
    address = draft_address.read(f"grpc://127.0.0.1:{port}")
    vocabulary = Vocabulary.of(artifact.manifest)
    open_ = [Channel.connect(address, vocabulary, CONNECT_S) for _ in range(MOST_CONNECTIONS)]
    with pytest.raises(RequestError, match="no room"):
        Channel.connect(address, vocabulary, CONNECT_S)
    for channel in open_:
        channel.close()
    assert eventually(lambda: _connects(address, vocabulary))


def test_another_tokenizer(artifact: Artifact, talks: subprocess.Popen[str], port: int) -> None:
    strange = Vocabulary(bytes(32), artifact.manifest.model.vocab_size)
    address = draft_address.read(f"grpc://127.0.0.1:{port}")
    with pytest.raises(RequestError, match="another tokenizer"):
        Channel.connect(address, strange, CONNECT_S)
    talks.terminate()
    assert talks.wait(60) == 0  # in order, although somebody was connected


def test_certificates(artifact: Artifact, tiny_artifact: Path, identities: dict[str, Path]) -> None:
    """Only who shows one of the same authority is let in, and only such a service is believed."""
    vocabulary = Vocabulary.of(artifact.manifest)
    words = ("draft-service", tiny_artifact, "--threads", 1, "--socket", "grpc://0.0.0.0:0")
    with started(*words, "--tls", identities["ours"]) as (_, told):
        port = told["socket"].rpartition(":")[2]

        def connect(tls: Path | None) -> bool:
            return _connects(draft_address.read(f"grpc://localhost:{port}", tls), vocabulary)

        assert connect(identities["same"])
        assert not connect(identities["other"])
        assert not connect(None)
        channel = Channel.connect(
            draft_address.read(f"grpc://localhost:{port}", identities["same"]),
            vocabulary,
            CONNECT_S,
        )
        with closing(channel):
            channel.send(frames.propose(1, 0, 1, frames.checksum(array("I")), array("I", [5]), 2))
            answer = channel.receive(time.monotonic() + 60)
        assert answer is not None
        assert answer.kind in (Kind.DRAFT, Kind.LOST)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("grpc://", "E0727"), ("grpc://host", "E0727"), ("grpc://host:port", "E0727"), ("grpc://host:99999", "E0727"),
        ("grpc://me@localhost:1", "E0727"), ("grpc://localhost:1/path", "E0727"), ("grpc://[::1:5", "E0727"),
        ("grpc://10.0.0.1:5", "E0726"), ("grpc://example.com:5", "E0726"), ("grpc://0.0.0.0:5", "E0726"),
    ],
)  # fmt: skip
def test_addresses_that_cannot_be(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, text: str, code: str
) -> None:
    with pytest.raises(UsageError, match=code):
        draft_address.read(text)
    for words in (["draft-service", "--socket"], ["serve", "--draft-socket"]):
        assert cli.main([words[0], str(tiny_artifact), words[1], text]) == 2
        assert code in capsys.readouterr().err


def test_addresses_that_can(tmp_path: Path) -> None:
    assert draft_address.read("/run/x") == Path("/run/x")
    assert str(draft_address.read("grpc://[::1]:50051")) == "grpc://[::1]:50051"
    assert str(draft_address.read("grpc://example.com:1", tmp_path)) == "grpc://example.com:1"
    with pytest.raises(UsageError, match="E0727"):
        draft_address.read("/run/x", tmp_path)


def test_certificates_that_are_missing(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, tmp_path: Path
) -> None:
    flags = ["--socket", "grpc://0.0.0.0:0", "--tls", str(tmp_path)]
    assert cli.main(["draft-service", str(tiny_artifact), *flags]) == 2
    assert "SPECC-E0726" in capsys.readouterr().err
    for name in draft_address.FILES:
        (tmp_path / name).write_text("no certificate")
    assert cli.main(["draft-service", str(tiny_artifact), *flags]) == 2
    assert "SPECC-E0715" in capsys.readouterr().err


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = draft_address.read(f"grpc://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(UsageError, match="SPECC-E0715"):
            listen(address)


def test_nobody_there(artifact: Artifact) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = draft_address.read(f"grpc://127.0.0.1:{closed.getsockname()[1]}")
    with pytest.raises(RequestError, match="SPECC-E0719"):
        DraftClient(address, artifact.manifest)


def test_without_grpc(tiny_artifact: Path) -> None:
    code = "import sys; sys.modules['grpc'] = None; from specc.cli import main; sys.exit(main())"
    words = ["draft-service", str(tiny_artifact), "--socket", "grpc://localhost:0"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "SPECC-E0728" in done.stderr
    assert "specc-compiler[remote]" in done.stderr


def _connects(address: draft_address.Address, vocabulary: Vocabulary) -> bool:
    try:
        Channel.connect(address, vocabulary, CONNECT_S).close()
    except SpeccError:
        return False
    return True
