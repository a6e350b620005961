"""How long the functions of an artifact take, and what share of the machine's limit that is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import traffic
from bench.machine import Limits
from specc.runtime import Artifact, Manifest, Session

MOST_ROWS = 32


@dataclass(frozen=True)
class Call:
    """One call of a function: so many rows at the end of a text of `context` tokens."""

    function: str
    rows: int
    context: int


@dataclass(frozen=True)
class Timing:
    """Seconds of a call: the least and the median of `times`."""

    call: Call
    times: int
    least_s: float
    median_s: float


@dataclass(frozen=True)
class Share:
    """A call against the limit: the longer of reading its bytes and doing its operations."""

    timing: Timing
    bytes: int
    operations: int
    read_s: float
    compute_s: float

    @property
    def limit_s(self) -> float:
        """No implementation of this artifact's weights can be faster on this machine."""
        return max(self.read_s, self.compute_s)

    @property
    def share(self) -> float:
        """Limit over median: 1 is perfect."""
        return self.limit_s / self.timing.median_s

    @property
    def bound(self) -> str:
        """Which of the two limits holds."""
        return "memory" if self.read_s >= self.compute_s else "compute"


@dataclass(frozen=True)
class RowCost:
    """t(T) / t(1) of one kind of function: `step` scores and chooses, `prefill` has no head."""

    kind: str
    rows: int
    median_s: float
    ratio: float


def step_function(manifest: Manifest, k: int) -> str:
    """What a round of K drafts runs, without its drafting.

    The round itself where drafts come from outside, else `verify_K`, whose logits a tool has copied
    to it: about 0.2 MB a row at 49,152 tokens of vocabulary.
    """
    if not manifest.drafter.host:
        return f"verify_{k}"
    return next(r.function for r in manifest.rounds if r.k == k)


def step_calls(manifest: Manifest, context: int) -> list[Call]:
    """Plain decoding and every K."""
    return [
        Call(step_function(manifest, played.k), played.nodes + 1, context)
        for played in {r.k: r for r in manifest.rounds}.values()
    ]


def prefill_calls(manifest: Manifest, context: int, rows: Sequence[int]) -> list[Call]:
    """Prefill chunks of so many rows, those the artifact has room for."""
    return [Call("prefill", t, context) for t in rows if t <= manifest.model.prefill_chunk]


def time_calls(
    artifact: Artifact, ids: Sequence[int], calls: Sequence[Call], seconds: float
) -> list[Timing]:
    """Time `calls` in turns, so that a slow moment hits all alike, for about `seconds` in all.

    `ids`: a text at least as long as the longest context. Each call is made 3 times at least.
    """
    taken: dict[Call, list[float]] = {call: [] for call in calls}
    inputs = {call: _inputs(artifact.manifest, call, ids[call.context - 1]) for call in calls}
    end = time.perf_counter() + seconds
    by_context: dict[int, list[Call]] = {}
    for call in calls:
        by_context.setdefault(call.context, []).append(call)
    with artifact.session() as session:
        text = 0
        for context in sorted(by_context):
            session.append(ids[text:context])
            text = context
            part = time.perf_counter() + (end - time.perf_counter()) * _weight(by_context, context)
            while True:
                for call in by_context[context]:
                    taken[call].append(_once(session, call, inputs[call]))
                enough = len(taken[by_context[context][0]]) > 3  # the first one warms up
                if enough and time.perf_counter() > part:
                    break
    return [Timing(c, len(s) - 1, min(s[1:]), statistics.median(s[1:])) for c, s in taken.items()]


def _weight(by_context: Mapping[int, list[Call]], context: int) -> float:
    """This context's part of the time that is left."""
    later = [c for c in by_context if c >= context]
    return len(by_context[context]) / sum(len(by_context[c]) for c in later)


def _once(session: Session, call: Call, inputs: Mapping[str, Sequence[int]]) -> float:
    began = time.perf_counter()
    session.run(call.function, inputs)
    return time.perf_counter() - began


def _inputs(manifest: Manifest, call: Call, root: int) -> dict[str, Sequence[int]]:
    """Of those that rounds, verify and prefill know, the ones that this function declares.

    The session is the only one, so its cache begins at row 0.
    """
    start = call.context - 1
    run = range(start, start + call.rows)
    known: dict[str, Sequence[int]] = {
        "tokens": [root] * call.rows, "positions": run, "rows": run, "root": [root],
        "drafts": [root] * (call.rows - 1), "length": [start], "first_row": [0],
        "temperature": [0], "seed": [0], "parents": [-1] * call.rows,
    }  # fmt: skip
    return {
        v.name: known[v.name] for v in manifest.functions[call.function].inputs if v.name in known
    }


def shares(
    path: Path, manifest: Manifest, timings: Sequence[Timing], limits: Limits
) -> list[Share]:
    """Each timing against the limits. Quantised matrices are held against integer throughput."""
    known: dict[str, traffic.Traffic] = {}
    found = []
    for timing in timings:
        call = timing.call
        if call.function not in known:
            known[call.function] = traffic.of(path, manifest, call.function)
        cost = known[call.function]
        size, operations = cost.bytes(call.context), cost.operations(call.rows, call.context)
        peak = max(limits.integer_n, limits.fma_n) if cost.integers else limits.fma_n
        found.append(Share(timing, size, operations, size / limits.read_n, operations / peak))
    return found


def row_costs(timings: Sequence[Timing]) -> list[RowCost]:
    """T up to 32 against one row of the same kind; kinds without one row are left out."""
    found = []
    for kind in ("step", "prefill"):
        mine = [t for t in timings if (t.call.function == "prefill") == (kind == "prefill")]
        base = next((t.median_s for t in mine if t.call.rows == 1), None)
        found += [
            RowCost(kind, t.call.rows, t.median_s, t.median_s / base)
            for t in sorted(mine, key=lambda t: t.call.rows)
            if base is not None and t.call.rows <= MOST_ROWS
        ]
    return found
