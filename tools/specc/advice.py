"""Which method for a model and a use: a few questions, four scores, and whatever was measured, which wins.

The questions are those that operators ask first: how many texts at once, how long, on what device, and whether a
drafter is to be had. They order what nobody measured yet. What was measured is ordered by its speed alone, comes
first, and is never recommended when plain decoding is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specc import trained
from specc.device_names import kind_of
from specc.measurement import PLAIN, Measurements, expected_tokens
from specc.method_table import METHODS, ON_HOST, TRAINED, running_on
from specc.runtime import Manifest
from specc.trained import DISTILLED

DIMENSIONS = ("latency", "throughput", "upkeep", "compatibility")

SCORES: Mapping[str, tuple[int, int, int, int]] = {
    "none": (1, 3, 5, 5), "ngram": (2, 3, 5, 5), "suffix": (3, 3, 5, 5), "draft_model": (3, 2, 3, 4),
    "layerskip": (2, 2, 4, 3), "eagle:adaptive": (2, 2, 3, 4), "eagle": (4, 3, 3, 3), "eagle3": (5, 4, 3, 3),
    "mtp": (5, 4, 5, 2), "medusa": (3, 4, 3, 3), "dflash": (4, 4, 3, 2), "dspark": (5, 5, 3, 2),
    "mtp:structure": (2, 2, 4, 3),
}  # fmt: skip
"""From 1 to 5 in each of DIMENSIONS: judgements, which is why a measurement beats them."""

ASSUMED: Mapping[str, float] = {
    "ngram": 0.25, "suffix": 0.35, "draft_model": 0.6, "layerskip": 0.4, "eagle:adaptive": 0.1, "eagle": 0.6,
    "eagle3": 0.7, "mtp": 0.7, "medusa": 0.5, "dflash": 0.65, "dspark": 0.7, "mtp:structure": 0.3,
}  # fmt: skip
"""How often a draft is kept, each given those before it: an assumption, of the order that papers report."""

DRAFT_COST: Mapping[str, float] = {
    "ngram": 0.0, "suffix": 0.0, "draft_model": 0.2, "layerskip": 0.4, "eagle:adaptive": 0.15, "eagle": 0.08,
    "eagle3": 0.08, "mtp": 0.08, "medusa": 0.03, "dflash": 0.03, "dspark": 0.05, "mtp:structure": 0.01,
}  # fmt: skip
"""What drafting a token costs, in steps of the target: one layer and a head of dozens of layers, say. Assumed too."""

ROW_COST = 0.05
"""What each row of a verify costs beyond the first, in steps of the target, while memory is the limit. Assumed."""

FREE_ROWS = 16
"""Rows of all texts in a call up to which that holds; beyond, a row costs what it computes."""

DRAFTS = 4
"""The K that is predicted for."""

WORTH_IT = 1.02
"""Of plain decoding's speed: less is no gain."""


@dataclass(frozen=True)
class Situation:
    """What is asked: `batch` texts at once of up to `context` tokens on `device` (cpu, onnx, ascend:SOC)."""

    model: str
    batch: int = 1
    context: int = 2048
    device: str = "cpu"
    price_per_hour: float | None = None


@dataclass(frozen=True)
class Option:
    """One method, judged. `speed_up` over plain decoding; `basis` is measured or assumed.

    `total` adds up the scores that matter here; `memory_bytes` are weights and the state of one session;
    `cost_per_million` tokens is in the currency of the price.
    """

    method: str
    basis: str
    speed_up: float
    total: float
    scores: Mapping[str, int]
    why: tuple[str, ...]
    how: str
    tokens_per_s: float | None = None
    memory_bytes: int | None = None
    cost_per_million: float | None = None
    artifact: str = ""

    @property
    def pays(self) -> bool:
        """Whether it is worth its trouble."""
        return self.method == "none" or self.speed_up >= WORTH_IT


@dataclass(frozen=True)
class Measured:
    """An artifact that ran the prompts, in plain decoding and one arm with drafts."""

    artifact: str
    manifest: Manifest
    memory_bytes: int
    found: Measurements


@dataclass
class _Judged:
    """Points for and against, with their reasons."""

    points: float = 0.0
    why: list[str] = field(default_factory=list)

    def add(self, points: float, why: str) -> None:
        self.points += points
        self.why.append(why)


def advise(situation: Situation, measured: Sequence[Measured] = ()) -> list[Option]:
    """All options, best first: measured ones by speed, then the others by their scores."""
    known = _measured(situation, measured)
    methods = {o.method for o in known}
    rest = [_assumed(situation, m) for m in METHODS if m not in methods and _possible(situation, m)]
    known.sort(key=lambda o: (-o.pays, -(o.tokens_per_s or 0.0)))
    rest.sort(key=lambda o: (-o.pays, -o.total, -o.speed_up))
    return [*known, *rest]


def choice(options: Sequence[Option]) -> Option:
    """The one that is recommended: the fastest of what was measured, or the best of what was not."""
    return options[0]


def predicted(method: str, batch: int) -> float:
    """Speed over plain decoding with K = DRAFTS, by what is assumed above."""
    if method == "none":
        return 1.0
    drafting = DRAFTS * (ROW_COST + DRAFT_COST[method])
    verify = max(1.0, batch * (DRAFTS + 1) / FREE_ROWS)
    return (
        expected_tokens(DRAFTS, ASSUMED[method]) * max(1.0, batch / FREE_ROWS) / (verify + drafting)
    )


def _possible(situation: Situation, method: str) -> bool:
    return method in running_on(kind_of(situation.device))


def _assumed(situation: Situation, method: str) -> Option:
    judged = _Judged()
    _by_drafter(situation.model, method, judged)
    _by_batch(situation.batch, method, judged)
    _by_context(situation.context, method, judged)
    _by_device(situation.device, method, judged)
    scores = dict(zip(DIMENSIONS, SCORES[method], strict=True))
    many = situation.batch >= 8
    total = sum(scores.values()) + scores["throughput" if many else "latency"] + judged.points
    return Option(
        method, "assumed", predicted(method, situation.batch), total, scores, tuple(judged.why),
        _how(situation, method),
    )  # fmt: skip


def _by_drafter(model: str, method: str, judged: _Judged) -> None:
    """A drafter that has to be found or trained first is worth less than one that is there."""
    if method not in TRAINED:
        if method == "draft_model":
            judged.add(-4, "needs a model of about a tenth of the size, best of the same tokenizer")
        elif method in ON_HOST:
            judged.add(0, "needs no drafter, and costs next to nothing where it finds nothing")
        return
    known = trained.public(model, method)
    if trained.may_be_shipped(model, method):
        judged.add(2, "a drafter comes with specc, if this is its model")
    elif known.exact:
        judged.add(2, f"a drafter is public: {known.exact[0][1]}")
    elif method in DISTILLED:
        judged.add(-8, "no drafter is known for this model; specc distill trains one")
    else:
        judged.add(-10, "no drafter is known for this model")


def _by_batch(batch: int, method: str, judged: _Judged) -> None:
    if method == "none":
        if batch >= 32:
            judged.add(4, f"{batch} texts at once fill the machine without drafts")
        return
    if batch <= 4 and method in ("mtp", "eagle3"):
        judged.add(2, "few texts at once: rows of a verify are nearly free")
    elif 8 <= batch < 32 and method in ("eagle3", "dflash"):
        judged.add(1, "several texts at once: one cheap draft pass each")
    elif batch >= 32 and method in ON_HOST:
        judged.add(1, "many texts at once: drafts that cost nothing")
    if batch >= 32 and method not in ON_HOST:
        judged.add(
            -2, f"with {batch} texts at once drafts compete with other texts for the machine"
        )


def _by_context(context: int, method: str, judged: _Judged) -> None:
    if context > 2048 and method in ("dflash", "dspark"):
        judged.add(2, f"contexts of {context}: a block is drafted in one pass over them")
    elif context > 2048 and method in ON_HOST:
        judged.add(1, f"contexts of {context}: much to find drafts in")
    elif context <= 2048 and method in ("eagle", "eagle3"):
        judged.add(1, "short contexts: a layer with a cache of its own costs little")
    if context > 8192 and method in ("draft_model", "layerskip"):
        judged.add(-2, f"contexts of {context} fill the drafter's cache, too")


def _by_device(device: str, method: str, judged: _Judged) -> None:
    if device.startswith("ascend") and method == "mtp":
        judged.add(2, "its layer lies in the model's own files, and is one OM more")


def _how(situation: Situation, method: str) -> str:
    """The command that makes it."""
    parts = ["specc compile", situation.model, "--method", method]
    if method in TRAINED:
        known = trained.public(situation.model, method)
        if known.exact:
            parts += ["--drafter", known.exact[0][1]]
        elif not trained.may_be_shipped(situation.model, method):
            parts += ["--drafter DIR"]
    elif method == "draft_model":
        parts += ["--drafter MODEL"]
    if situation.device != "cpu":
        parts += ["--device", situation.device]
    return " ".join([*parts, "-o ART"])


def _measured(situation: Situation, measured: Sequence[Measured]) -> list[Option]:
    """What each artifact gave with drafts, and plain decoding by the fastest of them."""
    options, plain = [], None
    for one in measured:
        method, found = one.manifest.method, one.found
        base = found.speed(PLAIN.name)
        if plain is None or base.tokens_per_s > plain[0]:
            plain = base.tokens_per_s, one
        if not one.manifest.speculates:
            continue
        speed = found.speed(found.speculative)
        why = (
            f"{speed.ratio:.2f} of plain speed on these prompts, acceptance length "
            f"{found.mean_acceptance_length(found.speculative):.2f}",
        )  # fmt: skip
        options.append(_option(situation, one, method, speed.tokens_per_s, speed.ratio, why))
    if plain is not None:
        why = ("plain decoding, by the fastest artifact here",)
        options.append(_option(situation, plain[1], "none", plain[0], 1.0, why))
    return options


def _option(
    situation: Situation, one: Measured, method: str, tokens_per_s: float, ratio: float, why: tuple[str, ...]
) -> Option:  # fmt: skip
    scores = dict(zip(DIMENSIONS, SCORES[method], strict=True))
    price = situation.price_per_hour
    cost = price / 3600 / tokens_per_s * 1e6 if price is not None and tokens_per_s else None
    how = f"specc run {one.artifact}" + (
        " --num-speculative-tokens 0" if method == "none" and one.manifest.speculates else ""
    )
    return Option(
        method, "measured", ratio, float(sum(scores.values())), scores, why, how, tokens_per_s, one.memory_bytes, cost,
        one.artifact,
    )  # fmt: skip


def as_json(situation: Situation, options: Sequence[Option]) -> dict[str, Any]:
    """For scripts."""
    return {
        "situation": vars(situation), "recommended": choice(options).method,
        "options": [{**vars(o), "pays": o.pays} for o in options],
    }  # fmt: skip
