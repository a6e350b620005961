"""A server of its own process, without torch, on a free port; and the same artifact here, to compare with."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import openai
import pytest

from specc.runtime import Artifact
from tests.tools.serve.processes import started


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
def running(artifact: Path, *flags: object, torch: bool = False) -> Iterator[Server]:
    with started("serve", artifact, "--port", 0, *flags, torch=torch) as (process, told):
        server = Server(process, told["url"], told["model"], told["slots"])
        try:
            yield server
        finally:
            for client in server.clients:
                client.close()


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
    return partial(running, tiny_artifact)
