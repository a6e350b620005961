"""What a device keeps: caches that only graphs read, and new rows for them. In plans, what takes these is a commit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specc.backends.plan import Instruction, Plan
from specc.errors import BackendError
from specc.ir import StateBuffer, StateKind, TensorType

COMMIT = "specc.commit"
"""The entry of model.so that copies new rows into a cache (runtime/cpp/graphs)."""

_WRITES = ("specc.cache_write", "specc.cache_copy")

Place = tuple[str, int]
"""An input or a result of a graph: its name, and which."""


@dataclass(frozen=True)
class Resident:
    """`states`: their names. `inputs`, `outputs`: those values of graphs that a device keeps."""

    states: frozenset[str]
    inputs: frozenset[Place]
    outputs: frozenset[Place]


def with_commits(plan: Plan, states: Mapping[str, TensorType], graphs: Collection[str]) -> Plan:
    """`plan` with a commit for each cache_write to a packed cache of what a graph returns.

    In a round it comes after the verdict and copies the accepted prefix: what was rejected never gets
    into the cache, where it might be a NaN, which no mask hides.
    """
    source = {o: i for i in plan.instructions for o in i.outputs if i.entry in graphs}
    verdict = _verdict(plan, source)
    instructions: list[Instruction] = []
    late: list[Instruction] = []
    for instruction in plan.instructions:
        if instruction.entry == "specc.cache_write":
            state, rows, _ = instruction.inputs
            if rows[1:] in source and states[state[2:]].at()[0] == 1:
                instruction = replace(instruction, entry=COMMIT)
                if verdict and source[rows[1:]] is source[verdict.inputs[1][1:]]:
                    accepted = f"%{verdict.outputs[1]}"
                    late.append(replace(instruction, inputs=(*instruction.inputs, accepted)))
                    continue
        instructions.append(instruction)
        if instruction is verdict:
            instructions += late
    return replace(plan, instructions=tuple(instructions))


def _verdict(plan: Plan, source: Mapping[str, Instruction]) -> Instruction | None:
    """What says how many drafts of a round are accepted, if no state is read between its graph and itself."""
    for at, instruction in enumerate(plan.instructions):
        if instruction.entry == "specc.accept" and instruction.outputs[1] == "accepted":
            graph = source.get(instruction.inputs[1][1:])
            if graph is None:
                return None
            between = plan.instructions[plan.instructions.index(graph) + 1 : at]
            reads = [r for i in between if i.entry not in _WRITES for r in i.inputs]
            return None if any(r.startswith("s:") for r in reads) else instruction
    return None


def require_caches(state: Collection[StateBuffer], kept: Resident) -> None:
    """Raise BackendError (SPECC-E0426) for a cache that would travel to the device and back with every call."""
    for buffer in state:
        if buffer.kind is StateKind.KV_CACHE and buffer.name not in kept.states:
            raise BackendError(
                "SPECC-E0426", "a cache cannot stay on the NPU, since the host moves rows in it", where=buffer.name,
                expected="rounds of chains of drafts", cure="leave out --tree, or use --device onnx",
            )  # fmt: skip


def resident(plans: Sequence[Plan], graphs: Collection[str]) -> Resident:
    """States that are nothing but inputs of graphs and targets of commits, and what goes with them.

    A graph has one table for all its calls, so what one call cannot leave on the device none does.
    """
    seen = [u for p in plans for u in uses(p, graphs)]
    states = {u.ref for u in seen if u.is_commit and u.place == 0}
    while True:
        read = {u.where for u in seen if u.ref in states} - {
            u.where for u in seen if u.ref not in states
        }
        made = {u.source for u in seen if u.rows_of(states)}
        made -= {u.source for u in seen if not u.rows_of(states)}
        lost = {
            u.ref for u in seen
            if u.ref in states and not (u.is_commit and u.place == 0)
            and not (u.where in read and u.user is not None and u.user.entry in graphs)
        }  # fmt: skip
        lost |= {u.user.inputs[0] for u in seen if u.user and u.rows_of(states) and u.source not in made}  # fmt: skip
        if not lost:
            break
        states -= lost
    inputs = frozenset(where for where in read if where[0] in graphs)
    return Resident(frozenset(s[2:] for s in states), inputs, frozenset(s for s in made if s))


@dataclass(frozen=True)
class Use:
    """A value or state `ref` as input `place` of `user`, or a result of the plan; `source`: of which graph, if any."""

    user: Instruction | None
    place: int
    ref: str
    source: Place | None

    @property
    def where(self) -> Place:
        """Whose input it is, and which."""
        return (self.user.entry if self.user else "", self.place)

    @property
    def is_commit(self) -> bool:
        """Whether a commit takes it."""
        return self.user is not None and self.user.entry == COMMIT

    def rows_of(self, states: set[str]) -> bool:
        """Whether this is what a commit copies into one of `states`."""
        return bool(self.user and self.is_commit and self.place == 1 and self.user.inputs[0] in states)  # fmt: skip


def uses(plan: Plan, graphs: Collection[str]) -> Iterator[Use]:
    """Each use of a value or state in `plan`."""
    source = {
        f"%{o}": (i.entry, n)
        for i in plan.instructions if i.entry in graphs for n, o in enumerate(i.outputs)
    }  # fmt: skip
    for instruction in plan.instructions:
        for place, ref in enumerate(instruction.inputs):
            yield Use(instruction, place, ref, source.get(ref))
    for place, value in enumerate(plan.outputs):
        ref = f"%{value.name}"
        yield Use(None, place, ref, source.get(ref))
