"""A server of its own process, without torch, on a free port; and the same artifact here, to compare with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from specc.runtime import Artifact

# Whoever imports torch gets an ImportError.
_SERVE = "import sys; sys.modules['torch'] = None; from specc.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    url: str
    model: str
    slots: int
    clients: list[openai.OpenAI] = field(default_factory=list)

    def client(self, key: str = "none") -> openai.OpenAI:
        """A client of its own, closed with the server."""
        url = f"{self.url}/v1"
        made = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)
        self.clients.append(made)
        return made


@contextmanager
def running(artifact: Path, *flags: object) -> Iterator[Server]:
    command = [sys.executable, "-c", _SERVE, "serve", artifact, "--port", 0, "--json", *flags]
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        server = Server(process, told["url"], told["model"], told["slots"])
        try:
            yield server
        finally:
            for client in server.clients:
                client.close()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def artifact(tiny_artifact: Path) -> Iterator[Artifact]:
    """Closed after each file: while it is open, others cannot choose its threads."""
    with Artifact.load(tiny_artifact) as opened:
        yield opened


@pytest.fixture(scope="session")
def server(tiny_artifact: Path) -> Iterator[Server]:
    """For all tests that leave it as it was: four texts at once, twenty may wait."""
    with running(tiny_artifact, "--max-sessions", 4, "--max-queue", 20, "--max-body", 5000) as told:
        yield told


@pytest.fixture
def start(tiny_artifact: Path) -> Callable[..., object]:
    """Another server, with flags of its own."""
    return lambda *flags: running(tiny_artifact, *flags)
