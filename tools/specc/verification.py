"""Is an artifact exact? Compare what every arm of it says, and what the original model says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from specc.prompts import Prompt
from specc.runtime import ADAPTIVE, Artifact, Generation, Manifest

if TYPE_CHECKING:
    from specc.original import Eager


class Verdict(StrEnum):
    """Worse is later."""

    EXACT = "exact"
    TIE = "tie"
    MISMATCH = "mismatch"


_ORDER = list(Verdict)


@dataclass(frozen=True)
class Arm:
    """One way to run an artifact.

    `planted`: drafts are the plain tokens with errors among them. `temperature`: above 0, tokens are sampled, and are
    compared with plain decoding at the same temperature and seed. `policy` chooses K where it is adaptive.
    """

    name: str
    k: int
    depth: int = ADAPTIVE
    planted: bool = False
    temperature: float = 0.0
    policy: str = "adaptive"


HEAT = 0.8
"""Temperature of the sampled arms: high enough for choices to depend on the noise."""


@dataclass(frozen=True)
class Divergence:
    """Where two sequences part. `position` counts new tokens from 0; -1 stands for no token."""

    prompt: str
    position: int
    expected: int
    found: int
    margin: float | None
    """How far the logit of the token found is below the best, in the reference's logits."""
    arm: str
    verdict: Verdict


@dataclass
class Report:
    """Verdicts by prompt, and every divergence.

    `approximations`: what the artifact rounds that the original model does not, so that this is another one. Then what
    it says is no verdict, but counted: `agreed` of `tokens` are its first choice too, given the same tokens before.
    """

    arms: list[str]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    divergences: list[Divergence] = field(default_factory=list)
    tokens: int = 0
    eager: bool = False
    approximations: tuple[str, ...] = ()
    agreed: int = 0

    def add(self, prompt: str, tokens: int, found: Sequence[Divergence]) -> None:
        """Take one prompt's divergences in."""
        worst = max((d.verdict for d in found), key=_ORDER.index, default=Verdict.EXACT)
        self.verdicts[prompt] = worst
        self.divergences += found
        self.tokens += tokens

    def count(self, verdict: Verdict) -> int:
        """Prompts of this verdict."""
        return sum(v is verdict for v in self.verdicts.values())

    @property
    def first_divergence(self) -> Divergence | None:
        """The first mismatch, or the first tie if there is none."""
        wrong = [d for d in self.divergences if d.verdict is Verdict.MISMATCH]
        return next(iter(wrong or self.divergences), None)


def arms_of(manifest: Manifest) -> list[Arm]:
    """Every arm but plain: each K, with each depth, and adaptive.

    Where the drafter can be replaced, each K with planted drafts as well.
    """
    arms = []
    for k in manifest.num_speculative_tokens[1:]:
        if manifest.drafter.depths:
            arms += [Arm(f"K={k} depth={d}", k, d) for d in manifest.drafter.depths]
        else:
            arms.append(Arm(f"K={k}", k))
    arms.append(Arm("adaptive", ADAPTIVE))
    if manifest.drafter.host:
        # A drafter that finds nothing to say would leave the wide rounds untried.
        arms += [
            Arm(f"K={k} planted", k, planted=True) for k in manifest.num_speculative_tokens[1:]
        ]
    widest = manifest.num_speculative_tokens[-1]
    if widest:
        arms.append(Arm(f"K={widest} sampled", widest, temperature=HEAT))
    return arms


@dataclass(frozen=True)
class Limits:
    """How far to go, and what counts as a tie."""

    max_tokens: int = 64
    ignore_eos: bool = False
    margin: float = 1e-3


class Verifier:
    """Runs prompts through an artifact's arms, and through `eager` if there is one."""

    def __init__(self, artifact: Artifact, limits: Limits, eager: Eager | None) -> None:
        self._artifact, self._limits, self._eager = artifact, limits, eager
        manifest = artifact.manifest
        self._arms = arms_of(manifest)
        # On CPU a row's logits do not depend on the rows beside it: arms cannot tie.
        self._bitwise = manifest.lossless and manifest.device.type == "cpu"

    def run(self, prompts: Sequence[Prompt], done: Callable[[int], None] | None = None) -> Report:
        """The report over all prompts; `done` is told the number finished after each."""
        approximations = self._artifact.manifest.approximations
        arms = [a.name for a in self._arms]
        report = Report(arms, eager=self._eager is not None, approximations=approximations)
        for number, prompt in enumerate(prompts, 1):
            ids = prompt.ids(self._artifact, self._limits.max_tokens)
            plain = self._generate(ids, Arm("plain", 0), ())
            found = list(self._against_plain(prompt.name, ids, plain, 0.0))
            if any(a.temperature for a in self._arms):
                sampled = self._generate(ids, Arm("plain sampled", 0, temperature=HEAT), ())
                found += self._against_plain(prompt.name, ids, sampled, HEAT)
            if self._eager is not None:
                differing = list(self._against_eager(prompt.name, ids, plain.token_ids))
                if approximations:
                    report.agreed += len(plain.token_ids) - len(differing)
                else:
                    found += differing
            report.add(prompt.name, len(plain.token_ids), found)
            if done is not None:
                done(number)
        return report

    def _generate(self, ids: Sequence[int], arm: Arm, plain: Sequence[int]) -> Generation:
        with self._artifact.session() as session:
            session.configure(
                max_tokens=self._limits.max_tokens, ignore_eos=self._limits.ignore_eos,
                num_speculative_tokens=arm.k, draft_depth=arm.depth, temperature=arm.temperature,
                seed=1,
            )  # fmt: skip
            if arm.planted:
                vocabulary = self._artifact.manifest.model.vocab_size
                session.set_drafter(planted_drafter(ids, plain, vocabulary))
            session.append(ids)
            tokens = tuple(session.iterate())
            return Generation(tokens, session.finish_reason, session.stats)

    def _against_plain(
        self, name: str, ids: Sequence[int], plain: Generation, temperature: float
    ) -> Iterator[Divergence]:
        for arm in (a for a in self._arms if a.temperature == temperature):
            spoken = self._generate(ids, arm, plain.token_ids)
            place = first_difference(plain.token_ids, spoken.token_ids)
            if place is None:
                continue
            expected, found = (_at(t, place) for t in (plain.token_ids, spoken.token_ids))
            logits = self._logits([*ids, *plain.token_ids[:place]])
            margin = None if min(expected, found) < 0 else max(logits) - logits[found]
            tie = not self._bitwise and margin is not None and margin < self._limits.margin
            verdict = Verdict.TIE if tie else Verdict.MISMATCH
            yield Divergence(name, place, expected, found, margin, arm.name, verdict)

    def _logits(self, text: Sequence[int]) -> list[float]:
        """Of the token after `text`, by the artifact's own plain decoding."""
        with self._artifact.session() as session:
            session.append(text)
            last = len(text) - 1
            inputs = {"tokens": [text[last]], "positions": [last], "rows": [last]}
            row = session.run("verify_0", inputs)
            logits: list[float] = list(row.tolist()[0])  # type: ignore[call-overload]
            return logits[: self._artifact.manifest.model.vocab_size]

    def _against_eager(
        self, name: str, ids: Sequence[int], plain: Sequence[int]
    ) -> Iterator[Divergence]:
        """One forward over prompt and answer: greedy decoding agrees as far as every argmax does.

        It says even more: each later token is judged too, given the same tokens before it.
        """
        import torch

        assert self._eager is not None
        if not plain:
            return
        with torch.no_grad():
            logits = self._eager(torch.tensor([*ids, *plain[:-1]], dtype=torch.int64))
        rows = logits[len(ids) - 1 :, : self._artifact.manifest.model.vocab_size].float()
        said = torch.tensor(plain)
        best, argmax = rows.max(dim=-1)
        margins = best - rows.gather(1, said[:, None])[:, 0]
        for place in (argmax != said).nonzero()[:, 0].tolist():
            margin = float(margins[place])
            tie = margin < self._limits.margin
            verdict = Verdict.TIE if tie else Verdict.MISMATCH
            expected = int(argmax[place])
            yield Divergence(name, place, expected, plain[place], margin, "eager", verdict)


def planted_drafter(
    prompt: Sequence[int], plain: Sequence[int], vocabulary: int
) -> Callable[[list[int], int], list[int]]:
    """Drafts the plain tokens, wrong at one place that moves: every accepted length occurs."""
    told = [*prompt, *plain]

    def draft(committed: list[int], k: int) -> list[int]:
        start = len(committed)
        block = told[start : start + k]
        block += [0] * (k - len(block))
        wrong = start % (k + 1)  # k: none
        if wrong < k:
            block[wrong] = (block[wrong] + 1) % vocabulary
        return block

    return draft


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first place where two sequences differ, the end of one included."""
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return None if len(left) == len(right) else min(len(left), len(right))


def _at(tokens: Sequence[int], place: int) -> int:
    return tokens[place] if place < len(tokens) else -1
