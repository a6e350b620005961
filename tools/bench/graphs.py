"""An artifact of graphs against the original model: logits of every function, greedy tokens with and without drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bench import texts
from specc import prompts
from specc.runtime import Artifact, Session

if TYPE_CHECKING:
    from specc.original import Eager

TOLERANCE = {"f32": 2e-3, "f16": 0.25}
"""Most that a logit may be off eager's, by the type of products. Sums run in another order; halves have 11 bits."""

COMPARED = 8
"""Prompts on which logits and drafts are compared."""

TIE = 1e-3
"""Two logits nearer than this are equal to within rounding."""


def copying(artifact: Artifact, count: int) -> list[list[int]]:
    """Prompts that ask for a text which they contain: what an n-gram drafter is for."""
    asked = prompts.encode(artifact, "\n\nThe same once more, with nothing changed:\n\n")
    source = texts.prose(artifact, 120 * count)
    parts = [source[120 * i : 120 * i + 56] for i in range(count)]
    return [[*part, *asked, *part[:12]] for part in parts]


def compare(
    artifact: Artifact, eager: Eager, ids: Sequence[Sequence[int]], new: int, said: Callable[[int], None],
    other: Artifact | None = None, above: float = 0,
) -> dict[str, Any]:  # fmt: skip
    """Facts about the whole; `said` is told the number of prompts finished.

    Rounds have the most drafts that there are. Eager is told the answer, so every later token is judged too: greedy
    decoding agrees as far as every argmax does. Two logits that are each off by as much as any was found to be may
    change places: tokens within twice that are ties, and `wrong` lists the others. Logits are compared on the first
    prompts, of every function that scores, behind a prefill.

    `other`: an artifact of the same model and method, as for --device cpu, to compare texts and drafts of the first
    prompts with, too.
    `above`: prompts with no more tokens a round than that are left out.
    """
    manifest = artifact.manifest
    dtype = "f32" if manifest.graphs is None else manifest.graphs.dtype
    widest = manifest.num_speculative_tokens[-1]
    off: dict[str, float] = {}
    unequal: list[dict[str, float]] = []
    sums = dict.fromkeys(
        ("prompts", "left_out", "tokens", "equal", "rounds", "draft_tokens", "accepted_tokens"), 0
    )
    drafts = {"proposed": 0, "equal": 0}
    same = 0
    for number, prompt in enumerate(ids, 1):
        answer = artifact.generate(
            prompt, max_tokens=new, num_speculative_tokens=widest, ignore_eos=True
        )
        said(number)
        if len(answer.token_ids) <= above * answer.stats.rounds:
            sums["left_out"] += 1
            continue
        sums["prompts"] += 1
        for name in ("rounds", "draft_tokens", "accepted_tokens"):
            sums[name] += getattr(answer.stats, name)
        told = [*prompt, *answer.token_ids]
        with torch.no_grad():
            logits = eager(torch.tensor(told[:-1]))[:, : manifest.model.vocab_size].float()
        rows = logits[len(prompt) - 1 :]
        sums["tokens"] += len(answer.token_ids)
        for place, token in enumerate(answer.token_ids):
            margin = float(rows[place].max() - rows[place, token])
            sums["equal"] += not margin
            if margin:
                unequal.append({"prompt": number, "place": place, "margin": margin})
        if sums["prompts"] > COMPARED:
            continue
        if other is not None:
            plain = other.generate(
                prompt, max_tokens=new, num_speculative_tokens=0, ignore_eos=True
            )
            same += plain.token_ids == answer.token_ids
        for k in manifest.num_speculative_tokens:
            most = _difference(artifact, k, told, len(prompt) - 1, logits)
            off[f"verify_{k}"] = max(off.get(f"verify_{k}", 0.0), most)
            if other is not None and k and not manifest.drafter.host:
                own, its = (_drafts(a, k, told[: len(prompt)]) for a in (artifact, other))
                drafts["proposed"] += k
                drafts["equal"] += sum(a == b for a, b in zip(own, its, strict=True))
    tie = max(TIE, 2 * min(TOLERANCE[dtype], max(off.values(), default=0.0)))
    wrong = [u for u in unequal if u["margin"] >= tie]
    found = {
        **sums, "dtype": dtype, "drafts": widest, "ties": len(unequal) - len(wrong), "tie": tie,
        "widest_tie": max((u["margin"] for u in unequal if u not in wrong), default=0.0), "wrong": wrong,
        "tokens_a_round": sums["tokens"] / max(1, sums["rounds"]), "most_off_eager": off,
        "tolerance": TOLERANCE[dtype],
    }  # fmt: skip
    return found if other is None else found | {"same_texts": same, "same_drafts": drafts}


def passed(facts: dict[str, Any]) -> bool:
    """Logits are within the tolerance, and every token is eager's or a tie."""
    near = all(most <= facts["tolerance"] for most in facts["most_off_eager"].values())
    return near and not facts["wrong"] and facts["prompts"] > 0


def _difference(
    artifact: Artifact, k: int, told: Sequence[int], root: int, logits: torch.Tensor
) -> float:
    """The greatest distance from eager's logits, of the function that scores `k` drafts."""
    run = range(root, min(root + k + 1, len(told) - 1))
    place = [*run, *[run[-1]] * (k + 1 - len(run))]
    inputs = {"tokens": [told[p] for p in place], "positions": place, "rows": place}
    with artifact.session() as session:
        session.append(told[: root + 1])
        row = session.run(f"verify_{k}", inputs)
    found = torch.tensor(row.tolist())[:, : logits.shape[1]]
    return float((found - logits[place]).abs().max())


def _drafts(artifact: Artifact, k: int, told: Sequence[int]) -> list[int]:
    """What the drafter in the graph proposes behind `told`, at temperature 0."""
    manifest, n = artifact.manifest, len(told) - 1
    (propose,) = {r.propose for r in manifest.rounds if r.k == k and r.propose is not None}
    known = {
        "root": [told[n]], "previous": [told[n - 1]], "length": [n], "first_row": [0], "temperature": [0],
        "seed": [0], "next_tokens": [told[n]], "positions": [n - 1], "rows": [n - 1],
    }  # fmt: skip
    with artifact.session() as session:
        session.append(told)
        if manifest.drafter.extend:
            _extend(session, manifest.drafter.extend, told, manifest.model.prefill_chunk)
        inputs = {v.name: known[v.name] for v in manifest.functions[propose].inputs}
        return [int(t) for t in session.run(propose, inputs).tolist()]


def _extend(session: Session, function: str, told: Sequence[int], chunk: int) -> None:
    """Fill a drafter's caches over the text, but for the last position: a proposal does that."""
    last = len(told) - 2
    for begin in range(0, last, chunk):
        at = [*range(begin, min(begin + chunk, last))]
        session.run(
            function, {"next_tokens": [told[p + 1] for p in at], "positions": at, "rows": at}
        )
