"""Several texts at once: in one pass of the model, against taking turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from specc.runtime import ADAPTIVE, Artifact, Batch, Session

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Way:
    """One pass for all texts, or a turn for each; K fixed, or adaptive."""

    name: str
    batched: bool
    k: int


WAYS = (
    Way("turns, plain", batched=False, k=0), Way("turns, adaptive K", batched=False, k=ADAPTIVE),
    Way("one pass, plain", batched=True, k=0), Way("one pass, adaptive K", batched=True, k=ADAPTIVE),
)  # fmt: skip


@dataclass
class Found:
    """Of one way at one number of texts, each time that it was played."""

    tokens_per_s: list[float] = field(default_factory=list)
    made: list[tuple[Tokens, ...]] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    """Of a pass, on average."""


def together(
    artifact: Artifact, prompts: Sequence[Sequence[int]], counts: Sequence[int], max_tokens: int,
    repeats: int, say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """Medians of `repeats`: all ways at each number of texts in turn, each time from another way on; decoding alone.

    `wrong` counts texts whose tokens differ between ways.
    """
    found = {(way, count): Found() for way in WAYS for count in counts}
    for repeat in range(repeats):
        for count in counts:
            texts = [prompts[(repeat + i) % len(prompts)] for i in range(count)]
            for turn in range(len(WAYS)):
                way = WAYS[(repeat + turn) % len(WAYS)]
                _play(artifact, way, texts, max_tokens, found[way, count])
            say(f"{repeat + 1} of {repeats}, {count} texts")
    wrong = 0
    for count in counts:
        for repeat, right in enumerate(found[WAYS[0], count].made):
            for way in WAYS[1:]:
                wrong += sum(
                    a != b for a, b in zip(right, found[way, count].made[repeat], strict=True)
                )
    rows = [
        {
            "texts": count, "way": way.name, "tokens_per_s": median(f.tokens_per_s),
            "least": min(f.tokens_per_s), "most": max(f.tokens_per_s),
            "rows_per_pass": median(f.rows) if f.rows else None,
        }
        for count in counts for way in WAYS for f in (found[way, count],)
    ]  # fmt: skip
    return {"max_tokens": max_tokens, "repeats": repeats, "wrong": wrong, "rows": rows}


def _play(
    artifact: Artifact, way: Way, texts: Sequence[Sequence[int]], max_tokens: int, found: Found
) -> None:
    batch = artifact.batch() if way.batched else None
    sessions = [(batch or artifact).session() for _ in texts]
    for session, prompt in zip(sessions, texts, strict=True):
        session.configure(max_tokens=max_tokens, num_speculative_tokens=way.k, ignore_eos=True)
        session.append(prompt)
    made: list[list[int]] = [[] for _ in texts]
    running = list(zip(sessions, made, strict=True))
    began = time.perf_counter()
    while running:
        if batch is not None:
            batch.step([session for session, _ in running])
        running = [(session, got) for session, got in running if _read(session, got)]
    seconds = time.perf_counter() - began
    found.tokens_per_s.append(sum(map(len, made)) / seconds)
    found.made.append(tuple(map(tuple, made)))
    if batch is not None:
        found.rows.append(_rows(batch))
        batch.close()
    for session in sessions:
        session.close()


def _rows(batch: Batch) -> float:
    return batch.passes.rows / max(1, batch.passes.passes)


def _read(session: Session, got: list[int]) -> bool:
    """Adds the tokens of a round; whether the text goes on."""
    got += session.round()
    return not session.finish_reason
