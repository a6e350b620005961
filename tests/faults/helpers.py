"""What tests of public faults share: artifacts of every method, copies with another manifest, an oracle that drafts."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from specc.runtime import Artifact, Session

METHODS = ("none", "ngram", "suffix", "draft_model", "layerskip", "eagle:adaptive")
HOST = ("ngram", "suffix")
PROMPT = [7, 21, 40, 7, 21, 99, 150, 7, 21]


def altered(artifact: Path, place: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The same files at `place`, but for what `change` does to the manifest."""
    shutil.copytree(artifact, place, copy_function=os.link)
    manifest = json.loads((artifact / "manifest.json").read_text())
    change(manifest)
    (place / "manifest.json").unlink()
    (place / "manifest.json").write_text(json.dumps(manifest))
    return place


def chunked(artifact: Path, place: Path, chunk: int) -> Path:
    """The same artifact, but the engine feeds prompts in chunks of `chunk`."""
    return altered(artifact, place, lambda m: m["model"].update(prefill_chunk=chunk))


def fixed(engine: Artifact, k: int) -> dict[str, int]:
    """Options that leave nothing to the engine: what is drafted depends on the text alone."""
    depths = engine.manifest.drafter.depths
    return {"num_speculative_tokens": k, "draft_depth": depths[-1] if depths and k else -1}


def drafting(engine: Artifact) -> tuple[int, ...]:
    """Every K > 0."""
    return engine.manifest.num_speculative_tokens[1:]


def plain(engine: Artifact, prompt: Sequence[int], count: int, **options: Any) -> tuple[int, ...]:
    """Plain decoding: no drafts, past EOS."""
    asked = {"num_speculative_tokens": 0, "ignore_eos": True, "max_tokens": count, **options}
    return engine.generate(prompt, **asked).token_ids


def oracle(
    told: Sequence[int], wrong: Callable[[int], bool] = lambda place: False, vocabulary: int = 256
) -> Callable[[list[int], int], list[int]]:
    """Drafts the text `told`, but errs wherever `wrong(place)`."""

    def draft(committed: list[int], k: int) -> list[int]:
        start = len(committed)
        return [
            (token + 1) % vocabulary if wrong(place) else token
            for place, token in enumerate(told[start : start + k], start)
        ]

    return draft


def half_wrong(seed: int) -> Callable[[int], bool]:
    """Errs at about half of all places."""
    chance = random.Random(seed)
    return lambda place: chance.random() < 0.5


def spoken(session: Session, prompt: Sequence[int] = ()) -> list[int]:
    """Append and read to the end."""
    assert session.append(prompt)
    return list(session.iterate())


def acceptance(session: Session) -> tuple[object, ...]:
    """What drafting came to, by position: nothing of time."""
    stats = session.stats
    return stats.rounds, stats.draft_tokens, stats.accepted_tokens, stats.by_position


def logits_after(session: Session, text: Sequence[int], k: int = 0) -> bytes:
    """Bits of the logits after `text`, which the session holds, by the function that scores K drafts."""
    last = len(text) - 1
    tokens, at = [text[-1], *range(3, 3 + k)], list(range(last, last + k + 1))
    view = session.run(f"verify_{k}", {"tokens": tokens, "positions": at, "rows": at})
    return bytes(view)[: len(bytes(view)) // (k + 1)]


def greedy(
    model: PreTrainedModel, prompt: Sequence[int], count: int, valid: int | None = None
) -> list[int]:
    """transformers' own code, all of the text at every step: no cache that could be wrong."""
    text = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            row = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1, :valid]
            text.append(int(row.argmax()))
    return text[len(prompt) :]
