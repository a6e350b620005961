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

    Eager is told the answer that plain decoding gave, so every later token is judged too. `wrong` lists what is
    neither equal nor a tie.
    """
    manifest = artifact.manifest
    dtype = "f32" if manifest.graphs is None else manifest.graphs.dtype
    widest = manifest.num_speculative_tokens[-1]
    off: dict[str, float] = {}
    facts: dict[str, Any] = {
        "prompts": len(ids), "tokens": 0, "equal_to_eager": 0, "ties": 0, "wrong": [], "arms_differ": [],
    }  # fmt: skip
    rounds = new_tokens = accepted = drafted = 0
    for number, prompt in enumerate(ids, 1):
        plain = _spoken(artifact, prompt, new, 0)
        drafts = _spoken(artifact, prompt, new, widest)
        if drafts.token_ids != plain.token_ids:
            facts["arms_differ"].append(number)
        rounds += drafts.stats.rounds
        new_tokens += drafts.stats.new_tokens
        drafted, accepted = (
            drafted + drafts.stats.draft_tokens,
            accepted + drafts.stats.accepted_tokens,
        )
        told = [*prompt, *plain.token_ids]
        with torch.no_grad():
            logits = eager(torch.tensor(told[:-1]))[:, : manifest.model.vocab_size].float()
        rows = logits[len(prompt) - 1 :]
        for place, token in enumerate(plain.token_ids):
            margin = float(rows[place].max() - rows[place, token])
            kind = "equal_to_eager" if margin == 0 else "ties" if margin < TIE else "wrong"
            if kind == "wrong":
                facts[kind].append({"prompt": number, "place": place, "margin": margin})
            else:
                facts[kind] += 1
        facts["tokens"] += len(plain.token_ids)
        with artifact.session() as session:
            session.append(told[: len(prompt)])
            for k in manifest.num_speculative_tokens:
                name, most = _difference(session, k, told, len(prompt) - 1, logits)
                off[name] = max(off.get(name, 0.0), most)
        said(number)
    return facts | {
        "dtype": dtype, "drafts": widest, "tokens_a_round": new_tokens / max(1, rounds),
        "accepted_of_drafted": accepted / max(1, drafted), "most_off_eager": off, "tolerance": TOLERANCE[dtype],
    }  # fmt: skip


def passed(facts: dict[str, Any]) -> bool:
    """Logits are within the tolerance; no arm differs; and of f32, every token is eager's or a tie."""
    near = all(most <= facts["tolerance"] for most in facts["most_off_eager"].values())
    return near and not facts["arms_differ"] and (facts["dtype"] != "f32" or not facts["wrong"])


def _spoken(artifact: Artifact, prompt: Sequence[int], new: int, k: int) -> Any:
    return artifact.generate(prompt, max_tokens=new, num_speculative_tokens=k, ignore_eos=True)


def _difference(
    session: Session, k: int, told: Sequence[int], root: int, logits: torch.Tensor
) -> tuple[str, float]:
    """The function that scores `k` drafts, and its greatest distance from eager's logits."""
    run = range(root, min(root + k + 1, len(told) - 1))
    place = [*run, *[run[-1]] * (k + 1 - len(run))]
    inputs = {"tokens": [told[p] for p in place], "positions": place, "rows": place}
    row = session.run(f"verify_{k}", inputs)
    found = torch.tensor(row.tolist())[:, : logits.shape[1]]
    return f"verify_{k}", float((found - logits[place]).abs().max())
