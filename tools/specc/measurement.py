"""Does speculation pay? Speeds of every arm, taken in turns, and what a round costs."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specc.prompts import Prompt
from specc.runtime import ADAPTIVE, Artifact, Session, Stats
from specc.runtime.manifest import Manifest
from specc.verification import Arm

PLAIN = Arm("plain", 0)
ADAPTIVE_K = Arm("adaptive", ADAPTIVE)


@dataclass(frozen=True)
class Run:
    """One prompt through one arm."""

    arm: str
    kind: str
    repeat: int
    stats: Stats


@dataclass(frozen=True)
class Speed:
    """Medians over the repeats: tokens a second, and the ratio to plain of the same repeat."""

    repeats: int
    tokens_per_s: float
    least: float
    most: float
    ratio: float
    ratio_least: float
    ratio_most: float

    @property
    def spread(self) -> float | None:
        """(most - least) / median: how far repeats disagree. One repeat cannot say."""
        if self.repeats < 2:
            return None
        return (self.most - self.least) / self.tokens_per_s if self.tokens_per_s else 0.0


@dataclass(frozen=True)
class RoundCost:
    """What a round of K drafts costs and gives, against one of plain decoding."""

    k: int
    round_s: float
    cost: float
    """t(K) / t(0): speculation pays from this many tokens a round on."""
    tokens_per_round: float
    acceptance_needed: float | None
    """Acceptance, the same at each position, that would break even; None if not even 1 does."""

    @property
    def pays(self) -> bool:
        """Whether it gave more than it cost."""
        return self.tokens_per_round > self.cost


@dataclass
class Measurements:
    """All runs of a benchmark."""

    runs: list[Run] = field(default_factory=list)
    policies: tuple[str, ...] = ()
    """That have arms of their own, beside adaptive."""

    def of(self, arm: str, kind: str | None = None) -> list[Run]:
        """Runs of an arm, of all prompts or of one kind."""
        return [r for r in self.runs if r.arm == arm and kind in (None, r.kind)]

    @property
    def speculative(self) -> str:
        """Of plain decoding and one arm beside it, that one."""
        return next(r.arm for r in self.runs if r.arm != PLAIN.name)

    def speed(self, arm: str, kind: str | None = None) -> Speed:
        """Medians over repeats."""
        mine, plain = self.per_repeat(arm, kind), self.per_repeat(PLAIN.name, kind)
        ratios = [a / b if b else 0.0 for a, b in zip(mine, plain, strict=True)]
        return Speed(
            len(mine), statistics.median(mine), min(mine), max(mine),
            statistics.median(ratios), min(ratios), max(ratios),
        )  # fmt: skip

    def acceptance(self, arm: str) -> list[tuple[int, int]]:
        """Drafted and accepted by block position, summed."""
        sums: list[tuple[int, int]] = []
        for run in self.of(arm):
            for place, position in enumerate(run.stats.by_position):
                if place == len(sums):
                    sums.append((0, 0))
                drafted, accepted = sums[place]
                sums[place] = (drafted + position.drafted, accepted + position.accepted)
        return [s for s in sums if s[0]]

    def mean_acceptance_length(self, arm: str) -> float:
        """1 + accepted / drafting rounds, over all runs."""
        drafts = sum(r.stats.drafts for r in self.of(arm))
        accepted = sum(r.stats.accepted_tokens for r in self.of(arm))
        return 1 + accepted / drafts if drafts else 1.0

    def seconds(self, arm: str) -> dict[str, float]:
        """Where the time of decoding went: the host's drafter, the rounds, the rest."""
        runs = self.of(arm)
        draft = sum(r.stats.draft_s for r in runs)
        rounds = sum(r.stats.round_s for r in runs)
        total = sum(r.stats.decode_s for r in runs)
        return {"draft_s": draft, "round_s": rounds, "other_s": max(0.0, total - draft - rounds)}

    def calls(self, arm: str) -> dict[str, float]:
        """What a round of an arm asks of the machine besides arithmetic, on average."""
        runs = self.of(arm)
        rounds = sum(r.stats.rounds for r in runs) or 1
        return {
            name: sum(getattr(r.stats, name) for r in runs) / rounds
            for name in ("launches", "host_syncs", "thread_syncs")
        }

    def round_costs(self, lengths: Sequence[int]) -> list[RoundCost]:
        """For each K > 0 that ran, from the rounds that really had K drafts."""
        base = self._round(PLAIN.name, 0)
        if base is None:
            return []
        found = []
        for k in lengths[1:]:
            if (measured := self._round(f"K={k}", k)) is not None:
                cost = measured[0] / base[0]
                needed = acceptance_needed(k, cost)
                found.append(RoundCost(k, measured[0], cost, measured[1], needed))
        return found

    def per_repeat(self, arm: str, kind: str | None = None) -> list[float]:
        """Tokens a second of each repeat, over all its prompts."""
        speeds = []
        for repeat in sorted({r.repeat for r in self.runs}):
            runs = [r for r in self.of(arm, kind) if r.repeat == repeat]
            seconds = sum(r.stats.decode_s for r in runs)
            tokens = sum(r.stats.new_tokens for r in runs)
            speeds.append(tokens / seconds if seconds else 0.0)
        return speeds

    def _round(self, arm: str, k: int) -> tuple[float, float] | None:
        """Median seconds and mean tokens of a round with K drafts."""
        found = [n for r in self.of(arm) for n in r.stats.per_k if n.k == k and n.rounds]
        rounds = sum(n.rounds for n in found)
        if not rounds:
            return None
        seconds = statistics.median(n.seconds / n.rounds for n in found)
        return seconds, sum(n.tokens for n in found) / rounds


MOST_DRAFT_COST = 0.3
"""A rule of thumb: drafting should take no larger part of the time that verifying takes."""


@dataclass(frozen=True)
class DraftCost:
    """Time of drafting over that of verifying, in rounds of K drafts."""

    k: int
    share: float

    @property
    def within(self) -> bool:
        """Whether the rule of thumb is kept."""
        return self.share <= MOST_DRAFT_COST


def draft_cost(manifest: Manifest, phases: Mapping[str, float]) -> DraftCost | None:
    """Of the widest K, from its phases; None where nothing is drafted or nothing was verified."""
    k, verify = manifest.num_speculative_tokens[-1], phases.get("verify_s", 0.0)
    return DraftCost(k, phases["draft_s"] / verify) if k and verify > 0 else None


def arms_of(manifest: Manifest, policies: Sequence[str] = ()) -> list[Arm]:
    """Plain, each K, adaptive, and other length policies."""
    fixed = [Arm(f"K={k}", k) for k in manifest.num_speculative_tokens[1:]]
    named = [Arm(policy, ADAPTIVE, policy=policy) for policy in policies]
    return [PLAIN, *fixed, ADAPTIVE_K, *named]


def plain_and_adaptive(manifest: Manifest) -> list[Arm]:
    """What a user gets from an artifact without choosing K, and without drafts."""
    del manifest
    return [PLAIN, ADAPTIVE_K]


def plain_and_fixed(manifest: Manifest) -> list[Arm]:
    """The same with the middle K: adaptive K goes by the clock, which misleads it on a busy machine."""
    lengths = manifest.num_speculative_tokens
    k = lengths[len(lengths) // 2]
    return [PLAIN, Arm(f"K={k}", k)]


def measure(
    artifact: Artifact,
    prompts: Sequence[Prompt],
    max_tokens: int,
    repeats: int,
    *,
    synthetic: Sequence[float] = (),
    policies: Sequence[str] = (),
    arms: Sequence[Arm] = (),
    processor_time: bool = False,
    ignore_eos: bool = True,
) -> Measurements:
    """Run arms in turns, so that a machine that slows down slows them all; without `arms`, those of `arms_of`.

    `synthetic`: acceptance by position, played by a drafter that knows the plain tokens. `processor_time`: seconds of
    decoding are this process's own, of all its threads, and the first token, which follows the prompt, is left out.
    `ignore_eos`: texts go on to `max_tokens`, past where the model would end them, and repeat themselves sooner.
    """
    found = Measurements(policies=tuple(policies))
    encoded = [(p, p.ids(artifact, max_tokens)) for p in prompts]
    arms = arms or arms_of(artifact.manifest, policies)
    told: dict[str, list[int]] = {}
    for prompt, ids in encoded if synthetic else encoded[:1]:  # (one warms caches and clocks up)
        told[prompt.name] = [*ids, *_run(artifact, ids, PLAIN, max_tokens)[1]]
    for repeat in range(repeats):
        for prompt, ids in encoded:
            # The order changes from repeat to repeat: nobody always runs on a hot machine.
            for arm in (*arms[repeat % len(arms) :], *arms[: repeat % len(arms)]):
                drafter = None
                if synthetic and arm.k != 0:
                    drafter = synthetic_drafter(
                        told[prompt.name], synthetic, artifact.manifest.model.vocab_size, repeat
                    )
                stats, _ = _run(artifact, ids, arm, max_tokens, drafter, processor_time, ignore_eos)
                found.runs.append(Run(arm.name, prompt.kind, repeat, stats))
    return found


def side_by_side(
    openers: Sequence[Callable[[], Artifact]], prompts: Sequence[Prompt], max_tokens: int, repeats: int, *,
    arms: Callable[[Manifest], Sequence[Arm]] = arms_of, processor_time: bool = False, ignore_eos: bool = True,
    done: Callable[[int, int], None] | None = None,
) -> list[Measurements]:  # fmt: skip
    """`measure` of artifacts that take turns, repeat by repeat, so that a machine that slows down slows them all.

    One is open at a time: several models need not fit into memory together. `done` hears repeat and artifact.
    """
    found = [Measurements() for _ in openers]
    for repeat in range(repeats):
        for place, opener in enumerate(openers):
            with opener() as artifact:
                each = list(arms(artifact.manifest))
                turn = repeat % len(each)
                turns = [*each[turn:], *each[:turn]]
                runs = measure(
                    artifact, prompts, max_tokens, 1, arms=turns, processor_time=processor_time,
                    ignore_eos=ignore_eos,
                ).runs  # fmt: skip
            found[place].runs += [replace(run, repeat=repeat) for run in runs]
            if done is not None:
                done(repeat, place)
    return found


def _run(
    artifact: Artifact, ids: Sequence[int], arm: Arm, max_tokens: int,
    drafter: Callable[[list[int], int], list[int]] | None = None, processor_time: bool = False, ignore_eos: bool = True,
) -> tuple[Stats, list[int]]:  # fmt: skip
    with artifact.session() as session:
        session.configure(
            max_tokens=max_tokens, ignore_eos=ignore_eos, num_speculative_tokens=arm.k
        )
        session.set("length_policy", arm.policy)
        if drafter is not None:
            session.set_drafter(drafter)
        session.append(ids)
        if not processor_time:
            new = list(session.iterate())
            return session.stats, new
        session.set("num_speculative_tokens", 0)  # (one token, and nothing of the next ones)
        first = session.next()
        assert first is not None
        session.set("num_speculative_tokens", arm.k)
        began = time.process_time()
        new = [first, *session.iterate()]
        seconds = time.process_time() - began
        return replace(session.stats, decode_s=seconds, new_tokens=len(new) - 1), new


def synthetic_drafter(
    told: Sequence[int], rates: Sequence[float], vocabulary: int, seed: int
) -> Callable[[list[int], int], list[int]]:
    """Drafts what is known to come, wrong at position i with probability 1 - rates[i].

    The last rate holds for all positions after it.
    """
    noise = random.Random(seed)

    def draft(committed: list[int], k: int) -> list[int]:
        block = list(told[len(committed) : len(committed) + k])
        for place, token in enumerate(block):
            if noise.random() >= rates[min(place, len(rates) - 1)]:
                block[place] = (token + 1) % vocabulary
        return block

    return draft


def verify_seconds(artifact: Artifact, ids: Sequence[int], k: int, times: int = 7) -> float:
    """Median seconds of scoring what a round of K does, after `ids`: what it costs without its drafting."""
    rows = next(r.nodes for r in artifact.manifest.rounds if r.k == k) + 1
    with artifact.session() as session:
        session.append(ids)
        inputs = artifact.manifest.verify_inputs(k, [ids[-1]] * rows, len(ids) - 1)
        return statistics.median(_timed(session, f"verify_{k}", inputs) for _ in range(times))


def _timed(session: Session, function: str, inputs: dict[str, list[int]]) -> float:
    began = time.perf_counter()
    session.run(function, inputs)
    return time.perf_counter() - began


def expected_tokens(k: int, acceptance: float) -> float:
    """Tokens a round gives if each draft is accepted with `acceptance`: 1 + a + ... + a^K."""
    return sum(acceptance**i for i in range(k + 1))


def acceptance_needed(k: int, cost: float) -> float | None:
    """The acceptance at which rounds of K drafts break even, `cost` times as long as plain ones."""
    if cost <= 1:
        return 0.0
    if cost > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(k, middle) < cost else (low, middle)
    return high
