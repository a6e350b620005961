"""Trained drafters as graphs: legal by the table, and run by onnxruntime with the drafts of the same in torch."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from specc.backends.onnx import table
from specc.ir import SpeculativeProgram
from specc.ir.importers.drafters import Target, load_drafter
from specc.passes import pipelines
from tests.backends.test_onnx import _assert_near, _emitted, _played
from tests.conftest import by_night
from tests.passes.driver import generate
from tests.passes.test_trained_drafters import DRAFTERS, PROMPT, SHAPE, target

GRAPHS = (
    "eagle", "medusa", "dflash", "dflash-window-at-root", "dspark-rnn", "dspark-few-tokens", "mtp",
    "eagle3-safeailab", "eagle3-fc-norm-recycled-norm", "eagle3-parallel-specforge", "eagle3-norm-before",
)  # fmt: skip
"""Of DRAFTERS, those whose graphs differ in more than a layer's own operations."""
BY_DAY = ("eagle", "medusa", "dspark-few-tokens", "mtp", "eagle3-fc-norm-recycled-norm")


def _pipeline(name: str, folder: Path) -> tuple[pipelines.Pipeline, SpeculativeProgram]:
    model, program = target()
    checkpoint = load_drafter(DRAFTERS[name](folder / "drafter", model), Target.of(program))
    return pipelines.trained(SHAPE, checkpoint.spec.kind, checkpoint), program


@pytest.mark.parametrize("name", by_night(GRAPHS, *BY_DAY))
def test_drafts_are_the_same(name: str, tmp_path: Path) -> None:
    pipeline, imported = _pipeline(name, tmp_path)
    graphs = pipelines.as_graphs(pipeline)(imported)
    (tmp_path / "graphs").mkdir()
    files, _ = _emitted(graphs, tmp_path / "graphs")
    assert any(f.startswith(("propose", "draft", "extend")) for f in files), "drafting is a graph"
    for file in files.values():
        model = onnx.load(file, load_external_data=False)
        assert [o.version for o in model.opset_import] == [15]
        assert not [w for n in model.graph.node if (w := table.refusal(n.op_type, 15))]
    want = generate(pipeline(imported), PROMPT, 6, [4, 2, 0], chunk=4)
    off: dict[str, float] = {}
    played = _played(graphs, files, off)
    assert generate(played, PROMPT, 6, [4, 2, 0], poison=1e3, chunk=4) == want
    _assert_near(off, graphs)
