"""How each method drafts: the pipeline for it, and what has to be measured first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from specc import flags, trained
from specc.calibration import LEAST_TOKENS, Calibration, fit_structure
from specc.device_names import ASCEND, ONNX, kind_of
from specc.errors import ModelError
from specc.ir import DynamicTree, Owner, StaticTree, Tree
from specc.ir.arena import CANARY, NPU_CANARY
from specc.ir.importers.drafters import DrafterCheckpoint
from specc.ir.importers.source import ImportedModel, load_model
from specc.ir.importers.token_bytes import vocabulary
from specc.ir.sharding import Way
from specc.ir.types import HALVES
from specc.method_table import STRUCTURE, TRAINED
from specc.passes import Pipeline, pipelines
from specc.passes.pipelines import Shape
from specc.passes.plan_arena import PlanArena
from specc.passes.quantise_weights import QuantiseWeights
from specc.passes.shard_caches import ShardCaches
from specc.passes.translate_tokens import TranslateTokens
from specc.progress import Progress
from specc.request import CompileRequest, backend_of, draft_lengths
from specc.structure_head import fit_head
from specc.translation import translation

CALIBRATION_TOKENS = 512
"""Tokens of one stretch of calibration text."""

STRUCTURE_TOKENS = 128
"""Tokens of each stretch for mtp:structure, whose basis needs many places, not long texts."""

VOCABULARY_TOKENS = 1 << 17
"""Tokens of calibration text that are counted for a draft vocabulary, at most."""

HEAD_STRETCHES = 12
"""How many of CALIBRATION_TOKENS the head of mtp:structure is trained and tried on: tokens must come again in each."""

STRETCHES = 8
"""How many an adapter is fitted on."""

TREE_WIDTH = 8
"""Of each level of a tree that a drafter grows: EAGLE-2 has 10, but rows of a call are nearly free up to 8 here."""

DEPTHS = (2, 3, 4, 5, 6, 7)
"""Depths of the adaptive self-draft where the user names none."""


@dataclass(frozen=True)
class Choice:
    """A pipeline, and what was measured on the way to it."""

    pipeline: Pipeline
    why: tuple[str, ...] = ()


def pipeline_for(request: CompileRequest, imported: ImportedModel, progress: Progress) -> Choice:
    """The pipeline for `request.method`; its context is set."""
    assert request.max_model_len is not None
    (quant, owner), *drafters = forms(request)
    shape = Shape(
        tuple(sorted({0, *draft_lengths(request)})), request.max_model_len, request.prefill_chunk,
        request.max_num_seqs, kv_cache_dtype=_caches(request),
        weights=weights_of(quant, request.quant_rounding, owner),
        drafter_weights=next((weights_of(form, "nearest", whose) for form, whose in drafters), None),
        draft_ids=_draft_ids(request, imported), host_drafter=request.host_drafter,
        host_options=request.drafter_options if request.host_drafter else {},
    )  # fmt: skip
    choice = _PIPELINES[request.method](request, imported, shape, progress)
    pipeline = choice.pipeline
    if kind_of(request.device) in (ONNX, ASCEND):
        shards = None
        if request.kv_shards is not None:
            count, way = request.kv_shards
            shards = ShardCaches(count, Way(way) if way else None)
        half, one = request.dtype == "f16", _one_graph(request)
        pipeline = pipelines.as_graphs(pipeline, half=half, one=one, shards=shards)
    elif request.dtype in HALVES:
        pipeline = pipelines.halved(pipeline, request.dtype)
    splits, size = flags.arena("--kv-arena", request.kv_arena)
    # Inductor's code asks each cache for its length; graphs and plain torch have it built in.
    any_length = backend_of(request) == "inductor"
    canary = NPU_CANARY if kind_of(request.device) == ASCEND else CANARY
    arena = PlanArena(splits, size, any_length, canary)
    return replace(choice, pipeline=pipelines.placed(pipeline, arena))


def _one_graph(request: CompileRequest) -> bool:
    """Whether one graph plays every K. Unasked, where sums in another order may soon say another token."""
    if request.verify_graphs != "auto":
        return request.verify_graphs == "one"
    rounds_off = request.dtype == "f16" or kind_of(request.device) == ASCEND
    return rounds_off and request.kv_shards is None


def _caches(request: CompileRequest) -> str:
    """The caches' type: what multiplies halves keeps halves, where nothing else is asked for."""
    halves = request.dtype in HALVES and request.kv_cache_dtype == "auto"
    return request.dtype if halves else request.kv_cache_dtype


def weights_of(quant: str, rounding: str, owner: Owner | None = None) -> QuantiseWeights | None:
    """How `--quant` stores weights. An embedding and a head matter more than their size: int4 leaves them 8 bits."""
    layers, ends = {"int8": ("q8g32", "q8g32"), "int4": ("q4mg32", "q8g32")}.get(
        quant, (quant, quant)
    )
    return None if quant == "none" else QuantiseWeights(layers, ends, rounding, owner)


def forms(request: CompileRequest) -> tuple[tuple[str, Owner | None], ...]:
    """The forms of weights that were asked for, and whose they are: one for all, or the target's and the drafter's."""
    if request.drafter_quant == "auto":
        return ((request.quant, None),)
    return (request.quant, Owner.TARGET), (request.drafter_quant, Owner.DRAFTER)


def _draft_ids(request: CompileRequest, imported: ImportedModel) -> tuple[int, ...]:
    """The most frequent tokens of the calibration text; where it has too few, low ids, which tokenizers learn first."""
    size, known = request.draft_vocab_size, imported.program.model.vocab_size
    if size == 0:
        return ()
    if size >= known:
        raise ModelError(
            "SPECC-E0238", f"a draft vocabulary of {size} tokens is no smaller than the model's",
            expected=f"less than {known}", cure="choose a smaller --draft-vocab-size, or leave it out",
        )  # fmt: skip
    counts = Counter(_encode(imported, calibration_text(request.calibration), VOCABULARY_TOKENS))
    frequent = sorted(range(known), key=lambda i: (-counts[i], i))
    return tuple(sorted(frequent[:size]))


def _none(
    request: CompileRequest, imported: ImportedModel, shape: Shape, progress: Progress
) -> Choice:
    del imported, progress
    plain = replace(shape, num_speculative_tokens=(0,))
    return Choice(pipelines.host("none", plain, request.drafter_options))


def _host(
    request: CompileRequest, imported: ImportedModel, shape: Shape, progress: Progress
) -> Choice:
    del imported, progress
    shape = replace(shape, given_trees=request.tree is not None)
    return Choice(pipelines.host(request.method, shape, request.drafter_options))


def _draft_model(
    request: CompileRequest, imported: ImportedModel, shape: Shape, progress: Progress
) -> Choice:
    drafter = drafter_model(request, imported, progress)
    translate: TranslateTokens | None = None
    why: tuple[str, ...] = ()
    if request.translate_tokens:
        with progress.phase("compare the two vocabularies"):
            translate = translation(imported, drafter)
        why = (
            f"the drafter can say {translate.common} of the model's {len(translate.said)} tokens",
        )
    with progress.phase("rewrite the drafter"):
        program = pipelines.drafter_model(shape, translate)(drafter.program)
    return Choice(pipelines.draft_model(shape, program), why)


def drafter_model(
    request: CompileRequest, imported: ImportedModel, progress: Progress
) -> ImportedModel:
    """The model that --drafter names, for `request` with its context set.

    Raises ModelError: SPECC-E0233 where its tokens are not the target's and are not to be translated, E0232 where its
    context is too short.
    """
    assert request.drafter is not None
    assert request.max_model_len is not None
    with progress.phase(f"import {request.drafter}"):
        drafter = load_model(request.drafter, request.max_model_len)
    if not request.translate_tokens:
        require_same_tokens(imported, drafter)
    limit = drafter.program.model.max_position
    if limit and request.max_model_len > limit:
        raise ModelError(
            "SPECC-E0232", "the drafter was trained for a shorter context",
            expected=f"at least {request.max_model_len} positions", found=str(limit),
            cure=f"add --max-model-len {limit}",
        )  # fmt: skip
    return drafter


def require_same_tokens(target: ImportedModel, drafter: ImportedModel) -> None:
    """Refuse a drafter whose token ids mean something else: equal ids must have equal bytes."""
    ours, theirs = _vocabulary(target), _vocabulary(drafter)
    if ours is None and theirs is None:
        return  # nothing to compare but the size, which attach-draft-model does
    if ours is None or theirs is None:
        raise ModelError(
            "SPECC-E0233", "only one of target and drafter has a tokenizer, so their tokens cannot be compared",
            cure="add tokenizer.json to the other",
        )  # fmt: skip
    if ours != theirs:
        different = next((i for i in sorted({*ours, *theirs}) if ours.get(i) != theirs.get(i)), 0)
        raise ModelError(
            "SPECC-E0233", "target and drafter have different tokenizers", where=f"token id {different}",
            expected=repr(ours.get(different)), found=repr(theirs.get(different)),
            cure="choose a drafter of the same family, or compile with --method draft_model --translate-tokens",
        )  # fmt: skip


def _vocabulary(model: ImportedModel) -> dict[int, str] | None:
    if model.tokenizer_json is None:
        return None
    tokenizer = json.loads(model.tokenizer_json)
    return {
        **vocabulary(tokenizer),
        **{t["id"]: t["content"] for t in tokenizer.get("added_tokens", [])},
    }


def _trained(
    request: CompileRequest, imported: ImportedModel, shape: Shape, progress: Progress
) -> Choice:
    checkpoint, shape, why = trained_drafter(request, imported, shape, progress)
    return Choice(pipelines.trained(shape, checkpoint.spec.kind, checkpoint), why)


def trained_drafter(
    request: CompileRequest, imported: ImportedModel, shape: Shape, progress: Progress
) -> tuple[DrafterCheckpoint, Shape, tuple[str, ...]]:
    """The drafter trained for the target, `shape` with K that it can draft and its tree, and what was read.

    Raises UsageError (SPECC-E0103) for a K that was asked for and is more than the drafter gives.
    """
    with progress.phase(f"read the drafter{f' {request.drafter}' if request.drafter else ''}"):
        checkpoint = trained.load(request.method, request.model, request.drafter, imported)
    spec, tree = checkpoint.spec, _tree(request)
    why: tuple[str, ...] = (
        f"{spec.source}: " + ", ".join(f"{k} {v}" for k, v in spec.conventions.items()),
    )
    most, limit = spec.most_drafts, "the drafter gives no more at once"
    longest = most if tree is None else tree.depth if isinstance(tree, StaticTree) else tree.most
    if longest < most:
        most, limit = longest, "the tree is no deeper"
    if dropped := [k for k in shape.num_speculative_tokens if k > most]:
        kept = tuple(k for k in shape.num_speculative_tokens if k <= most)
        if request.num_speculative_tokens is not None:
            raise flags.bad_value(
                "--num-speculative-tokens", f"at most {most}: {limit}", dropped[0]
            )
        shape = replace(shape, num_speculative_tokens=tuple(sorted({*kept, most})))
        why += (f"K is at most {most}: {limit}",)
    return checkpoint, replace(shape, tree=tree), why


def _tree(request: CompileRequest) -> Tree | None:
    if request.tree is None:
        return None
    if isinstance(request.tree, int):
        return DynamicTree(request.tree, min(request.tree, TREE_WIDTH))
    try:
        return StaticTree.of(request.tree)
    except ValueError as error:
        raise flags.bad_value(
            "--tree", "paths whose beginnings are paths too", str(error)
        ) from error


def _layerskip(
    request: CompileRequest, imported: ImportedModel, shape: Shape, progress: Progress
) -> Choice:
    given = request.draft_layers
    if given is not None and not _measurable(request, imported, shape):
        return Choice(pipelines.layerskip(shape, given), ("layers were given",))
    (calibration,) = _calibrations(request, imported, shape, progress, 1)
    if given is None:
        with progress.phase("choose the layers to draft with"):
            best, tried = calibration.best_layers()
    else:
        with progress.phase("measure the layers to draft with"):
            best = calibration.estimate(given)
        tried = [best]
    k = max(range(1, 9), key=best.speedup)
    lines = ["layers were given"] if given is not None else []
    lines += [
        f"keeping {len(e.layers)} layers agrees {e.agreement:.2f} at {e.cost:.2f} of the cost"
        for e in tried
    ]
    if best.speedup(k) < 1:
        lines.append(
            f"at best {best.speedup(k):.2f} of plain speed is expected; the K=0 arm protects"
        )
        progress.note(f"layerskip will not pay on this model: {lines[-1]}")
    return Choice(pipelines.layerskip(shape, best.layers), tuple(lines))


def _measurable(request: CompileRequest, imported: ImportedModel, shape: Shape) -> bool:
    """Whether layers that were given can be measured: if not, they are taken as they are."""
    text = imported.tokenizer_json is not None and shape.max_model_len >= LEAST_TOKENS
    return text or request.calibration is not None


def _eagle_adaptive(
    request: CompileRequest, imported: ImportedModel, shape: Shape, progress: Progress
) -> Choice:
    count = imported.program.model.num_layers
    depths = request.depths or tuple(d for d in DEPTHS if d < count)
    if not depths or any(not 0 < d < count for d in depths):
        raise ModelError(
            "SPECC-E0234", f"depths {list(depths)} do not fit a model of {count} layers",
            expected=f"1 to {count - 1}", cure="choose others with --depths",
        )  # fmt: skip
    calibration, *more = _calibrations(request, imported, shape, progress, STRETCHES)
    with progress.phase(f"fit adapters for depths {', '.join(map(str, depths))}"):
        adapters = calibration.fit_adapters(depths, more)
    return Choice(pipelines.eagle_adaptive(shape, count, adapters))


def _structure(
    request: CompileRequest, imported: ImportedModel, shape: Shape, progress: Progress
) -> Choice:
    count, length = (
        (HEAD_STRETCHES, CALIBRATION_TOKENS) if request.structure_head else (4, STRUCTURE_TOKENS)
    )
    calibrations = _calibrations(request, imported, shape, progress, count, length)
    with progress.phase("fit a basis of the last layer's keys and values"):
        basis = fit_structure(calibrations)
    read = sum(len(c.tokens) for c in calibrations)
    why: tuple[str, ...] = (
        f"{basis.weight.shape[0]} of {basis.weight.shape[1]} directions, fitted on {read} tokens",
    )
    head = None
    if request.structure_head:
        with progress.phase("train two layers over them"):
            head, found = fit_head([c.stretch() for c in calibrations], basis)
        why += (
            f"of {found.places} held-out places {found.with_head:.3f} go on as the model does by the trained layers, "
            f"{found.without:.3f} without",
        )
    return Choice(pipelines.structure(shape, basis, request.drafter_options, head), why)


def _calibrations(
    request: CompileRequest,
    imported: ImportedModel,
    shape: Shape,
    progress: Progress,
    count: int,
    tokens: int = CALIBRATION_TOKENS,
) -> list[Calibration]:
    """At most `count` stretches of `tokens` each, run through the target."""
    with progress.phase("calibrate on text"):
        outlined = Pipeline("target", pipelines.target(shape))(imported.program)
        length = min(tokens, shape.max_model_len)
        read = _encode(imported, calibration_text(request.calibration), count * length)
        starts = range(0, max(1, len(read) - length // 2), length)
        calibrations = [Calibration(outlined, read[s : s + length]) for s in starts][:count]
        for calibration in calibrations:
            calibration.influence()  # runs the target, once for all that is asked later
    return calibrations


def calibration_text(path: Path | None) -> str:
    """The user's text, or English prose that every Python has: its own documentation."""
    if path is not None:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(
                "SPECC-E0235", "the calibration text cannot be read", where=str(path),
                found=str(error), cure="pass a UTF-8 text file",
            ) from error  # fmt: skip
    from pydoc_data import topics

    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


def _encode(imported: ImportedModel, text: str, count: int) -> list[int]:
    if imported.tokenizer_json is None:
        raise ModelError(
            "SPECC-E0236", "a self-draft is fitted on text, and this model has no tokenizer",
            where=imported.program.name, expected="tokenizer.json beside the model",
            cure="add tokenizer.json, or name layers with --method layerskip --draft-layers",
        )  # fmt: skip
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(imported.tokenizer_json)
    ids: list[int] = tokenizer.encode(text[: 16 * count]).ids
    return ids[:count]


_PIPELINES: dict[str, Callable[[CompileRequest, ImportedModel, Shape, Progress], Choice]] = {
    "none": _none,
    "ngram": _host,
    "suffix": _host,
    "draft_model": _draft_model,
    "layerskip": _layerskip,
    "eagle:adaptive": _eagle_adaptive,
    STRUCTURE: _structure,
    **dict.fromkeys(TRAINED, _trained),
}
"""By method, as in specc.request.METHODS."""
