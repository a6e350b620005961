"""Graphs as ONNX: legal by the table and by onnx, and the text of transformers when onnxruntime runs them."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import fx

from specc.backends.base import Device
from specc.backends.onnx import lower, table
from specc.backends.onnx.emitter import Emitter, write_model
from specc.backends.onnx.store import WeightFiles
from specc.errors import BackendError
from specc.ir import Function, Role, SpeculativeProgram, TensorType, Weight, WeightStore
from specc.ir.graphs import Builder, type_of
from specc.ir.importers.huggingface import import_model
from specc.ir.infer import infer_types
from specc.passes import pipelines
from tests.conftest import by_night
from tests.ir.importers.tiny_models import FAMILIES, eager_logits, tiny
from tests.passes import toy
from tests.passes.driver import generate

aten = torch.ops.aten
OPS = Path(table.__file__).with_name("ops.json")
SHAPE = pipelines.Shape((0, 2), 32, 8)
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 3, 2]
NEW = 6
TEN = (
    "llama-mqa-bias-tied", "qwen2-window", "qwen3", "gemma2", "phi3", "gpt2", "gpt-neox", "olmo2",
    "cohere-qk-norm", "gpt-oss-sinks",
)  # fmt: skip


def _emitted(
    program: SpeculativeProgram, folder: Path, opset: int = 15
) -> tuple[dict[str, Path], WeightFiles]:
    weights, files = WeightFiles(program.weights, folder), {}
    for leaf, bound in lower.graphs_of(program):
        files[leaf.name] = folder / f"{leaf.name}.onnx"
        write_model(Emitter(leaf, opset, weights).model(bound), files[leaf.name])
    return files, weights


def _played(
    program: SpeculativeProgram, files: Mapping[str, Path], off: dict[str, float] | None = None
) -> SpeculativeProgram:
    """`program` with leaves that onnxruntime runs. `off`: gets how far a result of each is off torch's at most."""
    leaves = []
    for leaf, bound in lower.graphs_of(program):
        session = onnxruntime.InferenceSession(
            str(files[leaf.name]), providers=["CPUExecutionProvider"]
        )
        graph = fx.Graph()
        inputs = [graph.placeholder(n.name) for n in leaf.inputs]
        wanted = [i.name not in bound for i in inputs]
        for copy, node in zip(inputs, leaf.inputs, strict=True):
            copy.meta["type"] = type_of(node)
        caller = _caller(session)
        if off is not None:
            weights = {n: program.weights[w].load() for n, w in bound.items()}
            caller = _beside(caller, leaf, weights, off)
        call = graph.call_function(
            caller, tuple(i for i, w in zip(inputs, wanted, strict=True) if w)
        )
        results = [
            graph.call_function(operator.getitem, (call, i)) for i in range(len(leaf.outputs))
        ]
        graph.output(tuple(results))
        leaves.append(Function(leaf.name, Role.LEAF, graph, leaf.outputs))
    return program.replacing(*leaves)


def _caller(session: onnxruntime.InferenceSession) -> Any:
    def call(*args: torch.Tensor) -> list[torch.Tensor]:
        arrays = [a.int().numpy() if a.dtype == torch.int64 else a.numpy() for a in args]
        feed = {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)}
        return [torch.from_numpy(np.asarray(r)) for r in session.run(None, feed)]

    return call


def _beside(
    run: Any, leaf: Function, weights: Mapping[str, torch.Tensor], off: dict[str, float]
) -> Any:
    """`run`, and the same graph in torch on the same values."""
    eager = fx.GraphModule({}, leaf.graph)

    def call(*args: torch.Tensor) -> list[torch.Tensor]:
        found, given = run(*args), iter(args)
        with torch.no_grad():
            want = eager(
                *(weights[n.name] if n.name in weights else next(given) for n in leaf.inputs)
            )
        for a, b in zip(found, want, strict=True):
            size = max(1.0, float(b.abs().max()))
            most = float((a.double() - b.double()).abs().max()) / size
            off[leaf.name] = max(off.get(leaf.name, 0.0), most)
        return list(found)

    return call


def _assert_near(off: Mapping[str, float], program: SpeculativeProgram) -> None:
    """Every graph was run, and nothing that it gave is off torch's by more than 1e-5, or that of its largest value."""
    assert set(off) == {leaf.name for leaf, _ in lower.graphs_of(program)}
    assert max(off.values()) < 1e-5, off


@pytest.mark.parametrize(
    "family", by_night(TEN, "llama-mqa-bias-tied", "gemma2", "gpt2", "gpt-neox", "gpt-oss-sinks")
)
def test_families_say_what_transformers_says(family: str, tmp_path: Path) -> None:
    kind, values = FAMILIES[family]
    model = tiny(kind, **values)
    want = list(PROMPT)
    for _ in range(NEW):
        want.append(int(eager_logits(model, torch.tensor(want))[-1].argmax()))
    program = pipelines.as_graphs(pipelines.host("ngram", SHAPE, {}))(import_model(model, family))
    files, _ = _emitted(program, tmp_path)
    right = lambda text, k: (want[len(text) :] + [0] * k)[:k]  # noqa: E731
    off: dict[str, float] = {}
    played = _played(program, files, off)
    tokens, rounds = generate(played, PROMPT, NEW, [2, 0], drafts=right, poison=1e3)
    assert tokens == want[len(PROMPT) :]
    assert rounds[0] == (2, 2)
    _assert_near(off, program)
    for file in files.values():
        used = {n.op_type for n in onnx.load(file, load_external_data=False).graph.node}
        assert not [why for op in used if (why := table.refusal(op, 15))]
    verify = next(g for g in lower.graphs_of(program) if g[0].name == "verify_2.graph")
    for opset in OPSETS:
        _assert_legal(*verify, opset, WeightFiles(program.weights, tmp_path), tmp_path)


OPSETS = (11, 13, 18)
"""Where operators change their form: axes become inputs in 13 and 18, and 11 is the oldest that CANN documents."""


def _assert_legal(
    leaf: Function, bound: Mapping[str, str], opset: int, weights: WeightFiles, folder: Path
) -> None:
    """By the checker, and by the versions that the table has for each operator, read here without `table.refusal`."""
    file = folder / f"opset_{opset}.onnx"
    write_model(Emitter(leaf, opset, weights).model(bound), file)
    model = onnx.load(file, load_external_data=False)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", opset)]
    known = json.loads(OPS.read_text())["ops"]
    for op in {n.op_type for n in model.graph.node}:
        first, last = known[op]["opsets"]
        assert first <= opset <= last, op
        assert opset not in known[op].get("gaps", ()), op


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_every_opset_is_written_as_it_wants(opset: int, tmp_path: Path) -> None:
    """One graph for every K has operators that a graph for each K has not."""
    model = tiny("gpt2", **FAMILIES["gpt2"][1])
    pipeline = pipelines.as_graphs(pipelines.host("ngram", SHAPE, {}), one=True)
    program = pipeline(import_model(model, "gpt2"))
    files, _ = _emitted(program, tmp_path, opset)
    assert "verify_0.graph" not in files
    tokens, _ = generate(_played(program, files), PROMPT, NEW, [2], poison=1e3)
    assert tokens == generate(program, PROMPT, NEW, [2], poison=1e3)[0]
    assert (
        onnx.load(files["verify_2.graph"], load_external_data=False).opset_import[0].version
        == opset
    )


@pytest.mark.parametrize("method", ["draft_model", "eagle3", "layerskip"])
def test_drafters_are_graphs_of_their_own(method: str, tmp_path: Path) -> None:
    program = pipelines.as_graphs(pipelines.Pipeline("phase 4", ()))(
        toy.after("fuse-round", method=method)
    )
    files, _ = _emitted(program, tmp_path)
    options = {"count": 5, "ks": [2, 0], "chunk": 3, "poison": 1e3}
    found = generate(_played(program, files), [3, 1, 4, 1, 5], **options)
    assert found == generate(program, [3, 1, 4, 1, 5], **options)


def test_a_tied_embedding_is_stored_once(tmp_path: Path) -> None:
    model = tiny("llama", tie_word_embeddings=True)
    program = pipelines.as_graphs(pipelines.host("ngram", SHAPE, {}))(import_model(model, "tied"))
    files, weights = _emitted(program, tmp_path)
    verify = onnx.load(files["verify_2.graph"], load_external_data=False).graph
    gathered, multiplied = (
        {n.input[i] for n in verify.node if n.op_type == op}
        for op, i in (("Gather", 0), ("Gemm", 1))
    )
    assert gathered & multiplied
    parts = sum(p.numel() for p in model.parameters()) * 4
    stored = sum((tmp_path / f).stat().st_size for f in weights.files)
    tables = 2 * SHAPE.max_model_len * 8 * 4
    assert stored <= parts + tables, "prefill and every verify share their weights"


def test_integers_are_of_32_bits_but_for_shapes(tmp_path: Path) -> None:
    program = pipelines.as_graphs(pipelines.Pipeline("phase 4", ()))(toy.after("fuse-round"))
    files, _ = _emitted(program, tmp_path)
    graph = onnx.load(files["verify_2.graph"]).graph
    assert {i.name: i.type.tensor_type.elem_type for i in graph.input} == {
        "tokens": 6, "positions": 6, "target_rows": 1, "mask_old_0": 1, "mask_new_0": 1,
    }  # fmt: skip
    wide = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.INT64}
    users = {(n.op_type, list(n.input).index(w)) for n in graph.node for w in wide & set(n.input)}
    assert all(op in ("Reshape", "Slice") and place for op, place in users)


def _one_operation(target: Any, *args: Any) -> SpeculativeProgram:
    """verify_0 with a leaf that does one thing in layer 3."""
    builder = Builder()
    x = builder.input("x", TensorType("f32", (4, 4)))
    y = builder.op(target, x, *args)
    y.meta |= {"layer": 3, "origin": "model.layers.3.mlp"}
    graph = builder.output(y)
    infer_types(graph)
    return replace(
        toy.empty(), functions={"odd.graph": Function("odd.graph", Role.LEAF, graph, ("y",))}
    )


@pytest.mark.parametrize(("program", "text"), [
    (_one_operation(aten.cumprod.default, 0), "there is no ONNX form of aten.cumprod.default"),
    (_one_operation(aten.softmax.int, 0), "softmax over another than the last dimension"),
])  # fmt: skip
def test_what_has_no_form_is_refused_with_its_layer(
    program: SpeculativeProgram, text: str, tmp_path: Path
) -> None:
    with pytest.raises(BackendError) as refused:
        _emitted(program, tmp_path)
    assert refused.value.code == "SPECC-E0421"
    assert refused.value.what == text
    assert refused.value.where == "odd.graph: layer.3/model.layers.3.mlp"


def test_the_table_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that onnx has and CANN has not is refused, though a lowering emits it."""
    monkeypatch.setattr(table, "_table", lambda: {"ops": {"Identity": {"opsets": [8, 18]}}})
    with pytest.raises(BackendError, match="Neg is not in the table of operators"):
        _emitted(_one_operation(aten.neg.default), tmp_path)
    assert table.refusal("Identity", 19) == "Identity is registered for opsets 8 to 18, not 19"


def test_the_table_says_where_it_comes_from() -> None:
    assert "hicann" in table.source()
    for op in (
        "Loop",
        "Scan",
        "CumProd",
        "RMSNormalization",
        "Attention",
        "RotaryEmbedding",
        "Gelu",
    ):
        assert table.refusal(op, 15), f"{op} has no plugin in any release"
    # So no fused kernel's limit on the tokens of a round is ours (docs/devices.md).
    assert not [op for op in json.loads(OPS.read_text())["ops"] if "attention" in op.lower()]
    assert table.refusal("GreaterOrEqual", 11)
    assert not table.refusal("GreaterOrEqual", 12)


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    from specc.ir.encodings import Encoding

    packed = Weight.of(torch.randn(16, 32)).encoded(Encoding.parse("q8g32"))
    with pytest.raises(BackendError, match="SPECC-E0424"):
        WeightFiles(WeightStore({"w": packed}), tmp_path).initializer("w")


def test_a_program_without_phase_4_is_refused() -> None:
    with pytest.raises(BackendError, match="SPECC-E0425"):
        lower.graphs_of(toy.after("fuse-round"))
    assert Device().as_json() == {"type": "cpu", "arch": "x86_64", "isa": "x86-64-v3"}
