"""An artifact of graphs against the original model: logits of every function, greedy tokens with and without drafts."""

from __future__ import annotations

import string
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


def listing(artifact: Artifact, count: int) -> list[list[int]]:
    """Lists of one digit over and over: what even a drafter trained for minutes foretells."""
    leads = (
        "",
        "Numbers: ",
        "Count: ",
        "A list of numbers: ",
        "Pages ",
        "In order: ",
        "Marks: ",
        "Row ",
    )
    lists = [lead + ", ".join([digit] * 16) + "," for lead in leads for digit in string.digits]
    return [prompts.encode(artifact, text) for text in lists[:count]]


KINDS = {"copy": copying, "list": listing}
"""Prompts by what they ask for."""


def compare(
    artifact: Artifact, eager: Eager, ids: Sequence[Sequence[int]], new: int, said: Callable[[str], object],
    other: Artifact | None = None, above: float = 0, enough: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Facts about the whole; `said` is told a line about each prompt when it is finished.

    Rounds have the most drafts that there are. Eager is told the answer, so every later token is judged too: greedy
    decoding agrees as far as every argmax does. Two logits that are each off by as much as any was found to be may
    change places: tokens within twice that are ties, and `wrong` lists the others. Logits are compared on the first
    prompts, of every function that scores, behind a prefill.

    `plain`: the artifact's own text without drafts, which drafts must not change. In half precision it is what can be
    equal: eager's single precision tells how far rounding goes, and eager in half precision rounds elsewhere.
    `other`: an artifact of the same model and method, as for --device cpu: its text without drafts (`against`), its
    drafts behind the first prompts, and, where it has graphs too, what attention yields there.
    `above`: prompts with no more tokens a round than that are left out. `enough`: how many others are compared.
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
    others = {"plain": artifact} if other is None else {"plain": artifact, "against": other}
    texts_of = {name: _Texts() for name in others}
    attention: dict[str, float] = {}
    for number, prompt in enumerate(ids, 1):
        if sums["prompts"] == enough:
            break
        answer = artifact.generate(
            prompt, max_tokens=new, num_speculative_tokens=widest, ignore_eos=True
        )
        line = f"prompt {number} of {len(ids)}: {len(answer.token_ids) / answer.stats.rounds:.2f} tokens a round"
        if len(answer.token_ids) <= above * answer.stats.rounds:
            sums["left_out"] += 1
            said(f"{line}, left out")
            continue
        sums["prompts"] += 1
        for name in ("rounds", "draft_tokens", "accepted_tokens"):
            sums[name] += getattr(answer.stats, name)
        told = [*prompt, *answer.token_ids]
        with torch.no_grad():
            logits = eager(torch.tensor(told[:-1]))[:, : manifest.model.vocab_size].float()
        rows = logits[len(prompt) - 1 :]
        sums["tokens"] += len(answer.token_ids)
        before = sums["equal"]
        for place, token in enumerate(answer.token_ids):
            margin = float(rows[place].max() - rows[place, token])
            sums["equal"] += not margin
            if margin:
                unequal.append({"prompt": number, "place": place, "margin": margin})
        for name, one in others.items():
            plain = one.generate(prompt, max_tokens=new, num_speculative_tokens=0, ignore_eos=True)
            same = texts_of[name].add(number, answer.token_ids, plain.token_ids, rows)
            line += f", {'as' if same else 'NOT as'} {name}"
        said(f"{line}, {sums['equal'] - before} of {len(answer.token_ids)} eager's")
        if sums["prompts"] > COMPARED:
            continue
        if other is not None and other.manifest.graphs is not None and manifest.graphs is not None:
            for name, value in _attention(artifact, other, widest, told, len(prompt) - 1).items():
                attention[name] = max(attention.get(name, 0.0), value)
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
        "tolerance": TOLERANCE[dtype], **{name: t.facts(tie) for name, t in texts_of.items()},
    }  # fmt: skip
    if attention:
        found["attention_off"] = attention
    return found if other is None else found | {"same_drafts": drafts}


def passed(facts: dict[str, Any]) -> bool:
    """Logits are within the tolerance; every token is eager's or a tie, and texts part from others at ties alone."""
    near = all(most <= facts["tolerance"] for most in facts["most_off_eager"].values())
    parted = any(facts[name]["wrong"] for name in ("plain", "against") if name in facts)
    return near and not facts["wrong"] and not parted and facts["prompts"] > 0


class _Texts:
    """Texts with drafts beside those of another way to say them."""

    def __init__(self) -> None:
        self.texts = self.same = 0
        self.parted: list[dict[str, float]] = []
        """Where they part first, and how far the two tokens' logits are apart in eager."""

    def add(
        self, prompt: int, answer: Sequence[int], plain: Sequence[int], rows: torch.Tensor
    ) -> bool:
        """Whether they are the same. `rows`: eager's logits behind which each token of `answer` stands."""
        self.texts += 1
        place = next((i for i, (a, b) in enumerate(zip(answer, plain, strict=True)) if a != b), -1)
        self.same += place < 0
        if place >= 0:
            margin = abs(float(rows[place, answer[place]] - rows[place, plain[place]]))
            self.parted.append({"prompt": prompt, "place": place, "margin": margin})
        return place < 0

    def facts(self, tie: float) -> dict[str, Any]:
        wrong = [p for p in self.parted if p["margin"] >= tie]
        return {"texts": self.texts, "same": self.same, "parted": self.parted, "wrong": wrong}


def _difference(
    artifact: Artifact, k: int, told: Sequence[int], root: int, logits: torch.Tensor
) -> float:
    """The greatest distance from eager's logits, of the function that scores `k` drafts."""
    inputs = _rows(k, told, root)
    with artifact.session() as session:
        session.append(told[: root + 1])
        row = session.run(f"verify_{k}", inputs)
    found = torch.tensor(row.tolist())[:, : logits.shape[1]]
    return float((found - logits[inputs["rows"]]).abs().max())


def _rows(k: int, told: Sequence[int], root: int) -> dict[str, list[int]]:
    """The inputs of verify_`k` at `root`; beyond the text's end its last row."""
    run = range(root, min(root + k + 1, len(told) - 1))
    place = [*run, *[run[-1]] * (k + 1 - len(run))]
    return {"tokens": [told[p] for p in place], "positions": place, "rows": place}


def _attention(
    artifact: Artifact, other: Artifact, k: int, told: Sequence[int], root: int
) -> dict[str, float]:
    """How far what attention yields is off the other's: in the first layer, whose inputs are equal, and at most."""
    from bench.attention import watched

    found = []
    for one in (artifact, other):
        with one.session() as session:
            session.append(told[: root + 1])
            with watched(one) as seen:
                session.run(f"verify_{k}", _rows(k, told, root))
            found.append(seen.layers)
    ours, its = found
    off = {n: float(abs(ours[n].astype("f8") - its[n]).max()) for n in sorted(ours)}
    if not off:
        return {}
    largest = max(float(abs(x).max()) for x in its.values())
    return {"first_layer": off[min(off)], "any_layer": max(off.values()), "largest_value": largest}


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
