"""Choose a method by measuring the candidates on this machine."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from specc import trained
from specc.driver import write
from specc.errors import UsageError
from specc.ir.importers.drafters import Target
from specc.ir.importers.source import ImportedModel
from specc.judge import check_request
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
) -> tuple[CompileRequest, tuple[str, ...]]:
    """The request with the method that has the best speed over plain decoding, and why, in words."""
    if imported.tokenizer_json is None:
        return replace(request, method="ngram", drafter=None), (
            "no tokenizer, so nothing was measured; ngram costs nothing when it finds nothing",
        )
    ratios: dict[str, float] = {}
    asked = {named(candidate): candidate for candidate in candidates(request, imported)}
    for name, candidate in asked.items():
        with tempfile.TemporaryDirectory(
            dir=request.output.resolve().parent, prefix=".auto."
        ) as place:
            folder = Path(place)
            choice = pipeline_for(candidate, imported, progress)
            write(candidate, imported, choice, folder, (), progress)
            with progress.phase(f"measure {name}"):
                ratios[name] = speed_ratio(folder)
    why = [
        f"{name} ran at {ratio:.2f} of plain speed on chat, code and copy prompts here"
        for name, ratio in ratios.items()
    ]
    best = max(ratios, key=ratios.__getitem__)
    if ratios[best] < WORTH_IT:
        plain = replace(request, method="none", drafter=None)
        return plain, (*why, "nothing beats plain decoding")
    return asked[best], (*why, f"{best} is the fastest")


def candidates(request: CompileRequest, imported: ImportedModel) -> list[CompileRequest]:
    """Those that need nothing but what is there: the drafter that was named or comes with specc, n-gram and suffix.

    The drafter is first: one that does not fit the model is refused before minutes go into the others. Self-drafts are
    measured only when asked for, since without training they do not pay.
    """
    if request.drafter:
        drafters = [trained.method_of(request.drafter) or "draft_model"]
    else:
        target = Target.of(imported.program)
        drafters = [m for m in trained.DISTILLED if trained.shipped(m, target)]
    found = [
        _at_its_best(replace(request, method=method), strict=bool(request.drafter))
        for method in drafters
    ]
    return [
        *(each for each in found if each is not None),
        *(replace(request, method=method, drafter=None) for method in ("ngram", "suffix")),
    ]


def _at_its_best(request: CompileRequest, *, strict: bool) -> CompileRequest | None:
    """A drafter in the graph, with what costs it nothing where the other flags let it: suffix beside it, fewer bits.

    None if it cannot be compiled so at all; if `strict`, that is an error.
    """
    beside = replace(request, host_drafter=trained.WITHOUT)
    free = (request.quant, request.drafter_quant) == ("none", "auto")
    bits = "int8" if free else request.drafter_quant
    for attempt in (
        replace(beside, drafter_quant=bits),
        beside,
        replace(request, drafter_quant=bits),
        request,
    ):
        with suppress(UsageError):
            check_request(attempt)
            return attempt
    if strict:
        check_request(request)  # says what stands in the way
    return None


def named(request: CompileRequest) -> str:
    """What a candidate is, in words."""
    beside = f" with {request.host_drafter} beside it" if request.host_drafter else ""
    kept = request.drafter_quant == "auto"
    bits = "" if kept else f", its drafter's weights {request.drafter_quant}"
    return request.method + beside + bits


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
