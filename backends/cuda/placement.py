"""Which values of a plan lie on the GPU, and the entries that carry them up and down."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from specc.backends.cuda.refusal import refusal
from specc.backends.plan import Instruction, Plan, Value

UPLOAD, FETCH = "cuda.upload", "cuda.fetch"
_FREE = ("specc.positions", "specc.rows", "specc.cat", "specc.roots")
"""Integers from integers: done first, so that they go up together."""


def placed(plan: Plan, leaves: Collection[str]) -> Plan:
    """`plan` with leaves on the GPU and the host's kernels on the host.

    Before: cat, positions, leaf, accept                             leaf reads what cat gave
    After:  cat, positions, cuda.upload, leaf, accept, cuda.fetch    by one copy up, one down, one wait

    Tokens and counts, what is of integers, are fetched at the end; logits stay on the GPU until somebody looks at
    them. Raises BackendError (SPECC-E0452) for a kernel of the host that works on state.
    """
    return _Placer(plan, leaves).plan()


class _Placer:
    def __init__(self, plan: Plan, leaves: Collection[str]) -> None:
        self.before, self.leaves = plan, leaves
        self.instructions: list[Instruction] = []
        self.here = {f"%{v.name}" for v in plan.inputs}
        self.there: dict[str, str] = {}
        """Host value -> its name on the GPU."""
        self.fetched: dict[str, str] = {}
        """Value of the GPU -> its name here."""

    def plan(self) -> Plan:
        rest = list(self._free())
        wanted = [r for i in rest if i.entry in self.leaves for r in i.inputs if r in self.here]
        self._carry(UPLOAD, wanted, self.there)
        for instruction in rest:
            if instruction.entry in self.leaves:
                self._leaf(instruction)
            else:
                self._built_in(instruction)
        integers = [f"%{v.name}" for v in self.before.outputs if v.type.dtype == "i64"]
        self._carry(FETCH, [r for r in integers if r not in self.here], self.fetched)
        outputs = tuple(
            replace(v, name=self.fetched.get(f"%{v.name}", f"%{v.name}")[1:])
            for v in self.before.outputs
        )
        return _renamed(replace(self.before, instructions=tuple(self.instructions)), outputs)

    def _free(self) -> Iterator[Instruction]:
        """Do what the host can do first; gives the rest."""
        for instruction in self.before.instructions:
            known = all(r in self.here or r.startswith("w:") for r in instruction.inputs)
            if instruction.entry in _FREE and known:
                self.instructions.append(instruction)
                self.here.update(f"%{o}" for o in instruction.outputs)
            else:
                yield instruction

    def _leaf(self, instruction: Instruction) -> None:
        self._carry(UPLOAD, [r for r in instruction.inputs if r in self.here], self.there)
        inputs = tuple(self.there.get(r, r) for r in instruction.inputs)
        self.instructions.append(replace(instruction, inputs=inputs))

    def _built_in(self, instruction: Instruction) -> None:
        if any(r.startswith("s:") for r in instruction.inputs):
            raise refusal(f"{instruction.entry} on state", instruction.inputs[0])
        values = [r for r in instruction.inputs if r.startswith("%")]
        self._carry(FETCH, [r for r in values if r not in self.here], self.fetched)
        inputs = tuple(self.fetched.get(r, r) for r in instruction.inputs)
        self.instructions.append(replace(instruction, inputs=inputs))
        self.here.update(f"%{o}" for o in instruction.outputs)

    def _carry(self, entry: str, refs: list[str], known: dict[str, str]) -> None:
        """One instruction for those of `refs` that were not carried before."""
        new = [r for r in dict.fromkeys(refs) if r not in known]
        if not new:
            return
        suffix = "gpu" if entry == UPLOAD else "here"
        known |= {r: f"{r}_{suffix}" for r in new}
        self.instructions.append(Instruction(entry, tuple(new), tuple(known[r][1:] for r in new)))


def _renamed(plan: Plan, results: tuple[Value, ...]) -> Plan:
    """`plan` that returns `results` under the names that it had for what it returned."""
    names = {
        new.name: old.name for old, new in zip(plan.outputs, results, strict=True) if old != new
    }
    names |= {old: f"{old}_gpu" for old in names.values()}

    def renamed(ref: str) -> str:
        return f"%{names.get(ref[1:], ref[1:])}" if ref.startswith("%") else ref

    instructions = tuple(
        replace(
            i,
            inputs=tuple(map(renamed, i.inputs)),
            outputs=tuple(names.get(o, o) for o in i.outputs),
        )
        for i in plan.instructions
    )
    return replace(plan, instructions=instructions)
