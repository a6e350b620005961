"""Proves that no function which the engine calls writes outside of a state buffer, whatever it is given.

By intervals: the engine's promises bound the inputs, operations on integers carry the bounds on to the rows that are
written, and these must lie in the buffer. The promises, each of which the engine keeps in one place
(`core/engine/round.cpp`, `session.cpp`, `run_function.cpp`), for S positions of a text and L texts:

    rows and positions of prefill, extension and pieces    0 to S - 1, of one of the texts
    length n of a round of K                               0 to S - 1 - nodes, so that the rows of all drafts are there,
                                                           and at most S - draft_rows where drafting writes more
    first_row                                              a text's first row, 0 to (L - 1) S
    T                                                      1 to prefill_chunk; of score 1 to L (K + 1), K the greatest

What kernels do inside the rows that they are told is theirs to keep (`tests/runtime/test_kernels.py`), not proved here.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from specc.errors import InvalidProgramError
from specc.ir.dialect import ops
from specc.ir.graphs import has_effect, results_of, state_name
from specc.ir.program import Function, Role, SpeculativeProgram
from specc.ir.types import TensorType

aten = torch.ops.aten


@dataclass(frozen=True)
class Interval:
    """Integers from `low` to `high`, all that a value may hold."""

    low: int
    high: int

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __or__(self, other: Interval) -> Interval:
        return Interval(min(self.low, other.low), max(self.high, other.high))

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


Known = Interval | str | None
"""Bounds of an integer value, the name of a state buffer, or nothing."""


def prove_writes(program: SpeculativeProgram) -> int:
    """How many writes were proved to stay in their buffers, over all functions that the engine calls.

    Raises InvalidProgramError (SPECC-E0376) for the first that may leave its buffer, or of which that is not known.
    The program is planned (`plan-state`) and has its rounds.
    """
    proof = _Proof(program)
    for name, most in _called(program).items():
        function = program.functions[name]
        inputs: list[Known] = [proof.promised(node, most) for node in function.inputs]
        proof.run(function, inputs, _most_rows(program, function), name)
    return proof.writes


def _called(program: SpeculativeProgram) -> dict[str, int]:
    """What the engine calls by name, with the greatest length n that it does so at."""
    last = program.max_model_len - 1
    extend = program.contract.extend
    called = {
        n: last
        for n, f in program.functions.items()
        if f.role in (Role.PREFILL, Role.VERIFY, Role.SCORE, Role.COMMIT)
    }
    called |= {extend: last} if extend else {}
    for played in program.rounds:
        most = last - played.nodes
        if played.k and program.contract.draft_rows:
            most = min(most, program.max_model_len - program.contract.draft_rows)
        called |= {name: most for name in (played.function, played.propose) if name}
    return called


def _most_rows(program: SpeculativeProgram, function: Function) -> int:
    """The greatest T that the engine calls `function` with."""
    if function.role is not Role.SCORE:
        return program.prefill_chunk
    return program.max_num_seqs * (program.contract.num_speculative_tokens[-1] + 1)


class _Proof:
    def __init__(self, program: SpeculativeProgram) -> None:
        self.program, self.writes = program, 0

    def promised(self, node: fx.Node, most: int) -> Known:
        """What the engine gives to an input of this name."""
        each, texts = self.program.max_model_len, self.program.max_num_seqs
        return {
            "length": Interval(0, most),
            "positions": Interval(0, each - 1),
            "rows": Interval(0, each * texts - 1),
            "first_row": Interval(0, each * (texts - 1)),
        }.get(node.name)

    def run(self, function: Function, given: Sequence[Known], rows: int, where: str) -> list[Known]:
        """The bounds of a function's results; all that it writes is looked at. T is at most `rows`."""
        known: dict[fx.Node, Any] = dict(zip(function.inputs, given, strict=True))
        for node in function.graph.nodes:
            if (name := state_name(node)) is not None:
                known[node] = name
            elif node.op == "call_module":
                callee = self.program.functions[str(node.target)]
                known[node] = self.run(
                    callee, [known.get(a) for a in node.args], _rows(node, callee, rows), where
                )
            elif node.op == "call_function" and has_effect(node):
                self._write(node, known, rows, where)
            elif node.op == "call_function":
                known[node] = _bounds(node, known)
        return [known.get(n) for n in results_of(function.graph)]

    def _write(self, node: fx.Node, known: dict[fx.Node, Any], rows: int, where: str) -> None:
        places: list[Known]
        args: tuple[Any, ...] = node.args
        if node.target is ops.cache_write.default:
            buffer, places, dim = known.get(args[0]), [known.get(args[2])], 1
        elif node.target is ops.cache_write_shard.default:
            # By its definition it leaves out what is not its shard's; which rows those are must still be known.
            buffer, dim, first = known.get(args[0]), 1, int(args[3])
            within = isinstance(known.get(args[2]), Interval) and first >= 0
            places = [Interval(0, 0)] if within else [None]
        elif node.target is ops.cache_move.default:
            buffer, places, dim = known.get(args[0]), [known.get(a) for a in args[1:]], 1
        elif node.target is ops.cache_copy.default:
            held = _dims(args[0])[0]
            buffer, places, dim = (
                known.get(args[1]),
                [Interval(0, (rows if held == "T" else held) - 1)],
                0,
            )
        else:
            raise _unproved(
                where, f"{node.target}", "a write of rows", "an operation that may write anything"
            )
        if not isinstance(buffer, str):
            raise _unproved(where, f"{node.target}", "a state buffer", "what is none")
        capacity = int(self.program.state[buffer].type.shape[dim])
        for place in places:
            if not isinstance(place, Interval):
                raise _unproved(
                    where,
                    f"${buffer}",
                    f"rows 0 to {capacity - 1}",
                    "rows of which nothing is known",
                )
            if place.low < 0 or place.high >= capacity:
                raise _unproved(where, f"${buffer}", f"rows 0 to {capacity - 1}", f"rows {place}")
        self.writes += 1


def _dims(value: object) -> tuple[Any, ...]:
    type_ = value.meta.get("type") if isinstance(value, fx.Node) else None
    return type_.shape if isinstance(type_, TensorType) else ()


def _rows(node: fx.Node, callee: Function, outer: int) -> int:
    """What T is in a call: the rows of what is passed where T rows are taken."""
    for value, taken in zip(node.args, callee.inputs, strict=True):
        for given, wanted in zip(_dims(value), _dims(taken), strict=False):
            if wanted == "T":
                return outer if given == "T" else int(given)
    return outer


# Operations that give some of the elements of their first argument, each as it is.
_SAME = frozenset((
    ops.row.default, ops.pad_rows.default, ops.first_rows.default, ops.take.default,
    aten.slice.Tensor, aten.select.int, aten.view.default,
    aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.clone.default,
    aten._to_copy.default, aten.index_select.default, aten.permute.default, aten.flatten.using_ints,
))  # fmt: skip


def _bounds(node: fx.Node, known: dict[fx.Node, Any]) -> object:
    """Of an operation's results; None where nothing is known."""
    args: tuple[Any, ...] = node.args
    first = known.get(args[0]) if args and isinstance(args[0], fx.Node) else None
    if node.target is operator.getitem:
        return first[args[1]] if isinstance(first, list) else None
    if node.target is aten.cat.default:
        parts: list[Any] = [known.get(part) for part in args[0]]
        whole = all(isinstance(part, Interval) for part in parts)
        return functools.reduce(operator.or_, parts) if whole else None
    if not isinstance(first, Interval):
        return None
    if node.target in _SAME:
        return first
    if node.target is ops.positions.default:
        moved = first + Interval(args[2], args[2] + args[1] - 1)
        return Interval(max(0, moved.low), max(0, moved.high))
    if node.target in (ops.rows.default, aten.add.Tensor, aten.add.Scalar):
        second = Interval(args[1], args[1]) if isinstance(args[1], int) else known.get(args[1])
        return first + second if isinstance(second, Interval) and len(args) == 2 else None
    return None


def _unproved(where: str, what: str, expected: str, found: str) -> InvalidProgramError:
    return InvalidProgramError(
        "SPECC-E0376", f"a write may leave its place: {what}", where=where, expected=expected, found=found,
        cure="this is a fault of a pass; run `specc opt --bisect` and report it",
    )  # fmt: skip
