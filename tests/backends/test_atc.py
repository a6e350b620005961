"""CANN's compiler, played by a fake `atc` that fails in each known way. No OM of these tests is one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from specc.backends.onnx import ascend
from specc.backends.onnx.atc import Job, arguments, compile_model, parse
from specc.cann import Cann, find_cann, find_runtime
from specc.errors import BackendError
from specc.progress import JsonProgress, SilentProgress

SOC = "Ascend910B3"
JOB = Job(
    "verify_4.graph", "graphs/verify_4.graph.onnx", {"tokens": [5], "target_rows": [1, 64, 384], "mask_new_0": [5, 5]},
    ("layer.3/model.layers.3.mlp/Gemm_41", "layer.3/model.layers.3.mlp/Gemm_4"),
)  # fmt: skip
DONE = (
    "ATC start working now, please wait for a moment.\nATC run success, welcome to the next use.\n"
)
FAILED = "ATC run failed, Please check the detail log, Try 'atc --help' for more information\n"
NEW_FORM = FAILED + (
    "[PID: 812] 2026-07-30-10:11:12.131.415 Operator_Not_Registered(E16002): "
    "No ONNX parser is registered for optype [ai.onnx::15::Loop].\n"
    "        Possible Cause: the operator is not supported.\n        Solution: replace it.\n"
    "        TraceBack (most recent call last):\n"
)
OLD_FORM = (
    "E19999: Internal error!\n"
    "E20001: [PID: 200452] 2025-06-16-13:02:36.801.136 Failed to compile Op [layer.3/model.layers.3.mlp/Gemm_41].\n"
    + FAILED
)


def fake(folder: Path, script: str) -> Cann:
    """An atc that runs `script`, with the value of --output in $OUT."""
    home = folder / "cann"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    atc = home / "bin" / "atc"
    atc.write_text(
        '#!/bin/sh\nfor a in "$@"; do case "$a" in --output=*) OUT=${a#--output=};; esac; done\n'
        'echo "$@" >> calls\n' + script
    )
    atc.chmod(0o755)
    (home / "version.info").write_text("Version=8.5.0\ntimestamp=20260116\n")
    return Cann(atc, home, "8.5.0")


def say(text: str, code: int) -> str:
    return f"cat <<'END'\n{text}END\nexit {code}\n"


def run(cann: Cann, folder: Path, timeout: float = 20) -> str:
    return compile_model(cann, JOB, SOC, folder, "om", timeout)


def test_arguments_are_a_list_with_static_shapes() -> None:
    assert arguments(JOB, SOC, "om") == [
        "--mode=0", "--framework=5", "--model=graphs/verify_4.graph.onnx", "--output=om/verify_4.graph",
        "--soc_version=Ascend910B3", "--input_format=ND",
        "--input_shape=tokens:5;target_rows:1,64,384;mask_new_0:5,5",
        "--precision_mode_v2=origin", "--external_weight=1", "--log=error", "--deterministic=1",
    ]  # fmt: skip
    assert "--deterministic=1" not in arguments(JOB, "Ascend310B4", "om"), "not an option there"


@pytest.mark.parametrize("name", ["$OUT.om", "${OUT}_linux_aarch64.om"])
def test_success(tmp_path: Path, name: str) -> None:
    assert run(fake(tmp_path, f'echo om > "{name}"\n' + say(DONE, 0)), tmp_path).startswith(
        "om/verify_4.graph"
    )


@pytest.mark.parametrize(("text", "code", "found"), [
    (NEW_FORM, 1, ["E16002", "No ONNX parser is registered for optype [ai.onnx::15::Loop].", "update CANN"]),
    (OLD_FORM, 1, ["E20001", "Failed to compile Op", "layer.3/model.layers.3.mlp/Gemm_41", "report it"]),
    (OLD_FORM.replace("E20001", "E19010"), 255, ["E19010", "update CANN"]),
    ("E10001: [PID: 7] 2025-06-16-13:02:36.801 Value [Ascend910B] for [--soc_version] is invalid.\n" + FAILED, 1,
     ["E10001", "soc_version", "npu-smi info"]),
    ("E10501: IR for Op [Gemm] is not registered.\n" + FAILED, 1, ["E10501", "ops package"]),
    ("EZ9999: Inner Error!\n" + FAILED, 1, ["EZ9999", "~/ascend/log"]),
    ("atc: error while loading shared libraries: libascend_hal.so\n", 127, ["libascend_hal.so"]),
    (FAILED, 0, ["ATC run failed"]),
    ("", 1, ["exit code 1"]),
])  # fmt: skip
def test_failures_are_told(tmp_path: Path, text: str, code: int, found: list[str]) -> None:
    with pytest.raises(BackendError) as failed:
        run(fake(tmp_path, 'echo om > "$OUT.om"\n' + say(text, code)), tmp_path)
    assert failed.value.code == "SPECC-E0431"
    rendered = failed.value.render()
    assert [part for part in found if part not in rendered] == []


KNOWN = {
    "E10002": "build_om.sh", "E10011": "build_om.sh", "E10014": "build_om.sh", "E10041": "copy the artifact",
    "E10055": "update CANN",
    "E10056": "report it", "E10410": "copy the artifact", "E13010": "ops package", "E13023": "--max-model-len",
    "E16001": "copy the artifact", "E16004": "build_om.sh", "E16005": "--opset", "E19999": "~/ascend/log",
    "E20007": "~/ascend/log", "E40001": "~/ascend/log", "EZ3002": "~/ascend/log", "EE1001": "~/ascend/log",
    "EH0001": "~/ascend/log",
}  # fmt: skip
"""Codes of the parser, the front end, the operators' compiler and the runtime: what the cure says."""


@pytest.mark.parametrize("code", KNOWN)
@pytest.mark.parametrize(
    "form",
    [
        "{}: [PID: 9] 2025-06-16-13:02:36.801.136 What happened.\n",
        "[PID: 9] 2026-07-30-10:11:12.131.415 A_Title({}): What happened.\n",
    ],
    ids=["cann8", "later"],
)
def test_known_codes_are_told_with_a_cure(tmp_path: Path, code: str, form: str) -> None:
    with pytest.raises(BackendError) as failed:
        run(fake(tmp_path, say(FAILED + form.format(code), 1)), tmp_path)
    assert failed.value.what == f"atc cannot compile verify_4.graph: {code}"
    assert failed.value.found == "What happened."
    assert KNOWN[code] in failed.value.cure


def test_a_kill_is_want_of_memory(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="want of memory"):
        run(fake(tmp_path, "kill -9 $$\n"), tmp_path)


def test_a_success_without_a_file_is_none(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="SPECC-E0433"):
        run(fake(tmp_path, say(DONE, 0)), tmp_path)
    (tmp_path / "om/verify_4.graph.om").touch()
    os.utime(tmp_path / "om/verify_4.graph.om", (1, 1))
    with pytest.raises(BackendError, match="SPECC-E0433"):
        run(fake(tmp_path, say(DONE, 0)), tmp_path)
    with pytest.raises(BackendError, match="SPECC-E0433"):
        run(fake(tmp_path, 'echo om > "${OUT}s.other.om"\n' + say(DONE, 0)), tmp_path)


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="SPECC-E0432"):
        run(fake(tmp_path, "sleep 60\n"), tmp_path, timeout=0.3)


def test_one_that_cannot_run(tmp_path: Path) -> None:
    cann = fake(tmp_path, "")
    cann.atc.chmod(0o644)
    with pytest.raises(BackendError, match="SPECC-E0434"):
        run(cann, tmp_path)


def test_codes_of_both_forms() -> None:
    assert [code for code, _ in parse(OLD_FORM + NEW_FORM)] == ["E19999", "E20001", "E16002"]
    assert parse("[PID: 1] 2026 Inner_Error(E19999): something\nW11001: a warning\n") == [
        ("E19999", "something")
    ]


@pytest.mark.parametrize(("environment", "found"), [
    ({"ASCEND_HOME_PATH": "cann"}, "8.5.0"), ({"ASCEND_TOOLKIT_HOME": "cann"}, "8.5.0"),
    ({"PATH": "cann/bin"}, "8.5.0"),
    ({}, None), ({"ASCEND_HOME_PATH": "elsewhere"}, None),
])  # fmt: skip
def test_cann_is_found(tmp_path: Path, environment: Mapping[str, str], found: str | None) -> None:
    fake(tmp_path, "")
    cann = find_cann({"PATH": "", **{k: str(tmp_path / v) for k, v in environment.items()}})
    assert (cann and cann.version) == found


@pytest.mark.parametrize(("soc", "lacks"), [
    ("Ascend910B3", ""), ("Ascend910_9391", "ascend310p, ascend910b"), ("Ascend310P3", ""),
    ("Ascend310B4", "ascend310p, ascend910b"),
])  # fmt: skip
def test_ops_packages_are_looked_for(tmp_path: Path, soc: str, lacks: str) -> None:
    cann = fake(tmp_path, "")
    assert cann.lacks_operators(soc) == "", "before 8.5 all come with the toolkit, in other places"
    for family in ("ascend910b", "ascend310p"):
        (tmp_path / "cann/opp/built-in/op_impl/ai_core/tbe/config" / family).mkdir(parents=True)
    assert cann.lacks_operators(soc) == lacks


def test_what_runs_oms_is_found(tmp_path: Path) -> None:
    library = tmp_path / "cann/lib64/libascendcl.so"
    assert find_runtime({"ASCEND_HOME_PATH": str(tmp_path / "cann")}) is None
    library.parent.mkdir(parents=True)
    library.touch()
    assert find_runtime({"ASCEND_HOME_PATH": str(tmp_path / "cann")}) == library
    assert find_runtime({"LD_LIBRARY_PATH": f"/nowhere:{library.parent}"}) == library
    assert find_runtime({}) is None


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An artifact as far as ascend.py looks: two models and a weight."""
    monkeypatch.setenv("SPECC_CACHE_DIR", str(tmp_path / "cache"))
    graphs = tmp_path / "art" / "graphs"
    graphs.mkdir(parents=True)
    for name in ("prefill.graph.onnx", "verify_4.graph.onnx", "weight_0a"):
        (graphs / name).write_text(name)
    return tmp_path / "art"


JOBS = [Job("prefill.graph", "graphs/prefill.graph.onnx", {"tokens": [8]}), JOB]
GOOD = 'mkdir -p om/weight; echo om > "$OUT.om"; echo w > om/weight/weight_0a\n' + say(DONE, 0)


def test_compiling_goes_on_where_it_failed(artifact: Path, tmp_path: Path) -> None:
    failing = fake(
        tmp_path,
        'case "$OUT" in *verify*) '
        + say(OLD_FORM, 1).replace("\nexit 1\n", "\nexit 1;;\nesac\n")
        + GOOD,
    )
    with pytest.raises(BackendError, match="E20001"):
        ascend.compile_all(failing, JOBS, SOC, artifact, SilentProgress())
    assert not (artifact / "om").exists()
    (work,) = (tmp_path / "cache" / "om").iterdir()
    before = (work / "calls").read_text()
    assert "prefill" in before
    made = ascend.compile_all(
        fake(tmp_path, GOOD + "# mended\n"), JOBS, SOC, artifact, SilentProgress()
    )
    assert made == {
        "prefill.graph": "om/prefill.graph.om",
        "verify_4.graph": "om/verify_4.graph.om",
    }
    assert (artifact / "om/weight/weight_0a").is_file()
    assert not work.exists()


def test_each_model_is_told_when_it_begins_and_when_it_is_done(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ascend.compile_all(fake(tmp_path, GOOD), JOBS, SOC, artifact, JsonProgress())
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    for kind in ("phase_begin", "phase_end"):
        said = {event["phase"] for event in told if event["event"] == kind}
        assert said == {f"atc {job.name} for {SOC}" for job in JOBS}


def test_as_many_at_once_as_memory_holds(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    many = [Job(f"verify_{k}.graph", "", {}) for k in range(40)]
    assert 1 <= ascend.at_once(many, artifact) <= 32, "half of the processors"
    assert ascend.at_once(many[:1], artifact) == 1
    with (artifact / "graphs/weight_0b").open("wb") as file:
        file.truncate(1 << 42)  # sparse: 4 TiB that no machine holds
    assert ascend.at_once(many, artifact) == 1


def test_the_script_does_the_same_and_goes_on(artifact: Path, tmp_path: Path) -> None:
    ascend.write_script(JOBS, SOC, artifact)
    script = [str(artifact / ascend.SCRIPT)]
    nowhere = subprocess.run(
        script, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert nowhere.returncode == 3
    assert "there is no atc" in nowhere.stderr
    cann = fake(tmp_path, GOOD)
    environment = {"PATH": f"{cann.atc.parent}:/usr/bin:/bin"}
    first = subprocess.run(
        [*script, "Ascend910B4"], env=environment, capture_output=True, text=True, check=True
    )
    calls = (artifact / "calls").read_text().splitlines()
    assert [c.split() for c in calls] == [arguments(j, "Ascend910B4", "om") for j in JOBS]
    assert (artifact / "om/soc").read_text() == "Ascend910B4\n"
    other = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert (other.returncode, other.stderr) == (2, "om has OMs for Ascend910B4: delete it first\n")
    again = subprocess.run(
        [*script, "Ascend910B4"], env=environment, capture_output=True, text=True, check=True
    )
    assert again.stdout.count("is there") == 2
    assert "verified on no NPU" in first.stdout
    assert len((artifact / "calls").read_text().splitlines()) == 2
