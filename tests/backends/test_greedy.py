"""The best token of a row is a result of a graph: the lowest of equals, none for a row that is not finite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch

from specc.backends.onnx.emitter import Emitter, write_model
from specc.backends.onnx.greedy import best_of, emit_best, judged, with_best
from specc.backends.onnx.store import WeightFiles
from specc.backends.onnx.table import refusal
from specc.backends.plan import Plan
from specc.ir import Function, Role, TensorType, WeightStore
from specc.ir.graphs import Builder
from specc.ir.infer import infer_types
from tests.backends.test_commits import GRAPHS, PREFILL, ROUND, commits, plan, text

VALID, SIZE = 5, 7
NAN, INF = float("nan"), float("inf")
ROWS = [
    ([1, 3, 2, 3, 0, 9, 9], 1),
    ([-1, -2, -3, -4, -5, 0, 0], 0),
    ([0, 0, 0, 0, 8, NAN, 9], 4),
    ([1, 2, NAN, 0, 0, 0, 0], -1),
    ([1, 2, INF, 0, 0, 0, 0], -1),
    ([0, 0, 0, 0, 0, 0, 0], 0),
]
"""Logits, of which the last two are no tokens, and what is chosen."""


@pytest.mark.parametrize("opset", [11, 13, 15, 18])
def test_it_is_what_the_host_would_choose(opset: int, tmp_path: Path) -> None:
    builder = Builder()
    x = builder.input("x", TensorType("f32", (len(ROWS), SIZE)))
    graph = builder.output(builder.op(torch.ops.aten.neg.default, x))
    infer_types(graph)
    leaf = Function("odd.graph", Role.LEAF, graph, ("logits",))
    emitter = Emitter(leaf, opset, WeightFiles(WeightStore(), tmp_path))
    more = [
        (
            "best_0",
            TensorType("i64", (len(ROWS),)),
            lambda e, own: emit_best(e, own[0], SIZE, VALID),
        )
    ]
    write_model(emitter.model({}, more), tmp_path / "odd.onnx")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "odd.onnx"), providers=["CPUExecutionProvider"]
    )
    logits = -torch.tensor([row for row, _ in ROWS], dtype=torch.float32)
    _, best = session.run(None, {"x": logits.numpy()})
    assert best.dtype.name == "int32"
    assert best.tolist() == [chosen for _, chosen in ROWS]
    used = {n.op_type for n in onnx.load(tmp_path / "odd.onnx").graph.node}
    assert not [why for op in used if (why := refusal(op, opset))]


def test_verdicts_read_it() -> None:
    verdict = ROUND.instructions[-1]
    plans = [commits(p) for p in (ROUND, PREFILL)]
    plans[0] = _valid(plans[0], 96)
    logits = judged(plans, GRAPHS)
    assert logits == {("verify_2.graph", 0): 96}
    assert best_of(logits, "verify_2.graph") == {0: 96}
    assert text(with_best(plans[0], logits))[2:] == [
        f"specc.accept {', '.join(verdict.inputs)}, %logits_best",
        "specc.commit s:rows, %z, %rows, %accepted",
    ]
    assert with_best(plans[0], logits).instructions[1].outputs == ("logits", "z", "logits_best")
    assert with_best(plans[1], logits) == plans[1]


def test_logits_that_another_entry_reads_come_as_they_did() -> None:
    other = plan("""
        verify_2.graph %tokens, s:rows -> logits, z
        specc.argmax %logits -> best
    """)
    assert not judged([_valid(ROUND, 96), other], GRAPHS)
    returned = plan("verify_2.graph %tokens, s:rows -> logits, z", ("logits",))
    assert judged([_valid(ROUND, 96), returned], GRAPHS), "who is given them fetches them"


def _valid(of: Plan, valid: int) -> Plan:
    """The plan with the attribute of its verdicts."""
    told = (replace(i, attrs=(valid,)) if i.entry == "specc.accept" else i for i in of.instructions)
    return replace(of, instructions=tuple(told))
