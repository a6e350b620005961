"""Many clients of one `specc serve`, of whom some leave early: is any token lost or crossed, how long do they wait?"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

from specc import prompts
from specc.runtime import ADAPTIVE, Artifact

_LEAVES = 0.25
"""Part of the clients' requests that end before their answer does."""
_SEEDS = 6
_MINUTE = 60.0
_SOON = 30.0
"""Seconds within which a server must have noticed that nobody waits any more."""

Key = tuple[int, int]
"""What was asked: the number of a prompt, and a seed."""


@dataclass(frozen=True)
class Heard:
    """A whole answer: the ids it reports, and its pieces, joined. Seconds to the first piece and to the last."""

    key: Key
    tokens: tuple[int, ...]
    text: str
    first_s: float
    total_s: float


@dataclass(frozen=True)
class Right:
    """What the artifact says alone."""

    tokens: tuple[int, ...]
    text: str


@dataclass
class Phase:
    """What all clients heard while they asked for one K."""

    k: int
    seconds: float = 0
    heard: list[Heard] = field(default_factory=list)
    left: list[tuple[Key, str]] = field(default_factory=list)
    """The pieces until then."""
    cut: int = 0
    """Streams that ended without their report."""
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def asked(self) -> set[Key]:
        """Whatever was asked, heard to its end or not."""
        return {heard.key for heard in self.heard} | {key for key, _ in self.left}

    def as_json(self, right: Mapping[Key, Right]) -> dict[str, Any]:
        """`wrong`: answers that are not in tokens and text what the artifact says alone; of who left, a beginning."""
        wrong = sum(Right(h.tokens, h.text) != right[h.key] for h in self.heard)
        wrong += sum(not right[key].text.startswith(text) for key, text in self.left)
        return {
            "num_speculative_tokens": self.k, "seconds": self.seconds, "answers": len(self.heard),
            "left": len(self.left), "cut": self.cut, "refused": self.refused, "wrong": wrong,
            "tokens_per_s": sum(len(h.tokens) for h in self.heard) / self.seconds,
            "first_token_s": _shares([h.first_s for h in self.heard]),
            "total_s": _shares([h.total_s for h in self.heard]),
        }  # fmt: skip


def load(
    artifact: Path, clients: int, seconds: float, max_tokens: int, threads: int
) -> dict[str, Any]:
    """Half of the time plain, half with adaptive K; resident bytes of the server, the most in each minute.

    `unfinished`: requests that the server still had when nobody waited for one any more.
    """
    flags = ["--max-queue", str(clients), "--threads", str(threads), "--timeout", "0"]
    with Artifact.load(artifact, threads) as engine:
        texts = [p.ids(engine, max_tokens) for p in prompts.built_in()]
        with _server(artifact, flags) as (process, told):
            phases, unfinished, half = [], [], seconds / 2
            with _watched(process.pid) as memory:
                for k in (0, ADAPTIVE):
                    phases.append(asyncio.run(_phase(told, texts, clients, half, max_tokens, k)))
                    unfinished.append(_unfinished(told["url"]))
        right = {}
        for text, seed in phases[0].asked | phases[1].asked:
            alone = engine.generate(
                texts[text], max_tokens=max_tokens, temperature=_temperature(seed), seed=seed, ignore_eos=True,
            )  # fmt: skip
            right[text, seed] = Right(alone.token_ids, engine.detokenize(alone.token_ids))
    return {
        "clients": clients, "slots": told["slots"], "resident_bytes": _by_minute(memory), "unfinished": unfinished,
        "plain": phases[0].as_json(right), "speculative": phases[1].as_json(right),
    }  # fmt: skip


def passed(found: Mapping[str, Any]) -> bool:
    """Whether every request of `load` was answered to its end or given up, and rightly."""
    bad = ("wrong", "cut", "refused")
    return not any(found["unfinished"]) and not any(
        found[phase][what] for phase in ("plain", "speculative") for what in bad
    )


async def _phase(
    told: dict[str, Any], texts: Sequence[Sequence[int]], clients: int, seconds: float, max_tokens: int, k: int
) -> Phase:  # fmt: skip
    phase = Phase(k)
    began = time.monotonic()
    async with openai.AsyncOpenAI(
        base_url=f"{told['url']}/v1", api_key="none", max_retries=0, timeout=None
    ) as client:

        async def talk(number: int) -> None:
            noise = random.Random(number)
            while time.monotonic() < began + seconds:
                text, seed = noise.randrange(len(texts)), noise.randrange(_SEEDS)
                stays = None if noise.random() >= _LEAVES else noise.randrange(1, max_tokens // 2)
                asked = time.monotonic()
                try:
                    stream = await client.completions.create(
                        model=told["model"], prompt=list(texts[text]), max_tokens=max_tokens, seed=seed,
                        temperature=_temperature(seed), stream=True,
                        extra_body={"specc": True, "ignore_eos": True, "num_speculative_tokens": k},
                    )  # fmt: skip
                    first, pieces, report = 0.0, [], None
                    async for piece in stream:
                        first = first or time.monotonic() - asked
                        report = getattr(piece, "specc", None)
                        pieces += [choice.text for choice in piece.choices]
                        if len(pieces) == stays:
                            break
                    heard = "".join(pieces)
                    if len(pieces) == stays:
                        await stream.close()
                        phase.left.append(((text, seed), heard))
                    elif report is None:
                        phase.cut += 1
                    else:
                        tokens = tuple(report["choices"][0]["token_ids"])
                        total = time.monotonic() - asked
                        phase.heard.append(Heard((text, seed), tokens, heard, first, total))
                except openai.APIError as error:
                    code = re.search(r"SPECC-E\d+", str(error))
                    name = code[0] if code else type(error).__name__
                    phase.refused[name] = phase.refused.get(name, 0) + 1

        await asyncio.gather(*map(talk, range(clients)))
    phase.seconds = time.monotonic() - began
    return phase


def _temperature(seed: int) -> float:
    return (seed % 3) / 2


@contextmanager
def _server(
    artifact: Path, flags: Sequence[str]
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [sys.executable, "-m", "specc", "serve", str(artifact), "--port", "0", "--json"]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.terminate()


def _unfinished(url: str) -> int:
    """Requests that run or wait, once there are none or it has been long enough."""
    end = time.monotonic() + _SOON
    while True:
        with urllib.request.urlopen(f"{url}/metrics") as page:
            found = re.findall(r"num_requests_(?:running|waiting){.*} (\S+)", page.read().decode())
        count = int(sum(map(float, found)))
        if count == 0 or time.monotonic() > end:
            return count
        time.sleep(0.1)


@contextmanager
def _watched(process: int) -> Iterator[list[tuple[float, int]]]:
    """(when, resident bytes), every half second."""
    samples: list[tuple[float, int]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            status = Path(f"/proc/{process}/status").read_text()
            resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
            samples.append((time.monotonic(), resident))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield samples
    finally:
        over.set()
        watcher.join()


def _by_minute(samples: Sequence[tuple[float, int]]) -> list[int]:
    """The most of each minute."""
    most: dict[int, int] = {}
    for when, size in samples:
        minute = int((when - samples[0][0]) // _MINUTE)
        most[minute] = max(size, most.get(minute, 0))
    return list(most.values())


def _shares(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)]
        for share in (50, 90, 99) if ordered
    }  # fmt: skip
