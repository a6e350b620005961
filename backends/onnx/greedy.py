"""Greedy tokens are chosen where the logits are: a graph returns the best token of each row beside them.

A verdict at temperature 0 reads these alone, so logits stay on the device; sampling, and whoever asks for
logits, fetches them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from specc.backends.onnx.commits import Place, uses
from specc.backends.onnx.emitter import Emitter
from specc.backends.onnx.lowerings import reduced
from specc.backends.onnx.store import dtype_number
from specc.backends.plan import FIRST_ROWS, Plan


def judged(plans: Sequence[Plan], graphs: Collection[str]) -> dict[Place, int]:
    """Results of graphs that verdicts read, and no other entry, with how many of a row's logits are tokens."""
    found: dict[Place, set[int]] = {}
    for use in (u for p in plans for u in uses(p, graphs)):
        if use.source is None or use.user is None:
            continue
        # (First rows are for whoever asks for logits, as if they were the plan's own.)
        if use.user.entry == FIRST_ROWS:
            continue
        verdict = use.user.entry == "specc.accept" and use.place == 1
        found.setdefault(use.source, set()).add(use.user.attrs[0] if verdict else 0)
    return {p: next(iter(v)) for p, v in found.items() if len(v) == 1 and 0 not in v}


def with_best(plan: Plan, logits: Collection[Place]) -> Plan:
    """`plan` whose graphs return the best tokens too, after their other results, for verdicts to read."""
    best: dict[str, str] = {}
    instructions = []
    for instruction in plan.instructions:
        made = [o for n, o in enumerate(instruction.outputs) if (instruction.entry, n) in logits]
        if made:
            best |= {f"%{o}": f"{o}_best" for o in made}
            outputs = (*instruction.outputs, *(f"{o}_best" for o in made))
            instruction = replace(instruction, outputs=outputs)
        elif instruction.entry == "specc.accept" and instruction.inputs[1] in best:
            inputs = (*instruction.inputs, f"%{best[instruction.inputs[1]]}")
            instruction = replace(instruction, inputs=inputs)
        instructions.append(instruction)
    return replace(plan, instructions=tuple(instructions))


def best_of(logits: Mapping[Place, int], graph: str) -> dict[int, int]:
    """Which results of `graph` have a best token, in their order, and the size of their vocabularies."""
    return {number: valid for (name, number), valid in sorted(logits.items()) if name == graph}


def emit_best(e: Emitter, logits: str, size: int, valid: int) -> str:
    """The lowest index of the highest of `logits` f32 [T, size] before `valid`; -1 for a row that is not finite."""
    cut = logits if valid == size else e.add("Slice", logits, e.ints(0), e.ints(valid), e.ints(1))
    best = e.add("Cast", e.add("ArgMax", cut, axis=1, keepdims=0), to=dtype_number("i32"))
    nothing = reduced(e, "ReduceSum", e.add("Mul", cut, e.scalar(0, "f32")), [1], False)
    sound = e.add("Equal", nothing, e.scalar(0, "f32"))
    return e.add("Where", sound, best, e.scalar(-1, "i32"))
