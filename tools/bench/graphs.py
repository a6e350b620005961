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
"""Prompts on which logits are compared."""

TIE = 1e-3
"""Two logits nearer than this are equal to within rounding."""


def copying(artifact: Artifact, count: int) -> list[list[int]]:
    """Prompts that ask for a text which they contain: what an n-gram drafter is for."""
    asked = prompts.encode(artifact, "\n\nThe same once more, with nothing changed:\n\n")
    source = texts.prose(artifact, 120 * count)
    parts = [source[120 * i : 120 * i + 56] for i in range(count)]
    return [[*part, *asked, *part[:12]] for part in parts]


def compare(
    artifact: Artifact, eager: Eager, ids: Sequence[Sequence[int]], new: int, said: Callable[[int], None]
) -> dict[str, Any]:  # fmt: skip
    """Facts about the whole; `said` is told the number of prompts finished.

    Rounds have the most drafts that there are. Eager is told the answer, so every later token is judged too: greedy
    decoding agrees as far as every argmax does. `wrong` lists what is neither equal nor a tie. Logits are compared
    on the first prompts, of every function that scores.
    """
    manifest = artifact.manifest
    dtype = "f32" if manifest.graphs is None else manifest.graphs.dtype
    widest = manifest.num_speculative_tokens[-1]
    off: dict[str, float] = {}
    wrong: list[dict[str, float]] = []
    sums = dict.fromkeys(
        ("tokens", "equal", "ties", "rounds", "draft_tokens", "accepted_tokens"), 0
    )
    for number, prompt in enumerate(ids, 1):
        answer = artifact.generate(
            prompt, max_tokens=new, num_speculative_tokens=widest, ignore_eos=True
        )
        for name in ("rounds", "draft_tokens", "accepted_tokens"):
            sums[name] += getattr(answer.stats, name)
        told = [*prompt, *answer.token_ids]
        with torch.no_grad():
            logits = eager(torch.tensor(told[:-1]))[:, : manifest.model.vocab_size].float()
        rows = logits[len(prompt) - 1 :]
        sums["tokens"] += len(answer.token_ids)
        for place, token in enumerate(answer.token_ids):
            margin = float(rows[place].max() - rows[place, token])
            if margin >= TIE:
                wrong.append({"prompt": number, "place": place, "margin": margin})
            else:
                sums["ties" if margin else "equal"] += 1
        if number <= COMPARED:
            with artifact.session() as session:
                session.append(told[: len(prompt)])
                for k in manifest.num_speculative_tokens:
                    most = _difference(session, k, told, len(prompt) - 1, logits)
                    off[f"verify_{k}"] = max(off.get(f"verify_{k}", 0.0), most)
        said(number)
    return {
        "prompts": len(ids), "dtype": dtype, "drafts": widest, **sums, "wrong": wrong,
        "tokens_a_round": sums["tokens"] / max(1, sums["rounds"]), "most_off_eager": off,
        "tolerance": TOLERANCE[dtype],
    }  # fmt: skip


def passed(facts: dict[str, Any]) -> bool:
    """Logits are within the tolerance; and of f32, every token is eager's or a tie."""
    near = all(most <= facts["tolerance"] for most in facts["most_off_eager"].values())
    return near and (facts["dtype"] != "f32" or not facts["wrong"])


def _difference(
    session: Session, k: int, told: Sequence[int], root: int, logits: torch.Tensor
) -> float:
    """The greatest distance from eager's logits, of the function that scores `k` drafts."""
    run = range(root, min(root + k + 1, len(told) - 1))
    place = [*run, *[run[-1]] * (k + 1 - len(run))]
    inputs = {"tokens": [told[p] for p in place], "positions": place, "rows": place}
    row = session.run(f"verify_{k}", inputs)
    found = torch.tensor(row.tolist())[:, : logits.shape[1]]
    return float((found - logits[place]).abs().max())
