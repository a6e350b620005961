"""Writes of packed caches become commits, in a round after its verdict; what only graphs see stays on a device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specc.backends.onnx.commits import require_caches, resident, with_commits
from specc.backends.plan import Instruction, Plan, Value
from specc.errors import BackendError
from specc.ir import StateBuffer, StateKind, TensorType

ROWS = TensorType("f32", (1, 32, 8))
GRAPHS = ("prefill.graph", "verify_2.graph")


def plan(text: str, outputs: Sequence[str] = ()) -> Plan:
    """Lines of `entry in, in -> out, out`."""
    instructions = []
    for line in text.strip().splitlines():
        entry, _, rest = line.strip().partition(" ")
        given, _, taken = rest.partition("->")
        names = [[n.strip() for n in side.split(",") if n.strip()] for side in (given, taken)]
        instructions.append(Instruction(entry, tuple(names[0]), tuple(names[1])))
    values = tuple(Value(n, TensorType("i64", (1,))) for n in outputs)
    return Plan((), values, tuple(instructions))


def text(of: Plan) -> list[str]:
    return [f"{i.entry} {', '.join(i.inputs)}" for i in of.instructions]


ROUND = plan("""
    specc.masks %positions, %rows -> old, new
    verify_2.graph %tokens, s:rows, %old, %new -> logits, z
    specc.cache_write s:rows, %z, %rows ->
    specc.accept %tokens, %logits, %length, %temperature, %seed -> tokens_out, accepted
""")
PREFILL = plan("""
    prefill.graph %tokens, s:rows -> y
    specc.cache_write s:rows, %y, %rows ->
""")


def commits(of: Plan, state: TensorType = ROWS) -> Plan:
    return with_commits(of, {"rows": state}, GRAPHS)


def test_a_round_commits_what_it_accepted() -> None:
    assert text(commits(ROUND))[2:] == [
        "specc.accept %tokens, %logits, %length, %temperature, %seed",
        "specc.commit s:rows, %z, %rows, %accepted",
    ]
    assert text(commits(PREFILL))[1] == "specc.commit s:rows, %y, %rows", "all rows of a prompt"


def test_a_draft_is_committed_whole_and_at_once() -> None:
    """Its verdict is about one row, whatever it writes; the next draft reads the cache."""
    draft = plan("""
        prefill.graph %tokens, s:rows -> logits, y
        specc.cache_write s:rows, %y, %rows ->
        specc.accept %root, %logits, %length, %temperature, %seed -> drafted, kept
    """)
    assert text(commits(draft))[1] == "specc.commit s:rows, %y, %rows"


def test_a_cache_that_is_read_before_the_verdict_is_written_before() -> None:
    read = plan("""
        verify_2.graph %tokens, s:rows -> logits, z
        specc.cache_write s:rows, %z, %rows ->
        prefill.graph %tokens, s:rows -> y
        specc.accept %tokens, %logits, %length, %temperature, %seed -> tokens_out, accepted
    """)
    assert text(commits(read))[1] == "specc.commit s:rows, %z, %rows"


def test_other_caches_are_written_as_they_were() -> None:
    assert commits(PREFILL, TensorType("f32", (2, 32, 4))) == PREFILL


def test_what_stays_on_the_device() -> None:
    found = resident([commits(ROUND), commits(PREFILL)], GRAPHS)
    assert found.states == {"rows"}
    assert found.inputs == {("verify_2.graph", 1), ("prefill.graph", 1)}
    assert found.outputs == {("verify_2.graph", 1), ("prefill.graph", 0)}


def test_what_the_host_touches_does_not() -> None:
    moves = plan("specc.cache_move s:rows, %from, %to ->")
    found = resident([commits(ROUND), commits(PREFILL), moves], GRAPHS)
    assert not found.states
    assert not found.outputs
    cache = StateBuffer("rows", ROWS, StateKind.KV_CACHE)
    with pytest.raises(BackendError, match="SPECC-E0426"):
        require_caches([cache], found)
    require_caches([cache], resident([commits(PREFILL)], GRAPHS))
    told = plan(
        "prefill.graph %tokens, s:rows -> y\nspecc.cache_write s:rows, %y, %rows ->", ("y",)
    )
    assert not resident([commits(told)], GRAPHS).states, "new rows that a function returns"
    other = plan("prefill.graph %tokens, %elsewhere -> y")
    assert not resident([commits(ROUND), other], GRAPHS).inputs & {("prefill.graph", 1)}
