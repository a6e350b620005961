"""Doctor: fixed ids, a hint for whatever is not right, exit code 1 if something blocks."""

import importlib.util
import json
import struct
from pathlib import Path

import pytest

from specc import checks, cli
from specc.checks import Status, machine_checks, model_checks

IDS = [
    "python", "torch", "transformers", "compiler", "cpu", "memory", "cache", "cuda", "ascend",
    "tvm", "architectures",
]  # fmt: skip


def test_ids_are_fixed() -> None:
    assert [c.id for c in machine_checks()] == IDS


def test_what_is_not_right_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(checks, "TORCH", "9.9")
    monkeypatch.setattr(checks, "_cpu_flags", set)
    found = {c.id: c for c in machine_checks()}
    for id_ in ("compiler", "torch", "cpu"):
        assert found[id_].status is Status.FAIL
        assert found[id_].hint


def test_exit_codes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code = cli.main(["doctor", "--json"])
    payload = json.loads(capsys.readouterr().out)
    assert payload["schema"] == 1
    assert code == (0 if payload["runnable"] else 1)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cli.main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "[FAIL]  compiler" in text
    assert "\x1b" not in text


def write_model(folder: Path, kind: str, size: int = 16) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    tensor = {"dtype": "F16", "shape": [size, 4], "data_offsets": [0, size * 8]}
    header = json.dumps({"__metadata__": {}, "w": tensor}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("kind", "status"),
    [("llama", Status.OK), ("mamba", Status.FAIL), ("made_up_by_no_one", Status.FAIL)],
)
def test_a_model_is_judged_by_its_kind(tmp_path: Path, kind: str, status: Status) -> None:
    found = {c.id: c for c in model_checks(str(write_model(tmp_path / "m", kind)))}
    assert found["model.kind"].status is status
    assert found["model.weights"].text.startswith("0.0 M weights, 256 B")
    assert found["model.tokenizer"].status is Status.OK


def test_a_model_too_large_for_the_machine(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", "llama", 10**12)
    found = {c.id: c for c in model_checks(str(path))}
    assert found["model.memory"].status is Status.WARN
    assert found["model.disk"].status is Status.WARN


@pytest.mark.parametrize(
    ("name", "data", "status"),
    [
        ("a.gguf", b"GGUF1234", Status.OK),
        ("a.gguf", b"version https://git-lfs", Status.FAIL),
        ("a.pt2", b"PK\x03\x04", Status.OK),
        ("a.bin", b"", Status.FAIL),
    ],
)
def test_files(tmp_path: Path, name: str, data: bytes, status: Status) -> None:
    (tmp_path / name).write_bytes(data)
    (found,) = model_checks(str(tmp_path / name))
    assert (found.id, found.status) == ("model.source", status)


@pytest.mark.parametrize(
    ("model", "status"),
    [
        ("pypi:cyclopts", Status.OK),
        ("pypi:no-such-package-here", Status.WARN),
        ("no-one/no-such-model", Status.INFO),
        ("/no/such/path", Status.FAIL),
        ("justaname", Status.FAIL),
    ],
)
def test_other_sources(model: str, status: Status) -> None:
    assert model_checks(model)[0].status is status


def test_damaged_folders(tmp_path: Path) -> None:
    assert model_checks(str(tmp_path))[0].status is Status.FAIL
    path = write_model(tmp_path / "m", "llama")
    (path / "model.safetensors").write_bytes(b"\xff" * 20)
    found = {c.id: c for c in model_checks(str(path))}
    assert found["model.weights"].status is Status.FAIL
    (path / "model.safetensors").unlink()
    found = {c.id: c for c in model_checks(str(path))}
    assert "safetensors" in found["model.weights"].text
    (path / "config.json").write_text("[" * 100000)
    assert "no usable config.json" in model_checks(str(path))[0].text


def test_one_list_of_architectures() -> None:
    """What doctor calls working is what the importers are tested on, and what README says."""
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location(
        "tiny_models", root / "tests/ir/importers/tiny_models.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(checks.WORKING) == {kind for kind, _ in module.FAMILIES.values()}
    readme = " ".join((root / "README.md").read_text().split())
    assert f"tested are {', '.join(checks.WORKING)}." in readme
