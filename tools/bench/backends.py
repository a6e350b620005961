"""One model by several backends: what a verify of so many rows takes by each, side by side."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import functions, texts
from specc.output import table
from specc.runtime import Artifact

CONTEXT = 30
TURNS = 4


@dataclass(frozen=True)
class RowTime:
    """Seconds of a call on so many rows, the median of the turns' least; `ratio` to the first artifact's."""

    name: str
    rows: int
    seconds: float
    ratio: float


def compare(named: Mapping[str, Path], threads: int, seconds: float) -> list[RowTime]:
    """Artifacts of one model take turns, for about `seconds` in all; rows are K + 1 for each K that all have."""
    least: dict[tuple[str, int], list[float]] = {}
    for _ in range(TURNS):
        for name, path in named.items():
            with Artifact.load(path, threads) as artifact:
                calls = functions.step_calls(artifact.manifest, CONTEXT)
                share = seconds / TURNS / len(named)
                ids = texts.prose(artifact, CONTEXT)
                for timing in functions.time_calls(artifact, ids, calls, share):
                    least.setdefault((name, timing.call.rows), []).append(timing.least_s)
    first = next(iter(named))
    common = sorted(set.intersection(*({r for n, r in least if n == name} for name in named)))
    median = {key: statistics.median(times) for key, times in least.items()}
    return [
        RowTime(name, rows, median[name, rows], median[name, rows] / median[first, rows])
        for rows in common for name in named
    ]  # fmt: skip


def rendered(rows: list[RowTime]) -> str:
    """A table."""
    lines: list[tuple[str, ...]] = [("rows", "artifact", "ms", "ratio")]
    lines += [(str(r.rows), r.name, f"{r.seconds * 1e3:.2f}", f"{r.ratio:.2f}") for r in rows]
    return table(lines)
