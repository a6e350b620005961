"""Many clients of one `specc serve`, of whom some leave early: is any token lost or crossed, how long do they wait?"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

from specc import prompts
from specc.runtime import ADAPTIVE, Artifact

_LEAVES = 0.25
"""Part of the clients' requests that end before their answer does."""
_SEEDS = 20


@dataclass(frozen=True)
class Heard:
    """A whole answer. Seconds to the first piece and to the last; `key` says what was asked."""

    key: tuple[int, int]
    tokens: tuple[int, ...]
    first_s: float
    total_s: float


@dataclass
class Phase:
    """What all clients heard while they asked for one K."""

    k: int
    seconds: float
    heard: list[Heard] = field(default_factory=list)
    left: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    def as_json(self, right: dict[tuple[int, int], tuple[int, ...]]) -> dict[str, Any]:
        """`wrong`: answers that are not what the artifact says alone."""
        return {
            "num_speculative_tokens": self.k, "answers": len(self.heard), "left": self.left,
            "refused": self.refused, "wrong": sum(h.tokens != right[h.key] for h in self.heard),
            "tokens_per_s": sum(len(h.tokens) for h in self.heard) / self.seconds,
            "first_token_s": _shares([h.first_s for h in self.heard]),
            "total_s": _shares([h.total_s for h in self.heard]),
        }  # fmt: skip


def load(
    artifact: Path, clients: int, seconds: float, max_tokens: int, threads: int
) -> dict[str, Any]:
    """Half of the time plain, half with adaptive K; resident bytes of the server after each."""
    flags = ["--max-queue", str(clients), "--threads", str(threads), "--timeout", "0"]
    with Artifact.load(artifact, threads) as engine:
        texts = [p.ids(engine, max_tokens) for p in prompts.built_in()]
        with _server(artifact, flags) as (process, told):
            phases, resident = [], []
            for k in (0, ADAPTIVE):
                phases.append(asyncio.run(_phase(told, texts, clients, seconds / 2, max_tokens, k)))
                resident.append(_resident(process.pid))
        asked = {heard.key for phase in phases for heard in phase.heard}
        right = {
            (text, seed): engine.generate(
                texts[text], max_tokens=max_tokens, temperature=_temperature(seed), seed=seed, ignore_eos=True,
            ).token_ids
            for text, seed in asked
        }  # fmt: skip
    return {
        "clients": clients, "slots": told["slots"], "resident_bytes": resident,
        "plain": phases[0].as_json(right), "speculative": phases[1].as_json(right),
    }  # fmt: skip


async def _phase(
    told: dict[str, Any], texts: Sequence[Sequence[int]], clients: int, seconds: float, max_tokens: int, k: int
) -> Phase:  # fmt: skip
    phase = Phase(k, seconds)
    end = time.monotonic() + seconds
    async with openai.AsyncOpenAI(
        base_url=f"{told['url']}/v1", api_key="none", max_retries=0, timeout=None
    ) as client:

        async def talk(number: int) -> None:
            noise = random.Random(number)
            while time.monotonic() < end:
                text, seed = noise.randrange(len(texts)), noise.randrange(_SEEDS)
                stays = None if noise.random() >= _LEAVES else noise.randrange(1, max_tokens // 2)
                began = time.monotonic()
                try:
                    stream = await client.completions.create(
                        model=told["model"], prompt=list(texts[text]), max_tokens=max_tokens, seed=seed,
                        temperature=_temperature(seed), stream=True,
                        extra_body={"specc": True, "ignore_eos": True, "num_speculative_tokens": k},
                    )  # fmt: skip
                    first, pieces, last = 0.0, 0, None
                    async for last in stream:  # noqa: B007 (the report is in the last)
                        pieces += 1
                        first = first or time.monotonic() - began
                        if pieces == stays:
                            break
                    if pieces == stays:
                        await stream.close()
                        phase.left += 1
                        continue
                    tokens = last.specc["choices"][0]["token_ids"]  # type: ignore[union-attr]
                    total = time.monotonic() - began
                    phase.heard.append(Heard((text, seed), tuple(tokens), first, total))
                except openai.APIError as error:
                    code = re.search(r"SPECC-E\d+", str(error))
                    name = code[0] if code else type(error).__name__
                    phase.refused[name] = phase.refused.get(name, 0) + 1

        await asyncio.gather(*map(talk, range(clients)))
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


def _resident(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def _shares(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)]
        for share in (50, 90, 99) if ordered
    }  # fmt: skip
