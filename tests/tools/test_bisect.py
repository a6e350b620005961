"""Bisect names the pass that breaks a program, whichever it is and whatever it breaks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import fx

from specc.bisect import Bisector, short_prompt
from specc.errors import PassError
from specc.ir import SpeculativeProgram
from specc.ir.evaluate import evaluate
from specc.ir.graphs import copy_graph
from specc.ir.importers.drafters import Kind
from specc.ir.program import Function
from specc.passes import Pass, PassResult, Pipeline, pipelines
from specc.passes.keep_structure import Basis
from tests.passes import toy

aten = torch.ops.aten


def eager_of(program: SpeculativeProgram) -> Callable[[torch.Tensor], torch.Tensor]:
    def eager(tokens: torch.Tensor) -> torch.Tensor:
        return evaluate(program, "target", [tokens, torch.arange(len(tokens))], {})[0]

    return eager


def bisector(program: SpeculativeProgram) -> Bisector:
    return Bisector(eager_of(program), toy.TOKENS)


@dataclass(frozen=True)
class Scramble(Pass):
    """Doubles what the first addition of `function` (or of the first leaf with one) gives."""

    name: ClassVar[str] = "scramble"
    function: str = ""

    def call(self, program: SpeculativeProgram) -> PassResult:
        for function in program.functions.values():
            if self.function not in ("", function.name):
                continue
            graph, _ = copy_graph(function.graph)
            node = next((n for n in graph.nodes if n.target is aten.add.Tensor), None)
            if node is None:
                continue
            node.args = (node.args[0], node.args[0])
            changed = Function(function.name, function.role, graph, function.outputs)
            return PassResult(program.replacing(changed), modified=True)
        raise AssertionError("nothing to scramble")


@dataclass(frozen=True)
class Nothing(Pass):
    """Changes nothing."""

    name: ClassVar[str] = "nothing"

    def call(self, program: SpeculativeProgram) -> PassResult:
        return PassResult(program, modified=False)


def run(pipeline: Pipeline, bisect: Bisector, program: SpeculativeProgram) -> None:
    Pipeline(pipeline.name, pipeline.passes, (bisect,))(program)


METHODS: dict[str, Callable[[], Pipeline]] = {
    "ngram": lambda: pipelines.host("ngram", toy.SHAPE, {}),
    "suffix of trees": lambda: pipelines.host("suffix", replace(toy.SHAPE, given_trees=True), {}),
    "mtp:structure": lambda: pipelines.structure(
        toy.SHAPE, Basis(torch.eye(2, 2 * toy.HIDDEN), torch.zeros(2)), {}
    ),
    "layerskip": lambda: pipelines.layerskip(toy.SHAPE, (0,)),
    "draft_model": lambda: pipelines.draft_model(toy.SHAPE, toy.drafter()),
    "eagle:adaptive": lambda: pipelines.eagle_adaptive(toy.SHAPE, 2, toy.adapters(1)),
    "eagle3": lambda: pipelines.trained(toy.SHAPE, Kind.EAGLE3, toy.checkpoint(Kind.EAGLE3)),
    "dspark": lambda: pipelines.trained(toy.SHAPE, Kind.DSPARK, toy.checkpoint(Kind.DSPARK)),
    "medusa": lambda: pipelines.trained(toy.SHAPE, Kind.MEDUSA, toy.checkpoint(Kind.MEDUSA)),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_pipeline_agrees_all_the_way(method: str) -> None:
    program, pipeline = toy.decoder(), METHODS[method]()
    found = bisector(program)
    run(pipeline, found, program)
    assert found.agreed == [p.name for p in pipeline.passes]


@pytest.mark.parametrize("place", range(1, 12))
def test_the_broken_pass_is_named(place: int) -> None:
    program, pipeline = toy.decoder(), METHODS["ngram"]()
    passes = list(pipeline.passes)
    assert len(passes) == 12
    passes.insert(place, Scramble())
    found = bisector(program)
    with pytest.raises(PassError, match="after scramble") as caught:
        run(Pipeline("broken", tuple(passes)), found, program)
    assert caught.value.code == "SPECC-E0339"
    assert found.agreed == [p.name for p in passes[:place]]


def test_what_only_prefill_gets_wrong_is_found() -> None:
    """After build-verify nothing but prefill and verify is left to run."""
    program = toy.decoder()
    done = METHODS["ngram"]()(program)
    prefill = done.functions["prefill"]
    graph, _ = copy_graph(prefill.graph)
    calls = [n for n in graph.nodes if n.op == "call_module"]
    first, second = (_caches(call) for call in calls[-2:])
    # The second layer writes to the first one's cache.
    calls[-1].args = tuple(first[second.index(a)] if a in second else a for a in calls[-1].args)
    broken = done.replacing(Function("prefill", prefill.role, graph, prefill.outputs))
    found = bisector(program)
    assert {d.function for d in found.disagreements(broken)} >= {"verify_0", "verify_2"}
    assert list(found.disagreements(done)) == []


def test_a_program_that_cannot_run_is_found() -> None:
    program = toy.decoder()
    done = METHODS["ngram"]()(program)
    found = bisector(program)
    found.tokens = found.tokens + toy.VOCAB
    reports = list(found.disagreements(done))
    assert {d.function for d in reports} >= {"verify_0", "round_2"}
    assert "IndexError" in reports[0].detail


def _caches(call: fx.Node) -> list[fx.Node]:
    return [a for a in call.all_input_nodes if str(a.target).startswith("state.")]


def test_passes_that_change_nothing_are_not_run_again() -> None:
    program = toy.decoder()
    found = bisector(program)
    run(Pipeline("idle", (Nothing(),)), found, program)
    assert found.agreed == ["nothing"]


def test_the_prompt_fits_the_widest_verify() -> None:
    for k in (0, 1, 8, 32):
        prompt = short_prompt(100, k)
        assert len(prompt) >= k + 2
        assert int(prompt.max()) < 100
