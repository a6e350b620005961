"""Artifacts on an NPU that a double of libascendcl plays: transformers' tokens, and every failure has its code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from specc.backends.toolchain import Toolchain
from specc.errors import SpeccError
from specc.runtime import Artifact, Manifest
from tests.backends.acl.artifacts import Artifacts
from tests.backends.acl.double import ALLOCATING, GRAPHS, LIVING, ROOT, SOC, Double, install
from tests.ir.importers.drafters import synthetic

PROMPT = [7, 21, 14, 7, 21, 29, 15, 7, 21]
NEW = 16
METHODS = ("ngram", "draft_model", "layerskip", "eagle3", "mtp", "dflash", "dspark")
"""`none` is K = 0 of each."""
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("acl")


@pytest.fixture(scope="module")
def cann(folder: Path) -> Path:
    return install(folder / "cann")


@pytest.fixture(scope="module")
def double(cann: Path) -> Double:
    return Double(cann)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, cann: Path, double: Double) -> Iterator[None]:
    """CANN as its set_env.sh leaves it; and whatever a test opens, it gives back."""
    for name in list(os.environ):
        if name.startswith(("SPECC_DOUBLE", "SPECC_NPU", "SPECC_EXECUTOR", "ASCEND")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(cann))
    double.forget_calls()
    yield
    assert set(double.counts(LIVING).values()) == {0}, double.counts(LIVING)


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    """A model of eight layers with an embedding that shows, so that features of it can be tapped."""
    synthetic.target(initializer_range=0.3).save_pretrained(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def wanted(model: Path) -> list[int]:
    """Greedy continuation by transformers."""
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor([PROMPT])
    for _ in range(NEW):
        ids = torch.cat([ids, target(ids).logits[:, -1:].argmax(-1)], 1)
    return ids[0, len(PROMPT) :].tolist()


@pytest.fixture(scope="module")
def artifacts(folder: Path, model: Path, cann: Path) -> Artifacts:
    return Artifacts(folder, model, cann)


def generate(path: Path, k: int = -1, **options: Any) -> tuple[list[int], tuple[int, int]]:
    """New tokens; how many were drafted and accepted."""
    with Artifact.load(path) as engine:
        found = engine.generate(
            PROMPT, max_tokens=NEW, num_speculative_tokens=k, ignore_eos=True, **options
        )
        return list(found.token_ids), (found.stats.draft_tokens, found.stats.accepted_tokens)


@pytest.mark.parametrize("method", METHODS)
def test_tokens_and_acceptance(
    method: str, artifacts: Artifacts, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = artifacts.of(method)
    found = {k: generate(path, k) for k in (0, 2, 4)}
    assert {k: tokens for k, (tokens, _) in found.items()} == dict.fromkeys(found, wanted)
    assert generate(path)[0] == wanted
    if method == "draft_model":
        drafted, accepted = found[4][1]
        assert drafted == accepted > 0, "a drafter that is the target is always right"
    monkeypatch.setenv("SPECC_EXECUTOR", "onnxruntime")
    assert {k: generate(path, k) for k in (0, 2, 4)} == found


WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "sampled": ("draft_model", {"temperature": 0.8, "seed": 5}),
    "penalised": ("draft_model", {"options": {"repetition_penalty": 1.3}}),
    "sampled between graphs": ("dspark", {"temperature": 0.8, "seed": 5}),
}
"""What needs whole logits, in rounds and in pieces of them."""


@pytest.mark.parametrize("name", WHOLE)
def test_who_needs_logits_fetches_them(
    name: str, artifacts: Artifacts, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    method, options = WHOLE[name]
    path = artifacts.of(method)
    found = generate(path, 4, **options)[0]
    assert found != wanted
    assert found == generate(path, 0, **options)[0]
    monkeypatch.setenv("SPECC_EXECUTOR", "onnxruntime")
    assert found == generate(path, 4, **options)[0]


def test_a_prompt_s_logprobs(artifacts: Artifacts, model: Path) -> None:
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    law = target(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    with Artifact.load(artifacts.of("draft_model")) as engine, engine.session() as session:
        session.configure(prompt_logprobs=0)
        session.append(PROMPT)
        told = [each.token for each in session.prompt_logprobs()[1:] if each is not None]
    wanted = [law[place, token].item() for place, token in enumerate(PROMPT[1:])]
    assert told == pytest.approx(wanted, abs=1e-4)


def test_a_round_allocates_nothing_and_commits_once(artifacts: Artifacts, double: Double) -> None:
    with Artifact.load(artifacts.of("ngram")) as engine, engine.session() as session:
        session.configure(max_tokens=NEW, ignore_eos=True, num_speculative_tokens=2, guard_rounds=1)
        session.append(PROMPT)
        next(session.iterate())
        double.forget_calls()
        before, rounds = double.count("commits"), session.stat("rounds")
        down = double.count("downloaded")
        list(session.iterate())
        assert double.counts(ALLOCATING) == dict.fromkeys(ALLOCATING, 0)
        played = session.stat("rounds") - rounds
        # The last commit waits for a round that follows.
        assert played - 1 <= double.count("commits") - before <= played
        assert double.count("aclmdlExecuteAsync") == played
        assert session.stat("guard_checks") == 0  # the NPU has the caches, and no guards
        row = 4 * engine.manifest.model.vocab_size
        assert 0 < double.count("downloaded") - down < played * 3 * row, "chosen tokens, no logits"


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_session_s_state_is_one_allocation_split_as_asked(
    method: str, artifacts: Artifacts, wanted: list[int], double: Double
) -> None:
    """Models read caches where the manifest says: on 64 bytes and with 32 free behind, as aclrtMalloc's page asks."""
    path = artifacts.of(method, kv_arena="30:70")
    with Artifact.load(path) as engine:
        double.forget_calls()
        before = double.count("device_bytes")
        double.read.clear()
        with engine.session() as session:
            assert double.count("aclrtMalloc") == double.count("aclrtMemset") == 1
            held = double.count("device_bytes") - before
            session.configure(max_tokens=NEW, ignore_eos=True, num_speculative_tokens=4)
            session.append(PROMPT)
            assert list(session.iterate()) == wanted
        assert double.count("device_bytes") == before
        manifest = engine.manifest
    assert manifest.arena is not None
    (plan,) = manifest.arena.plans
    assert held == plan.bytes
    sizes = {z.name: z.bytes for z in plan.zones}
    assert sizes["drafter"] / sum(sizes.values()) == pytest.approx(0.3, abs=0.05)
    offsets = {name: at for zone in plan.zones for name, at in zone.buffers.items()}
    assert {"target.rows", "drafter.rows"} == offsets.keys()
    assert len({double.read[name.replace(".", "_")] - at for name, at in offsets.items()}) == 1
    assert [at % 64 for at in offsets.values()] == [0, 0]
    ends = [
        offsets[b.name] + b.bytes for b in sorted(manifest.state, key=lambda b: offsets[b.name])
    ]
    assert all(e + 32 <= b for e, b in zip(ends, [*offsets.values(), plan.bytes][1:], strict=True))


def test_two_texts_have_caches_of_their_own(artifacts: Artifacts, wanted: list[int]) -> None:
    with Artifact.load(artifacts.of("ngram")) as engine:
        first, second = engine.session(), engine.session()
        for session, prompt in ((first, PROMPT), (second, PROMPT[::-1])):
            session.configure(max_tokens=NEW, ignore_eos=True)
            session.append(prompt)
        found = [pair[0] for pair in zip(first.iterate(), second.iterate(), strict=False)]
        assert found == wanted
        second.close()
        first.close()


def test_without_zeros_a_nan_would_leak(
    artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of the double is NaN until written: the tests above pass since the executor writes zeros."""
    monkeypatch.setenv("SPECC_DOUBLE_SKIP", "aclrtMemset")
    with pytest.raises(SpeccError, match="SPECC-E0604"):
        generate(artifacts.of("ngram"), 0)


PLANNED = [
    ("aclInit:500003:1", "E0611", "aclInit: 500003"),
    ("aclrtSetDevice:107001:1", "E0510", "ACL_ERROR_RT_INVALID_DEVICEID"),
    ("aclrtSetDevice:507899:1", "E0611", "driver is broken"),
    ("aclrtCreateStream:207008:1", "E0611", "aclrtCreateStream: 207008"),
    ("aclrtMalloc:207001:1", "E0608", "weight_"),
    ("aclrtMallocHost:207001:2", "E0608", ".om"),
    ("aclrtMemcpy:507899:1", "E0611", "aclrtMemcpy"),
    ("aclmdlQuerySize:100003:1", "E0511", "ACL_ERROR_INVALID_FILE"),
    ("aclmdlSetExternalWeightAddress:100000:1", "E0611", "aclmdlSetExternalWeightAddress"),
    ("aclmdlLoadWithConfig:545001:2", "E0511", "ACL_ERROR_GE_LOAD_MODEL"),
    ("aclmdlLoadWithConfig:507008:1", "E0504", "another chip"),
    ("aclmdlLoadWithConfig:245000:2", "E0608", "ACL_ERROR_GE_MEMORY_ALLOCATION"),
    ("aclmdlGetDesc:100011:1", "E0611", "aclmdlGetDesc"),
    ("aclmdlAddDatasetBuffer:100000:3", "E0611", "aclmdlAddDatasetBuffer"),
    ("aclrtMemset:507899:1", "E0611", "state of a session"),
    ("aclmdlExecuteAsync:507011:1", "E0611", "prefill.graph"),
    ("aclmdlExecuteAsync:207018:4", "E0608", "verify_"),
    ("aclrtSynchronizeStream:507014:1", "E0611", "in time"),
    ("aclrtSynchronizeStream:507015:4", "E0611", "ACL_ERROR_RT_AICORE_EXCEPTION"),
    ("aclrtMemcpyAsync:107019:5", "E0611", "ACL_ERROR_RT_WAIT_TIMEOUT"),
]


@pytest.mark.parametrize(("plan", "code", "said"), PLANNED, ids=[p[0] for p in PLANNED])
def test_failures_have_codes(
    plan: str, code: str, said: str, artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECC_DOUBLE_FAIL", plan)
    with pytest.raises(SpeccError) as failed:
        generate(artifacts.of("ngram"), 2)
    rendered = failed.value.render()
    assert failed.value.code == f"SPECC-{code}", rendered
    assert said in rendered
    assert failed.value.cure


def refused(path: Path) -> SpeccError:
    with pytest.raises(SpeccError) as failed:
        Artifact.load(path)
    return failed.value


def test_another_chip(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECC_DOUBLE_SOC", "Ascend310P3")
    error = refused(artifacts.of("ngram"))
    assert (error.code, error.expected, error.found) == ("SPECC-E0504", SOC, "Ascend310P3")
    assert "build_om.sh" in error.cure


def test_no_such_npu(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECC_NPU_DEVICE", "3")
    assert refused(artifacts.of("ngram")).code == "SPECC-E0510"
    monkeypatch.setenv("SPECC_NPU_DEVICE", "first")
    error = refused(artifacts.of("ngram"))
    assert (error.code, error.where) == ("SPECC-E0601", "SPECC_NPU_DEVICE")


def test_an_om_of_another_shape(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECC_DOUBLE_GROW", "verify_4")
    error = refused(artifacts.of("ngram"))
    assert error.code == "SPECC-E0511"
    assert "verify_4.graph.om, input tokens" in error.where
    assert (error.expected[:8], error.found[:8]) == ("20 bytes", "24 bytes")


def copied(path: Path, to: Path) -> Path:
    shutil.copytree(path, to)
    return to


def test_oms_that_are_missing_or_damaged(artifacts: Artifacts, tmp_path: Path) -> None:
    path = copied(artifacts.of("ngram"), tmp_path / "copy.specc")
    om = path / "om/verify_4.graph.om"
    data = om.read_bytes()
    om.write_bytes(data.replace(b"fake", b"FAKE"))
    assert refused(path).code == "SPECC-E0511"
    _forget(path, "om/")
    om.unlink()
    error = refused(path)
    assert error.code == "SPECC-E0511"
    assert "none of verify_4.graph" in error.found
    # As atc names OMs that have code for the host in them.
    om.with_name("verify_4.graph_linux_aarch64.om").write_bytes(data)
    Artifact.load(path).close()


def _forget(path: Path, prefix: str) -> None:
    """The manifest no longer vouches for files, as where build_om.sh made them."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"] = {n: f for n, f in manifest["files"].items() if not n.startswith(prefix)}
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_where_cann_is_not(
    artifacts: Artifacts, wanted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never elsewhere unasked: what is missing is named, and how to run it without."""
    path = copied(artifacts.of("ngram"), tmp_path / "copy.specc")
    monkeypatch.delenv("ASCEND_HOME_PATH")
    error = refused(path)
    assert error.code == "SPECC-E0510"
    assert "libascendcl.so" in error.found
    assert "SPECC_EXECUTOR=onnxruntime" in error.cure
    monkeypatch.setenv("SPECC_EXECUTOR", "onnxruntime")
    assert generate(path, 2)[0] == wanted


def test_who_runs_graphs_is_chosen_by_name(
    artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied(artifacts.of("ngram"), tmp_path / "copy.specc")
    monkeypatch.setenv("SPECC_EXECUTOR", "tensorrt")
    error = refused(path)
    assert (error.code, error.found) == ("SPECC-E0601", "tensorrt")
    monkeypatch.setenv("SPECC_EXECUTOR", "acl")
    Artifact.load(path).close()
    _forget(path, "om/")
    shutil.rmtree(path / "om")
    error = refused(path)
    assert error.code == "SPECC-E0511"
    assert "build_om.sh" in error.cure


def test_halves(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches and matrices of 16 bits: other numbers than transformers', the same on both."""
    path = artifacts.of("none", dtype="f16")
    kinds = {b.dtype for b in Manifest.read(path).state}
    assert kinds == {"f16"}
    on_npu = generate(path)
    monkeypatch.setenv("SPECC_EXECUTOR", "onnxruntime")
    assert generate(path) == on_npu


def test_a_libascendcl_without_the_calls(
    artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied(artifacts.of("ngram"), tmp_path / "copy.specc")
    (tmp_path / "old/lib64").mkdir(parents=True)
    (tmp_path / "old.cpp").write_text('extern "C" int aclInit(const char*) { return 0; }\n')
    library = str(tmp_path / "old/lib64/libascendcl.so")
    subprocess.run(["g++", "-shared", "-fPIC", str(tmp_path / "old.cpp"), "-o", library], check=True)  # fmt: skip
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "old"))
    error = refused(path)
    assert error.code == "SPECC-E0510"
    assert "aclmdlLoadWithConfig" in error.found


def test_a_pool(
    artifacts: Artifacts, wanted: list[int], double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = artifacts.of("draft_model")
    monkeypatch.setenv("SPECC_NPU_POOL", "256")
    double.forget_calls()
    assert generate(path, 4)[0] == wanted
    assert double.count("aclrtMalloc") == 1
    with Artifact.load(path) as engine:
        for _ in range(40):  # what a session gave back is there for the next
            engine.session().close()
    monkeypatch.setenv("SPECC_NPU_POOL", "6")
    error = refused(path)
    assert error.code == "SPECC-E0608"
    assert "blocks of 2 MB" in error.expected


def test_it_says_that_nobody_saw_it_on_an_npu(artifacts: Artifacts) -> None:
    manifest = Manifest.read(artifacts.of("ngram"))
    assert manifest.graphs is not None
    assert (manifest.graphs.state, manifest.graphs.verified_on_npu) == ("om", False)


MORE_FAILURES = {
    "SPECC_NPU_POOL=6": "E0608", "SPECC_NPU_DEVICE=3": "E0510", "SPECC_DOUBLE_SOC=Ascend310P3": "E0504",
    "SPECC_DOUBLE_GROW=verify_4": "E0511", "SPECC_DOUBLE_SKIP=aclrtMemset": "E0604",
}  # fmt: skip
LOOP = """
import json, os, sys
from pathlib import Path
from specc.errors import SpeccError
from specc.runtime import Artifact
from tests.backends.acl.artifacts import Artifacts
from tests.backends.acl.double import LIVING, Double
double = Double(Path(sys.argv[1]))
found = {}
for path in sys.argv[2:]:
    for pool, ks in ({}, (0, 2, -1)), ({"SPECC_NPU_POOL": "256"}, (4,)):
        os.environ |= pool
        double.forget_calls()
        with Artifact.load(path) as engine:
            for k in ks:
                made = engine.generate(PROMPT, max_tokens=NEW, num_speculative_tokens=k, ignore_eos=True)
                found[f"{Path(path).stem} {k}"] = list(made.token_ids)
        assert (double.count("aclrtMalloc") == 1) == bool(pool)
        os.environ.pop("SPECC_NPU_POOL", None)
codes = {}
for plan in FAILURES:
    name, _, value = plan.partition("=")
    os.environ[name] = value
    double.forget_calls()
    try:
        with Artifact.load(sys.argv[2]) as engine:
            engine.generate(PROMPT, max_tokens=NEW, num_speculative_tokens=2, ignore_eos=True)
    except SpeccError as error:
        codes[plan] = error.code
    del os.environ[name]
print(json.dumps({"found": found, "codes": codes, "living": double.counts(LIVING)}))
"""


@pytest.mark.long
def test_the_whole_loop_under_sanitizers(
    artifacts: Artifacts, wanted: list[int], tmp_path: Path
) -> None:
    """The executor, its border and the double, built with ASan and UBSan; kernels and engine as they are shipped.

    Texts of every method, K = 4 with a pool; then everything that can fail does, and gives back what it holds.
    """
    home = install(tmp_path / "cann", *SANITIZE)
    paths = _sanitized(artifacts, tmp_path)
    # ASan catches exceptions through libstdc++, which Python has not loaded.
    preload = [
        subprocess.run(["g++", f"-print-file-name={n}"], capture_output=True, text=True, check=True).stdout.strip()
        for n in ("libasan.so", "libubsan.so", "libstdc++.so.6")
    ]  # fmt: skip
    codes = {f"SPECC_DOUBLE_FAIL={plan}": code for plan, code, _ in PLANNED} | MORE_FAILURES
    given = f"{PROMPT=}\n{NEW=}\nFAILURES={[*codes]}"
    done = subprocess.run(
        [sys.executable, "-c", f"{given}\n{LOOP}", str(home), *map(str, paths)],
        capture_output=True, text=True, cwd=ROOT,
        env={
            **os.environ, "ASCEND_HOME_PATH": str(home), "LD_PRELOAD": " ".join(preload),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python's own; what ACL lends is counted
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert set(report["living"].values()) == {0}
    assert report["found"] == dict.fromkeys(report["found"], wanted)
    assert len(report["found"]) == 4 * len(paths)
    assert report["codes"] == {plan: f"SPECC-{code}" for plan, code in codes.items()}


def _sanitized(artifacts: Artifacts, folder: Path) -> list[Path]:
    """The artifacts with model.so whose executor is built with sanitizers; kernels are as they are shipped."""
    folders = (ROOT / "runtime/include", ROOT / "runtime/cpp", GRAPHS, ROOT / "runtime/cpp/model")
    flags = [
        "-std=c++20", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-march=x86-64-v3", *SANITIZE,
        *(f"-I{f}" for f in folders),
    ]  # fmt: skip
    chain = Toolchain("x86-64-v3")
    with chain.at_work(cores=1) as start:
        objects = [f.result() for f in start(chain.kernels())]
    errors = ROOT / "runtime/cpp/core/error.cpp"
    for source in (errors, *GRAPHS.glob("*.cpp"), *GRAPHS.glob("acl/*.cpp")):
        objects.append(folder / f"{source.stem}.o")
        _run("g++", *flags, "-c", str(source), "-o", str(objects[-1]))
    made = []
    for method in METHODS:
        path = copied(artifacts.of(method), folder / f"{method}.specc")
        table = folder / f"{method}.cpp"
        table.write_text(artifacts.tables[artifacts.of(method)])
        (path / "model.so").unlink()
        libraries = ("-shared", "-pthread", "-ldl", "-o", str(path / "model.so"))
        _run("g++", *flags, str(table), *map(str, objects), *libraries)
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["files"]["model.so"]["bytes"] = (path / "model.so").stat().st_size
        (path / "manifest.json").write_text(json.dumps(manifest))
        made.append(path)
    return made


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
