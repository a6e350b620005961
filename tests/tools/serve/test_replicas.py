"""Replicas behind one address, by Ray Serve; without it, which package is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import openai
import pytest

from specc import cli, flags
from specc.errors import UsageError
from specc.runtime import Artifact
from specc.serve.opening import Opening
from specc.serve.replicas import serve_replicas
from specc.serve.service import Settings
from tests.faults.helpers import plain

PROMPT = [7, 21, 40, 99, 150, 7, 21]
LENGTHS = [20 + n for n in range(24)]
HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.parametrize(("text", "replicas"), [("2", (2, 2)), ("1:4", (1, 4)), ("3:3", (3, 3))])
def test_how_many(text: str, replicas: tuple[int, int]) -> None:
    assert flags.replicas("--replicas", text) == replicas


@pytest.mark.parametrize("text", ["0", "0:2", "3:2", "x", "1:", ":2", "1:2:3", "-1", "99999", ""])
def test_how_many_it_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="SPECC-E0103"):
        flags.replicas("--replicas", text)


def test_without_its_package(
    tiny_artifact: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main(["serve", str(tiny_artifact), "--port", "0", "--replicas", "2", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "SPECC-E0701"
    assert error["cure"] == "pip install 'specc-compiler[ray]'"


@pytest.mark.parametrize(("replicas", "code"), [("9", "E0104"), ("1:9", "E0104"), ("1:8", "E0719")])
def test_more_than_a_draft_service_has_connections_for(
    tiny_artifact: Path, capsys: pytest.CaptureFixture[str], replicas: str, code: str
) -> None:
    """Two of its sixteen each. (The socket is looked for only where there are enough.)"""
    asked = ["--replicas", replicas, "--draft-socket", "/nowhere/s", "--state-memory", str(1 << 40)]
    assert cli.main(["serve", str(tiny_artifact), "--port", "0", *asked]) in (1, 2)
    assert f"SPECC-{code}" in capsys.readouterr().err


def test_no_cluster_is_joined(tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment names: what Ray is asked for is a new one, by the word that it has for that.

    (https://docs.ray.io/en/latest/ray-core/api/doc/ray.init.html, `address`.)
    """

    def init(**options: object) -> None:
        raise ConnectionError(f"asked for {options.get('address')}")

    ray = ModuleType("ray")
    ray.init, ray.serve = init, ModuleType("ray.serve")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    opening = Opening(tiny_artifact, 1, Settings("tiny", 1, 1, 1, 1.0))
    with pytest.raises(ConnectionError, match="asked for local"):
        serve_replicas(opening, "127.0.0.1", 0, (1, 1), 1.0, lambda: None)


def tokens_of(url: str) -> float:
    """What one of the replicas has given out."""
    with urllib.request.urlopen(f"{url}/metrics") as page:
        text = page.read().decode()
    return float(re.findall(r"^specc:generation_tokens_total{.*} (\S+)$", text, re.M)[0])


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: not run in continuous integration")
def test_two_of_them(tiny_artifact: Path) -> None:
    """Both answer, with the tokens that the artifact says alone, on no foreign cluster; and finish what they began."""
    command = [
        sys.executable,
        "-m",
        "specc",
        "serve",
        tiny_artifact,
        "--port",
        0,
        "--json",
        "--replicas",
        2,
    ]
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=os.environ | {"RAY_ADDRESS": "127.0.0.1:1"},
    )  # fmt: skip
    with process, Artifact.load(tiny_artifact) as artifact:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            with openai.OpenAI(base_url=told["url"] + "/v1", api_key="none") as client:

                def ask(length: int) -> str:
                    made = client.completions.create(
                        model=told["model"], prompt=PROMPT, max_tokens=length, temperature=0,
                        extra_body={"ignore_eos": True},
                    )  # fmt: skip
                    return made.choices[0].text

                with ThreadPoolExecutor(4) as clients:
                    answers = list(clients.map(ask, LENGTHS))
                # Each has counters of its own, and one of them is asked.
                counted = {tokens_of(told["url"]) for _ in range(40)}

                begun = client.completions.create(
                    model=told["model"], prompt=PROMPT, max_tokens=240, temperature=0, n=8,
                    stream=True, extra_body={"ignore_eos": True},
                )  # fmt: skip
                texts = [""] * 8
                for number, piece in enumerate(begun):
                    if number == 0:
                        process.send_signal(signal.SIGTERM)
                    for choice in piece.choices:
                        texts[choice.index] += choice.text
            for length, text in zip(LENGTHS, answers, strict=True):
                assert text == artifact.detokenize(plain(artifact, PROMPT, length))
            assert len(counted) == 2
            assert sum(counted) == sum(LENGTHS)
            assert texts == [artifact.detokenize(plain(artifact, PROMPT, 240))] * 8
            assert process.wait(60) == 0
        finally:
            process.kill()
