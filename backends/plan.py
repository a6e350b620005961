"""Functions flattened to a list of calls of entries: what every runtime executes.

An entry is a compiled leaf or one of the runtime's built-in kernels. Calls of functions that are not leaves are
inlined, so a round is one straight line.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from specc.errors import BackendError
from specc.ir import Function, Role, SpeculativeProgram, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import results_of, state_name, type_of, weight_name


@dataclass(frozen=True)
class Instruction:
    """One call. Inputs are `%value`, `w:weight` or `s:state`; outputs are value names."""

    entry: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Value:
    """An input or output of a plan."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Plan:
    """A function as a straight line of calls."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    instructions: tuple[Instruction, ...]

    def as_json(self) -> dict[str, Any]:
        """The manifest's form (runtime/README.md)."""
        return {
            "inputs": [_value(v) for v in self.inputs],
            "outputs": [_value(v) for v in self.outputs],
            "plan": [
                {"entry": i.entry, "in": list(i.inputs), "out": list(i.outputs)}
                | ({"attrs": list(i.attrs)} if i.attrs else {})
                for i in self.instructions
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of `as_json`."""

        def values(side: str) -> tuple[Value, ...]:
            return tuple(
                Value(v["name"], TensorType(v["dtype"], tuple(v["shape"]))) for v in data[side]
            )

        return cls(
            values("inputs"),
            values("outputs"),
            tuple(
                Instruction(i["entry"], tuple(i["in"]), tuple(i["out"]), tuple(i.get("attrs", ())))
                for i in data["plan"]
            ),
        )


def _value(value: Value) -> dict[str, Any]:
    return {"name": value.name, "dtype": value.type.dtype, "shape": list(value.type.shape)}


FIRST_ROWS = "specc.first_rows"
"""The entry that gives the first rows of a value."""

BUILT_INS: dict[Any, tuple[str, int]] = {
    ops.positions.default: ("specc.positions", 1),
    ops.rows.default: ("specc.rows", 2),
    ops.row.default: ("specc.row", 2),
    ops.pad_rows.default: ("specc.pad_rows", 1),
    ops.first_rows.default: (FIRST_ROWS, 1),
    ops.masks.default: ("specc.masks", 4),
    ops.argmax.default: ("specc.argmax", 1),
    ops.accept.default: ("specc.accept", 5),
    ops.cache_write.default: ("specc.cache_write", 3),
    ops.cache_write_shard.default: ("specc.cache_write_shard", 3),
    ops.roots.default: ("specc.roots", 1),
    ops.take.default: ("specc.take", 2),
    ops.candidates.default: ("specc.candidates", 6),
    ops.cross.default: ("specc.cross", 4),
    ops.best.default: ("specc.best", 1),
    ops.prune_tree.default: ("specc.prune_tree", 3),
    ops.accept_tree.default: ("specc.accept_tree", 6),
    ops.cache_copy.default: ("specc.cache_copy", 2),
    ops.cache_move.default: ("specc.cache_move", 3),
    torch.ops.aten.cat.default: ("specc.cat", 1),
}
"""Operation -> entry of the runtime, and how many of its arguments are values (the rest are attributes)."""


def plans_of(program: SpeculativeProgram) -> dict[str, Plan]:
    """What a runtime calls: prefill, verify, score, commit, rounds, what proposes, what extends a drafter."""
    called = (Role.PREFILL, Role.VERIFY, Role.SCORE, Role.COMMIT, Role.ROUND)
    drafting = {program.contract.extend, *(played.propose for played in program.rounds)}
    return {
        name: plan_of(program, function)
        for name, function in program.functions.items()
        if function.role in called or name in drafting
    }


def plan_of(program: SpeculativeProgram, function: Function) -> Plan:
    """Flatten `function`. Raises BackendError for an operation that is neither a leaf nor built in."""
    planner = _Planner(program)
    inputs = {n: f"%{n.name}" for n in function.inputs}
    results = planner.inline(function, inputs)
    types = map(type_of, results_of(function.graph))
    names = dict(zip(results, function.outputs, strict=True))
    return Plan(
        tuple(Value(n.name, type_of(n)) for n in function.inputs),
        tuple(Value(name, type_) for name, type_ in zip(names.values(), types, strict=True)),
        tuple(_with_names(i, names) for i in planner.instructions),
    )


def _with_names(instruction: Instruction, names: Mapping[str, str]) -> Instruction:
    """Results carry the names that the function gives them."""
    return replace(
        instruction,
        inputs=tuple(f"%{names[i]}" if i in names else i for i in instruction.inputs),
        outputs=tuple(names.get(f"%{o}", o) for o in instruction.outputs),
    )


class _Planner:
    def __init__(self, program: SpeculativeProgram) -> None:
        self.program = program
        self.instructions: list[Instruction] = []
        self._values = 0

    def inline(self, function: Function, refs: dict[fx.Node, str]) -> list[str]:
        """Append the function's calls; `refs` holds its inputs. Returns the references of its results."""
        bundles: dict[fx.Node, list[str]] = {}
        for node in function.graph.nodes:
            if (weight := weight_name(node)) is not None:
                refs[node] = f"w:{weight}"
            elif (state := state_name(node)) is not None:
                refs[node] = f"s:{state}"
            elif node.op == "call_module":
                bundles[node] = self._call(node, [refs[a] for a in node.args])
            elif node.target is operator.getitem:
                refs[node] = bundles[node.args[0]][node.args[1]]
            elif node.op == "call_function":
                results = self._built_in(function, node, refs)
                bundles[node] = results
                if results:
                    refs[node] = results[0]
        return [refs[n] for n in results_of(function.graph)]

    def _call(self, node: fx.Node, args: list[str]) -> list[str]:
        callee = self.program.functions[str(node.target)]
        if callee.role is not Role.LEAF:
            return self.inline(callee, dict(zip(callee.inputs, args, strict=True)))
        return self._emit(callee.name, args, len(callee.outputs), ())

    def _built_in(self, function: Function, node: fx.Node, refs: dict[fx.Node, str]) -> list[str]:
        if node.target not in BUILT_INS:
            raise BackendError(
                "SPECC-E0401",
                f"{node.target} stands outside a leaf and the runtime has no such kernel",
                where=function.name,
                cure="report this as a bug",
            )
        entry, values = BUILT_INS[node.target]
        operands: list[Any] = []
        for argument in node.args[:values]:
            if argument is None:  # an optional tensor, the last of them
                continue
            operands += argument if isinstance(argument, (list, tuple)) else [argument]
        attrs = tuple(int(a) for a in node.args[values:])  # type: ignore[arg-type]
        type_ = node.meta.get("type")
        count = 0 if type_ is None else len(type_) if isinstance(type_, tuple) else 1
        return self._emit(entry, [refs[a] for a in operands], count, attrs)

    def _emit(
        self, entry: str, inputs: list[str], outputs: int, attrs: tuple[int, ...]
    ) -> list[str]:
        names = [f"v{self._values + i}" for i in range(outputs)]
        self._values += outputs
        self.instructions.append(Instruction(entry, tuple(inputs), tuple(names), attrs))
        return [f"%{n}" for n in names]
