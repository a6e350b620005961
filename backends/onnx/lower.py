"""A program -> ONNX models, a library that plays rounds around them, and what CANN makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import onnx

from specc.backends.base import Device, Lowered, Progress
from specc.backends.onnx import ascend
from specc.backends.onnx import lowerings as _lowerings
from specc.backends.onnx.atc import Job
from specc.backends.onnx.commits import (
    COMMIT,
    Place,
    Resident,
    require_caches,
    resident,
    with_commits,
)
from specc.backends.onnx.emitter import Emission, Emitter, write_model
from specc.backends.onnx.greedy import best_of, emit_best, judged, with_best
from specc.backends.onnx.store import WeightFiles
from specc.backends.onnx.table import DEFAULT_OPSET
from specc.backends.plan import Plan, plans_of
from specc.backends.toolchain import Toolchain, c_dtype, played_leaves
from specc.cann import find_cann
from specc.errors import BackendError
from specc.ir import Function, Role, SpeculativeProgram, WeightStore
from specc.ir.graphs import results_of, type_of, weight_name
from specc.ir.sharding import Sharding
from specc.ir.types import TensorType

FOLDER = "graphs"
"""Where an artifact has its models and their weights."""

Graphs = list[tuple[Function, Mapping[str, str]]]
"""Leaves, and which of their inputs are which weights."""

assert _lowerings  # registers what operations become


class OnnxBackend:
    """Whole graphs as ONNX models; the engine on the CPU plays rounds and hands each graph to whoever runs it."""

    name: ClassVar[str] = "onnx"

    def ahead(self, device: Device) -> AbstractContextManager[None]:
        """Compile kernels and engine while the model is imported."""
        return Toolchain(device.isa).ahead()

    def lower(
        self, program: SpeculativeProgram, into: Path, device: Device, progress: Progress
    ) -> Lowered:
        """Write graphs/*.onnx, graphs/weight_*, model.so and libspecc.

        Raises BackendError: SPECC-E0421 for an operation that has no form in CANN's table of operators, with its layer;
        E0422 to E0425 for models and programs that are not legal; E0426 for a cache that cannot stay on an NPU.
        """
        graphs = graphs_of(program)
        soc = device.graphs.partition(":")[2]
        # (No runtime plays the shards of several NPUs yet.)
        npu = soc if program.sharding is None else ""
        plans = _plans(program, graphs)
        logits = judged(list(plans.values()), [leaf.name for leaf, _ in graphs]) if npu else {}
        plans = {name: with_best(plan, logits) for name, plan in plans.items()}
        (into / FOLDER).mkdir()
        weights = WeightFiles(program.weights, into / FOLDER)
        opset = device.opset or DEFAULT_OPSET
        described: dict[str, dict[str, object]] = {}
        jobs = []
        with progress.phase(f"write {len(graphs)} ONNX models, opset {opset}"):
            for leaf, bound in graphs:
                model = Emitter(leaf, opset, weights).model(bound, _best(leaf, logits))
                file = f"{FOLDER}/{leaf.name}.onnx"
                write_model(model, into / file)
                described[leaf.name] = {
                    "file": file, "operators": sorted({n.op_type for n in model.graph.node}),
                }  # fmt: skip
                names = tuple(n.name for n in model.graph.node)
                jobs.append(Job(leaf.name, file, _io(leaf, bound), names))
        files = [str(d["file"]) for d in described.values()] + [
            f"{FOLDER}/{f}" for f in weights.files
        ]
        kept = resident(list(plans.values()), [leaf.name for leaf, _ in graphs])
        if npu:
            require_caches(program.state.values(), kept)
        with progress.phase(f"compile for {device.isa}"):
            table = graph_table(graphs, device.isa, kept, logits, npu)
            files += _link(table, into, device.isa, bool(npu))
        facts: dict[str, object] = {
            "format": "onnx", "opset": opset, "functions": described, "state": "onnx-only",
            "verified_on_npu": False,
        }  # fmt: skip
        if any(
            program.weights[w].type.dtype == "f16" for _, bound in graphs for w in bound.values()
        ):
            facts["dtype"] = "f16"
        if program.sharding is not None:
            facts["shards"] = _shards(program.sharding, device.link_gbps)
        if soc:
            files += _ascend(soc, jobs, facts, into, progress)
        return Lowered(
            tuple(files),
            plans,
            WeightStore(),
            {"onnx": onnx.__version__},
            graphs=facts,
            # What an NPU does with one graph nobody has seen.
            lossless=not soc and _is_one(program, plans, graphs),
        )


def _is_one(program: SpeculativeProgram, plans: Mapping[str, Plan], graphs: Graphs) -> bool:
    """Whether one graph scores the rows of every K: onnxruntime then has one order for each sum of a row."""
    names = {leaf.name for leaf, _ in graphs}
    verifies = [p for n, p in plans.items() if program.functions[n].role is Role.VERIFY]
    used = {i.entry for p in verifies for i in p.instructions if i.entry in names}
    return len(used) == 1 and program.sharding is None


def _shards(sharding: Sharding, link_gbps: float) -> dict[str, object]:
    """The manifest's form (runtime/graph_facts.py)."""
    costs = [
        {**vars(c), "way": str(c.way)}
        | ({"link_microseconds": c.link_microseconds(link_gbps)} if link_gbps and not c.refused else {})
        for c in sharding.costs
    ]  # fmt: skip
    return {"count": sharding.count, "way": str(sharding.way), "costs": costs}


def _ascend(
    soc: str, jobs: list[Job], facts: dict[str, object], into: Path, progress: Progress
) -> list[str]:
    """Add what CANN makes to the artifact and to `facts`, or the script to do so; returns what was written."""
    facts["soc"] = soc
    files = [ascend.write_script(jobs, soc, into)]
    cann = find_cann()
    if cann is None:
        return files
    progress.note(f"{cann}; specc has not verified what it makes on any NPU")
    if others := cann.lacks_operators(soc):
        progress.note(
            f"there are no operators for {soc}, whose ops package may be missing; there are for: {others}"
        )
    made = ascend.compile_all(cann, jobs, soc, into, progress)
    facts |= {"state": "om", "cann": cann.version, "om": made}
    folder = into / ascend.OUTPUT
    return files + [str(p.relative_to(into)) for p in sorted(folder.rglob("*")) if p.is_file()]


def graphs_of(program: SpeculativeProgram) -> Graphs:
    """Each leaf, and which of its inputs are which weights."""
    bound: dict[str, dict[str, str]] = {}
    for call, given, taken in program.leaf_arguments():
        weights = bound.setdefault(str(call.target), {})
        name = weight_name(given)
        if name is not None and weights.setdefault(taken.name, name) != name:
            raise BackendError(
                "SPECC-E0425", f"{call.target} is called with several weights", where=taken.name,
                expected="the pipeline's phase for graphs", cure="report this as a bug",
            )  # fmt: skip
    leaves = [f for f in program.functions.values() if f.role is Role.LEAF]
    for leaf in leaves:
        if any("T" in type_of(n).shape for n in leaf.inputs):
            raise BackendError(
                "SPECC-E0425", f"{leaf.name} has T rows", expected="the pipeline's phase for graphs",
                cure="report this as a bug",
            )  # fmt: skip
    return [(leaf, bound.get(leaf.name, {})) for leaf in leaves]


def _io(leaf: Function, bound: Mapping[str, str]) -> dict[str, list[int]]:
    return {n.name: list(type_of(n).at()) for n in leaf.inputs if n.name not in bound}


def _plans(program: SpeculativeProgram, graphs: Graphs) -> dict[str, Plan]:
    """The plans as graphs need them: without the weights that these have in themselves, and with commits."""
    taken = {leaf.name: [n.name not in bound for n in leaf.inputs] for leaf, bound in graphs}
    states = {name: buffer.type for name, buffer in program.state.items()}
    return {
        name: with_commits(_bare(plan, taken), states, taken)
        for name, plan in plans_of(program).items()
    }


def _bare(plan: Plan, taken: Mapping[str, list[bool]]) -> Plan:
    """The plan without the weights that graphs have in themselves."""
    return replace(
        plan,
        instructions=tuple(
            replace(
                i, inputs=tuple(ref for ref, wanted in zip(i.inputs, taken[i.entry], strict=True) if wanted)
            )
            if i.entry in taken
            else i
            for i in plan.instructions
        ),
    )  # fmt: skip


def _link(table: str, into: Path, isa: str, device: bool) -> tuple[str, ...]:
    """model.so and libspecc.so; returns what was written."""
    chain = Toolchain(isa)
    with chain.at_work() as start:
        model = start(
            [*chain.kernels(), *chain.player("graphs", table, parts=["acl"] if device else [])]
        )
        engine = start(chain.engine())
        model_objects, engine_objects = ([f.result() for f in part] for part in (model, engine))
    return chain.write(into, model_objects, engine_objects, static=False)


def _best(leaf: Function, logits: Mapping[Place, int]) -> list[tuple[str, TensorType, Emission]]:
    """The results that a graph gets: the best token of each row of logits."""
    made: list[tuple[str, TensorType, Emission]] = []
    for number, valid in best_of(logits, leaf.name).items():
        rows, size = type_of(results_of(leaf.graph)[number]).at()

        def emit(e: Emitter, own: list[str], n: int = number, s: int = size, v: int = valid) -> str:
            return emit_best(e, own[n], s, v)

        made.append((f"best_{number}", TensorType("i64", (rows,)), emit))
    return made


def graph_table(
    graphs: Graphs, isa: str, kept: Resident, logits: Mapping[Place, int], soc: str
) -> str:
    """The C++ file that lists graphs and, as leaves, what calls them. `soc`: the chip of OMs, empty for none."""
    values, rows, leaves = [], [], []
    for number, (leaf, bound) in enumerate(graphs):
        inputs = [n for n in leaf.inputs if n.name not in bound]
        outputs = results_of(leaf.graph)
        taken = [_value(n.name, type_of(n), (leaf.name, i) in kept.inputs) for i, n in enumerate(inputs)]  # fmt: skip
        given = [
            _value("", type_of(n), (leaf.name, i) in kept.outputs, (leaf.name, i) in logits)
            for i, n in enumerate(outputs)
        ]
        given += [_value("", type_, False) for _, type_, _ in _best(leaf, logits)]
        for side, listed in (("in", taken), ("out", given)):
            values.append(
                f"const specc_graph_value {side}{number}[] = {{{', '.join(listed) or '{}'}}};"
            )
        rows.append(f'    {{"{leaf.name}", {len(inputs)}, {len(given)}, in{number}, out{number}}},')
        leaves.append((leaf.name, f"run_graph({number}, in, n, out, m)"))
    leaves.append((COMMIT, "run_commit(in, n, out, m)"))
    states = "".join(f'"{name}", ' for name in sorted(kept.states))
    return (
        '#include "graphs.h"\n#include "leaf_table.h"\n'
        + ('#include "acl/open.h"\n' if soc else "")
        + "namespace {\n"
        + "\n".join(values)
        + "\n}\nconst specc_graph specc_graphs[] = {\n" + "\n".join(rows)
        + f"\n}};\nconst int specc_graph_count = {len(rows)};\n"
        + f"const char* const specc_resident_states[] = {{{states}nullptr}};\n"
        + f'const char specc_soc[] = "{soc}";\n'
        + f"specc::OpenDevice* const specc_open_device = {'specc::open_acl' if soc else 'nullptr'};\n"
        + played_leaves(leaves, isa)
    )  # fmt: skip


def _value(name: str, type_: TensorType, kept: bool, lazy: bool = False) -> str:
    shape = type_.at()
    dims = ", ".join(map(str, shape))
    flags = f"{str(kept).lower()}, {str(lazy).lower()}"
    return f'{{"{name}", {c_dtype(type_.dtype)}, {len(shape)}, {{{dims}}}, {flags}}}'
