"""What it costs to draft elsewhere: the way to a draft service and back, and deciding who drafts a round."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from specc.errors import RequestError
from specc.runtime import Manifest, draft_address
from specc.runtime import draft_frames as frames
from specc.runtime.draft_address import Address
from specc.runtime.draft_channel import Channel
from specc.runtime.draft_client import CONNECT_S, DraftClient
from specc.runtime.draft_frames import Vocabulary
from specc.serve.policy import Decision, Facts, Policy, Rule, When

_NEVER = When(0, 1 << 30, 0, 1 << 30, 0.0, 1.0, True)
"""Seven conditions, of which the last fails: the rule that takes longest."""
_WARM = 20


def decision_us(rules: int, count: int = 2000) -> dict[str, float]:
    """Microseconds of a decision where none of so many rules holds, and the text is about to change over."""
    policy = Policy(tuple(Rule("mtp", _NEVER) for _ in range(rules)), "eagle", hold_rounds=1 << 30)
    decision = Decision()
    decision.method = "mtp"

    def decide() -> None:
        decision.next(policy, Facts(5000, 4, 0.5, draft_service=False))

    return _spread([1e6 * s for s in _times(decide, count)])


def way_us(
    artifact: Path, count: int = 300, socket: str | None = None
) -> dict[str, dict[str, float]]:
    """Microseconds to a service of `artifact` and back: a ping, and drafts of a text that grows by a token.

    `socket`: where it listens; None is a Unix socket.

    Raises RequestError (SPECC-E0719) if the service does not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        at = socket or str(Path(folder) / "drafts")
        command = [
            sys.executable,
            "-m",
            "specc",
            "draft-service",
            str(artifact),
            "--socket",
            at,
            "--json",
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            try:
                return _measured(process, artifact, count)
            finally:
                process.terminate()


def _measured(
    process: subprocess.Popen[bytes], artifact: Path, count: int
) -> dict[str, dict[str, float]]:
    assert process.stdout is not None
    told = json.loads(process.stdout.readline() or b"{}")
    if "socket" not in told:
        raise RequestError(
            "SPECC-E0719", "no draft service answers", where=str(artifact), found="it does not start",
            cure="start it first: specc draft-service ARTIFACT --socket PATH",
        )  # fmt: skip
    manifest, address = Manifest.read(artifact), draft_address.read(told["socket"])
    found = {"ping": _ping(address, manifest, count)}
    for k in (1, 4, 8):
        found[f"draft_{k}"] = _drafts(address, manifest, k, count)
    return found


def _ping(address: Address, manifest: Manifest, count: int) -> dict[str, float]:
    channel = Channel.connect(address, Vocabulary.of(manifest), CONNECT_S)

    def ask() -> None:
        channel.send(frames.ping(1))
        channel.receive(time.monotonic() + CONNECT_S)

    found = _spread([1e6 * s for s in _times(ask, count)])
    channel.close()
    return found


def _drafts(address: Address, manifest: Manifest, k: int, count: int) -> dict[str, float]:
    client = DraftClient(address, manifest, deadline_s=CONNECT_S)
    text, ids = client.text(), [1]
    most = manifest.model.max_model_len - k - 1

    def ask() -> None:
        if len(ids) >= most:
            del ids[1:]
        drafted = text(ids, k)
        ids.extend(drafted or [1])

    found = _spread([1e6 * s for s in _times(ask, count)])
    client.close()
    return found


def _times(call: Callable[[], None], count: int) -> list[float]:
    times = []
    for _ in range(_WARM + count):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times[_WARM:]


def _spread(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {"median": statistics.median(ordered), "p99": ordered[len(ordered) * 99 // 100]}
