"""What a pass is and does, read from the pass itself."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import cast

from specc.errors import UsageError
from specc.ir import SpeculativeProgram
from specc.ir.importers.drafters import DrafterCheckpoint, Kind
from specc.method_table import STRUCTURE, TRAINED
from specc.passes import Pass, Pipeline, pipelines
from specc.passes.keep_structure import Basis
from specc.passes.plan_arena import PlanArena
from specc.passes.quantise_weights import QuantiseWeights
from specc.passes.shard_caches import ShardCaches
from specc.passes.translate_tokens import TranslateTokens

LONGEST_DIFF = 60

_EVERY = pipelines.Shape(max_num_seqs=2, weights=QuantiseWeights(), draft_ids=(0,))
"""What asks for all passes that a flag may ask for."""


def pipeline_of(method: str, *, every: bool = False) -> Pipeline:
    """The passes of `method` in order, for reading: their options are placeholders.

    `every`: those too that run only where --quant, --draft-vocab-size, --max-num-seqs, --device or --kv-shards asks
    for them.
    """
    if every:
        graphs = pipelines.as_graphs(
            _pipeline(method, _EVERY), half=True, one=True, shards=ShardCaches(2)
        )
        return pipelines.placed(graphs, PlanArena())
    return pipelines.placed(_pipeline(method, pipelines.Shape()), PlanArena())


def _pipeline(method: str, shape: pipelines.Shape) -> Pipeline:
    if method == "draft_model":
        return pipelines.draft_model(shape, cast(SpeculativeProgram, None))
    if method == "layerskip":
        return pipelines.layerskip(shape, ())
    if method == "eagle:adaptive":
        return pipelines.eagle_adaptive(shape, 0, {})
    if method == STRUCTURE:
        return pipelines.structure(shape, cast(Basis, None), {})
    if method in TRAINED and Kind(method) in pipelines.TRAINED:
        return pipelines.trained(shape, Kind(method), cast(DrafterCheckpoint, None))
    return pipelines.host(method, shape, {})


def list_passes(method: str) -> list[tuple[int, str, str]]:
    """Number, name and summary of every pass of `method`."""
    passes = pipeline_of(method).passes
    return [(i, p.name, _summary(type(p))) for i, p in enumerate(passes, 1)]


def _beside(method: str) -> Iterator[Pipeline]:
    """What is run beside the pipeline of `method`: for a second model, and for an engine that is given pieces."""
    yield pipelines.pieces(_EVERY)
    if method == "draft_model":
        yield pipelines.drafter_model(_EVERY, TranslateTokens())
    if method in TRAINED:
        yield pipelines.drafter_pieces(_EVERY, cast(DrafterCheckpoint, None))


def find_pass(name: str, method: str, *, beside: bool = False) -> type[Pass]:
    """The pass called `name` in the pipeline of `method`; raises UsageError (SPECC-E0110) if there is none.

    `beside`: also among passes that make a drafter ready, or pieces for MLC, which opt explains but does not run.
    """
    searched = [pipeline_of(method, every=True)]
    # Checkpoints of several kinds may go by one method: P-EAGLE's are of eagle3.
    searched += [
        pipelines.trained(_EVERY, kind, cast(DrafterCheckpoint, None))
        for kind in pipelines.TRAINED
        if kind.method == method
    ]
    searched += _beside(method) if beside else ()
    known = {p.name: type(p) for pipeline in searched for p in pipeline.passes}
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            "SPECC-E0110", f"no pass {name} in the pipeline {method}", expected=", ".join(known),
            cure=f"did you mean {close[0]}?" if close else "name one of these",
        )  # fmt: skip
    return known[name]


def describe(pass_: type[Pass]) -> str:
    """Its documentation, options, and what it requires and ensures, as the code says it."""
    lines = [pass_.name, "", textwrap.indent(inspect.getdoc(pass_) or "", "  "), "", "options:"]
    lines += list(_options(pass_)) or ["  none"]
    for promise in ("requires", "ensures"):
        lines += ["", f"{promise}, beyond ir.check:"]
        lines += list(_code(pass_, promise)) or ["  nothing"]
    return "\n".join(lines)


def diff(before: str, after: str) -> str:
    """A unified diff of two programs' text, cut to a screenful."""
    lines = list(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=2
        )
    )
    left_out = len(lines) - LONGEST_DIFF
    if left_out > 0:
        lines = [*lines[:LONGEST_DIFF], f"... {left_out} more lines; --dump-dir DIR writes all"]
    return "\n".join(lines)


def _summary(pass_: type[Pass]) -> str:
    return (inspect.getdoc(pass_) or "").split("\n", 1)[0]


def _options(pass_: type[Pass]) -> Iterator[str]:
    for option in fields(pass_):
        if option.default is not MISSING:
            default = repr(option.default)
        elif option.default_factory is not MISSING:
            default = repr(option.default_factory())
        else:
            default = "required"
        yield f"  {option.name}: {option.type} = {default}"


def _code(pass_: type[Pass], method: str) -> Iterator[str]:
    """The body of `method`, if the pass has its own."""
    if method not in vars(pass_):
        return
    source = textwrap.dedent(inspect.getsource(vars(pass_)[method]))
    body = textwrap.dedent("\n".join(source.splitlines()[1:]))
    yield from textwrap.indent(body, "  ").splitlines()
