"""The proof that no write leaves its buffer: it holds for every method, and a planted overflow is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specc.errors import InvalidProgramError
from specc.ir import (
    DynamicTree,
    Owner,
    SpeculativeProgram,
    StateBuffer,
    StateKind,
    TensorType,
    Tree,
)
from specc.ir.dialect import ops
from specc.ir.extents import Interval, prove_writes
from specc.ir.graphs import copy_graph
from specc.ir.program import Function
from specc.passes import pipelines
from tests.passes import toy

METHODS = ("ngram", "layerskip", "draft_model", "eagle:adaptive", "eagle3", "dspark", "medusa")


def refused(program: SpeculativeProgram) -> InvalidProgramError:
    with pytest.raises(InvalidProgramError) as error:
        prove_writes(program)
    assert error.value.code == "SPECC-E0376"
    return error.value


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_proved(method: str) -> None:
    program = toy.after("fuse-round", method=method)
    writes = sum(
        1
        for function in program.functions.values()
        for node in function.graph.nodes
        if node.target in (ops.cache_write.default, ops.cache_copy.default)
    )
    assert prove_writes(program) >= writes > 0  # leaves are looked at where they are called


@pytest.mark.parametrize(("method", "tree"), [("eagle3", DynamicTree(4, 2)), ("medusa", toy.TREE)])
def test_trees_are_proved(method: str, tree: Tree) -> None:
    program = toy.after("fuse-round", method=method, tree=tree)
    assert any(n.target is ops.cache_move.default for n in program.functions["round_2"].graph.nodes)
    prove_writes(program)


def test_graphs_that_return_new_rows_are_proved() -> None:
    for method in ("ngram", "draft_model", "eagle3"):
        pipeline = {
            "ngram": lambda: pipelines.host("ngram", toy.SHAPE, {}),
            "draft_model": lambda: pipelines.draft_model(toy.SHAPE, toy.drafter()),
            "eagle3": lambda: pipelines.trained(
                toy.SHAPE, toy.Kind.EAGLE3, toy.checkpoint(toy.Kind.EAGLE3)
            ),
        }[method]()
        prove_writes(pipelines.as_graphs(pipeline)(toy.decoder()))


def moved(program: SpeculativeProgram, name: str, by: int) -> SpeculativeProgram:
    """Where the function `name` computes positions, they are `by` further on: the fault of an index."""
    function = program.functions[name]
    graph, _ = copy_graph(function.graph)
    for node in graph.nodes:
        if node.target is ops.positions.default:
            node.args = (node.args[0], node.args[1], node.args[2] + by)
    return program.replacing(Function(name, function.role, graph, function.outputs))


def test_rows_that_are_one_too_far_are_refused() -> None:
    """K rows beyond the root fit exactly: one more does not, and one less is no fault of this kind."""
    program = toy.after("fuse-round")
    prove_writes(moved(program, "round_2", -1))
    error = refused(moved(program, "round_2", 1))
    assert (error.where, error.expected, error.found) == ("round_2", "rows 0 to 15", "rows 1 to 16")
    assert "$target.k.0" in error.what


@pytest.mark.parametrize("end", ["source", "target"])
@pytest.mark.parametrize(("method", "tree"), [("eagle3", DynamicTree(4, 2)), ("medusa", toy.TREE)])
def test_a_path_that_is_moved_from_or_to_one_row_too_far_is_refused(
    method: str, tree: Tree, end: str
) -> None:
    """The path that accept_tree chose: rows of all caches are moved, and only they are planted with a fault.

    A path is shorter than its tree, so its rows end before the tree's do.
    """
    program = toy.after("fuse-round", method=method, tree=tree)
    function = program.functions["round_2"]
    graph, _ = copy_graph(function.graph)
    place = ("source", "target").index(end) + 1
    nodes = next(r.nodes for r in program.rounds if r.k == 2)
    by = 1 if end == "source" else nodes - 2 + 1
    move = next(n for n in graph.nodes if n.target is ops.cache_move.default)
    rows = move.args[place]
    with graph.inserting_before(move):
        beyond = graph.call_function(torch.ops.aten.add.Tensor, (rows, by))
    beyond.meta = dict(rows.meta)
    move.args = tuple(beyond if i == place else a for i, a in enumerate(move.args))
    error = refused(program.replacing(Function("round_2", function.role, graph, function.outputs)))
    assert error.where == "round_2"
    assert error.found == f"rows {by} to {toy.POSITIONS}"


def test_a_drafter_that_writes_too_far_is_refused() -> None:
    program = toy.after("fuse-round", method="draft_model")
    refused(moved(program, "propose_2", 2))
    wide = replace(program.contract, draft_rows=toy.POSITIONS)
    prove_writes(moved(replace(program, contract=wide), "propose_2", 2))  # then n is 0 at most


def test_a_buffer_that_is_too_small_is_refused() -> None:
    program = toy.after("fuse-round")
    cache = program.state["target.v.1"]
    short = replace(cache, type=TensorType("f32", (1, toy.POSITIONS - 1, 4)))
    error = refused(replace(program, state={**program.state, cache.name: short}))
    assert (error.expected, error.found) == ("rows 0 to 14", "rows 0 to 15")


def test_taps_hold_the_rows_of_a_call() -> None:
    program = toy.after("fuse-round", method="eagle:adaptive")
    tap = program.state["tap.1"]
    short = StateBuffer(tap.name, TensorType("f32", (7, 4)), StateKind.HIDDEN_STATES, Owner.DRAFTER)
    assert refused(replace(program, state={**program.state, tap.name: short})).where == "prefill"


def test_several_texts_have_rows_of_their_own() -> None:
    program = toy.after("fuse-round")
    two = {
        n: replace(b, type=TensorType("f32", (1, 2 * toy.POSITIONS, 4)))
        for n, b in program.state.items()
    }
    prove_writes(replace(program, state=two, max_num_seqs=2))
    refused(replace(program, max_num_seqs=2))


def test_rows_of_which_nothing_is_known_are_refused() -> None:
    program = toy.after("fuse-round")
    function = program.functions["round_2"]
    graph, _ = copy_graph(function.graph)
    rows = next(n for n in graph.nodes if n.target is ops.rows.default)
    tokens = next(n for n in graph.nodes if n.op == "placeholder" and n.name == "drafts")
    rows.replace_all_uses_with(tokens)
    odd = program.replacing(Function("round_2", function.role, graph, function.outputs))
    assert refused(odd).found == "rows of which nothing is known"


def test_intervals() -> None:
    assert Interval(0, 3) + Interval(2, 5) == Interval(2, 8)
    assert Interval(0, 3) | Interval(-2, 1) == Interval(-2, 3)
