"""Drafters side by side: artifacts of one model, each against its own plain decoding, on each kind of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from specc import flags
from specc.measurement import PLAIN, Measurements, side_by_side
from specc.prompts import CLASSES, Prompt, built_in, from_file
from specc.runtime import Artifact, Manifest
from specc.templates import ChatTemplate

QUESTIONS = Path(__file__).with_name("questions.jsonl")
"""What no drafter of specc was trained on, nor any threshold chosen by."""
ASKED = "questions"
ALL = "all"


@dataclass(frozen=True)
class Row:
    """One drafter, kind of text and arm.

    `tokens_per_round`: of all rounds. `tokens_per_draft`: 1 + kept drafts, over the rounds that drafted. `drafting`:
    share of rounds that did. `ratio`: speed over plain decoding of the same repeat, the median; with least and most.
    """

    drafter: str
    kind: str
    arm: str
    tokens_per_round: float
    tokens_per_draft: float
    drafting: float
    ratio: float
    ratio_least: float
    ratio_most: float


def compare(
    artifacts: Mapping[str, Path], prompts: Sequence[Prompt], new_tokens: int, repeats: int,
    threads: int, say: Callable[[str], None], *, ignore_eos: bool = True,
) -> list[Row]:  # fmt: skip
    """Rows by kind, artifact and arm, and of several kinds those of all together."""
    names = list(artifacts)
    measured = side_by_side(
        [partial(Artifact.load, path, threads) for path in artifacts.values()], prompts, new_tokens, repeats,
        ignore_eos=ignore_eos,
        done=lambda repeat, place: say(f"repeat {repeat + 1} of {repeats}: {names[place]}"),
    )  # fmt: skip
    found = dict(zip(names, measured, strict=True))
    arms = {
        name: list(dict.fromkeys(r.arm for r in of.runs if r.arm != PLAIN.name))
        for name, of in found.items()
    }
    kinds = sorted({p.kind for p in prompts})
    return [
        _row(name, kind, arm, found[name])
        for kind in (kinds if len(kinds) == 1 else [*kinds, ALL])
        for name in artifacts
        for arm in arms[name]
    ]


def prompts_of(kinds: str, artifact: Path) -> list[Prompt]:
    """Built-in prompts of `kinds`, or `questions`. Raises UsageError (SPECC-E0103) for other kinds."""
    if kinds == ASKED:
        return questions(artifact)
    wanted = kinds.split(",")
    for kind in wanted:
        flags.one_of("--kinds", kind, (*CLASSES, f"{ASKED} alone"))
    return [p for p in built_in() if p.kind in wanted]


def questions(artifact: Path) -> list[Prompt]:
    """`QUESTIONS` as a user's first message, in the words of the artifact's chat template.

    Raises ArtifactError if it has none.
    """
    Manifest.read(artifact)  # or it says what is wrong with a folder that is no artifact
    template = ChatTemplate.of_artifact(artifact)
    return [
        replace(
            p, text=template.render([{"role": "user", "content": p.text or ""}]), may_shrink=True
        )
        for p in from_file(QUESTIONS)
    ]


def _row(name: str, kind: str, arm: str, measured: Measurements) -> Row:
    of_kind = Measurements([r for r in measured.runs if kind in (r.kind, ALL)])
    speed = of_kind.speed(arm)
    runs = of_kind.of(arm)
    rounds = sum(r.stats.rounds for r in runs)
    return Row(
        name, kind, arm, sum(r.stats.new_tokens for r in runs) / rounds if rounds else 0.0,
        of_kind.mean_acceptance_length(arm),
        sum(r.stats.drafts for r in runs) / rounds if rounds else 0.0,
        speed.ratio, speed.ratio_least, speed.ratio_most,
    )  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """For people."""
    lines = [
        f"{'text':7} {'drafter':14} {'arm':9} {'tokens/round':>12} {'tokens/draft':>12} {'drafting':>8} "
        f"{'of plain speed':>20}"
    ]
    lines += [
        f"{r.kind:7} {r.drafter:14} {r.arm:9} {r.tokens_per_round:12.2f} {r.tokens_per_draft:12.2f} {r.drafting:8.0%} "
        f"{r.ratio:8.2f} ({r.ratio_least:.2f}-{r.ratio_most:.2f})"
        for r in rows
    ]
    return "\n".join(lines)
