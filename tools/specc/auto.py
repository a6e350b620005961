"""Choose a method by measuring the candidates on this machine."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from specc import trained
from specc.driver import write
from specc.ir.importers.source import ImportedModel
from specc.methods import pipeline_for
from specc.progress import Progress
from specc.prompts import built_in
from specc.request import CompileRequest
from specc.runtime import Artifact

WORTH_IT = 1.02
"""A method has to beat plain decoding by this much on the average prompt, or plain it is."""

ROUNDS = 3
MAX_TOKENS = 64


def choose_method(
    request: CompileRequest, imported: ImportedModel, progress: Progress
) -> tuple[str, tuple[str, ...]]:
    """The method with the best speed over plain decoding, and why, in words.

    Candidates are those that need nothing but what is there: n-gram and suffix, and the drafter if one was named.
    Self-drafts are measured only when asked for, since without training they do not pay.
    """
    candidates = ["ngram", "suffix"]
    if request.drafter:
        # First: one that does not fit the model is refused before minutes go into the others.
        candidates.insert(0, trained.method_of(request.drafter) or "draft_model")
    if imported.tokenizer_json is None:
        return "ngram", (
            "no tokenizer, so nothing was measured; ngram costs nothing when it finds nothing",
        )
    ratios: dict[str, float] = {}
    for method in candidates:
        candidate = replace(request, method=method)
        with tempfile.TemporaryDirectory(
            dir=request.output.resolve().parent, prefix=".auto."
        ) as name:
            folder = Path(name)
            choice = pipeline_for(candidate, imported, progress)
            write(candidate, imported, choice, folder, (), progress)
            with progress.phase(f"measure {method}"):
                ratios[method] = speed_ratio(folder)
    why = [
        f"{m} ran at {r:.2f} of plain speed on chat, code and copy prompts here"
        for m, r in ratios.items()
    ]
    best = max(ratios, key=ratios.__getitem__)
    if ratios[best] < WORTH_IT:
        return "none", (*why, "nothing beats plain decoding")
    return best, (*why, f"{best} is the fastest")


def speed_ratio(artifact: Path) -> float:
    """Speed of adaptive speculation over plain: median of turns taken in alternation, geometric mean over prompts."""
    with Artifact.load(artifact) as engine:
        ratios = []
        for prompt in built_in():
            ids = prompt.ids(engine, MAX_TOKENS)
            turns = []
            for _ in range(ROUNDS):
                plain, adaptive = (
                    engine.generate(
                        ids, max_tokens=MAX_TOKENS, num_speculative_tokens=k, ignore_eos=True
                    ).stats
                    for k in (0, -1)
                )
                if plain.tokens_per_s and adaptive.tokens_per_s:
                    turns.append(adaptive.tokens_per_s / plain.tokens_per_s)
            if turns:
                ratios.append(statistics.median(turns))
    return statistics.geometric_mean(ratios) if ratios else 1.0
