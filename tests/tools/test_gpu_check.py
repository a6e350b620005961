"""tools/gpu_check: everything but the GPU, and what it says where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_check import __main__ as gpu_check
from gpu_check.gpu import find_gpu


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if find_gpu() is not None:
        pytest.skip("this machine has a GPU")
    assert gpu_check.main([]) == 2
    assert "--dry-run" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["first", "-1", "1,2", "1024", "123456789012"])
def test_a_device_that_is_no_number_is_refused(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECC_CUDA_DEVICE", text)
    assert gpu_check.main([]) == 1
    told = capsys.readouterr().err
    assert all(part in told for part in ("SPECC-E0103", "SPECC_CUDA_DEVICE", "0 to 1023", text))


def test_a_dry_run_does_all_but_the_gpu(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [
        str(tiny_model), "--dry-run", "--isa", "avx2", "--method", "ngram", "--num-speculative-tokens", "2",
        "--max-tokens", "8", "--max-model-len", "256", "--arch", "sm_80", "--backend", "tvm",
    ]  # fmt: skip
    assert gpu_check.main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["dry_run"], report["measured_on"], report["arch"]) == (True, "the CPU", "sm_80")
    assert report["backend"] == "tvm"
    assert report["tokens"]["mismatches"] == 0
    assert report["tokens"]["tokens"] > 8
    assert {r["waits"] for r in report["rounds"].values()} == {1}
    assert report["round_relative_to_plain"]["0"] == 1
    assert report["bandwidth"]["share"] is None

    report["tokens"]["mismatches"] = 1
    monkeypatch.setattr(gpu_check, "checked", lambda *asked: report)
    assert gpu_check.main(arguments) == 1
