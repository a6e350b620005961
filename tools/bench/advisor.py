"""Is the advisor right? Its choice for each set of prompts, made from short runs, against long ones of all methods."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.verb import told
from specc import prompts
from specc.measurement import PLAIN, Measurements, plain_and_adaptive, plain_and_fixed, side_by_side
from specc.progress import Progress
from specc.prompts import Prompt
from specc.request import CompileRequest
from specc.runtime import Artifact

SETS = Path(__file__).parent / "prompts.jsonl"
METHODS = ("ngram", "suffix", "mtp:structure", "eagle3")
"""Those of SmolLM2 that need nothing more; plain decoding is K = 0 of each."""

CLOSE = 0.9
"""Of the fastest method's speed: what the advisor's choice should have, at least."""


@dataclass(frozen=True)
class Row:
    """A set of prompts. Speeds of methods are ratios to plain decoding in the same turns, medians over repeats."""

    kind: str
    chosen: str
    fastest: str
    speeds: Mapping[str, float]

    @property
    def share(self) -> float:
        """What the chosen method has of the fastest one's speed."""
        return self.speeds[self.chosen] / self.speeds[self.fastest]

    @property
    def close(self) -> bool:
        """Whether that is enough."""
        return self.share >= CLOSE


def sets(path: Path = SETS) -> dict[str, list[Prompt]]:
    """Prompts by kind."""
    found: dict[str, list[Prompt]] = {}
    for prompt in prompts.from_file(path):
        found.setdefault(prompt.kind, []).append(replace(prompt, may_shrink=True))
    return found


def compiled(
    model: str, methods: Sequence[str], folder: Path, progress: Progress
) -> dict[str, Path]:
    """An artifact for each method; those that are in the folder already stay as they are."""
    from specc.driver import compile_model  # torch, which no other measurement needs

    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for method in methods:
        path = folder / f"{method.replace(':', '-')}.specc"
        if not path.exists():
            compile_model(CompileRequest(model, path, method), progress)
        found[method] = path
    return found


def judge(
    model: str, artifacts: Mapping[str, Path], asked: Mapping[str, Sequence[Prompt]], short: int, long: int,
    repeats: int, threads: int, processor_time: bool, say: Callable[[str], object],
) -> list[Row]:  # fmt: skip
    """A row for each set: `specc advise` runs `short` tokens of each prompt, what it is judged by `long` ones."""
    rows = []
    for kind, each in asked.items():
        chosen = advised(
            model, list(artifacts.values()), each, short, repeats, threads, processor_time
        )
        openers = [partial(Artifact.load, path, threads) for path in artifacts.values()]
        found = side_by_side(
            openers, each, long, repeats, arms=plain_and_fixed if processor_time else plain_and_adaptive,
            processor_time=processor_time,
        )  # fmt: skip
        rows.append(row(kind, chosen, dict(zip(artifacts, found, strict=True))))
        say(line(rows[-1]))
    return rows


def advised(
    model: str, artifacts: Sequence[Path], asked: Sequence[Prompt], tokens: int, repeats: int, threads: int,
    processor_time: bool,
) -> str:  # fmt: skip
    """The method that `specc advise` recommends, as a user asks it."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": p.text}) + "\n" for p in asked), "utf-8")
        said = told(
            "advise", model, "--prompts", file, f"--max-tokens={tokens}", f"--repeats={repeats}",
            f"--threads={threads}", *(["--processor-time"] if processor_time else []),
            *(word for path in artifacts for word in ("--artifact", path)),
        )  # fmt: skip
    recommended: str = said["recommended"]
    return recommended


def row(kind: str, chosen: str, found: Mapping[str, Measurements]) -> Row:
    """From the long runs. A repeat's plain decoding is the median of all artifacts': they run the same code."""
    each = {name: of.per_repeat(of.speculative) for name, of in found.items()}
    plain = [
        statistics.median(s)
        for s in zip(*(of.per_repeat(PLAIN.name) for of in found.values()), strict=True)
    ]
    speeds = {"none": 1.0}
    for name, mine in each.items():
        speeds[name] = statistics.median(a / b for a, b in zip(mine, plain, strict=True))
    return Row(kind, chosen, max(speeds, key=speeds.__getitem__), speeds)


def line(row: Row) -> str:
    """Of the table, for people."""
    speeds = "  ".join(f"{name} {speed:.2f}" for name, speed in row.speeds.items())
    verdict = "" if row.close else "  TOO SLOW"
    return f"{row.kind:10} {row.chosen:14} {row.share:5.0%} of {row.fastest:14} {speeds}{verdict}"


def verdict(rows: Sequence[Row]) -> str:
    """`9 of 10 choices ...`."""
    close = sum(row.close for row in rows)
    return f"{close} of {len(rows)} choices have at least {CLOSE:.0%} of the fastest method's speed"
