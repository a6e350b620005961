"""The C++ engine: built with sanitizers, run against artifacts whose model is written by hand."""

import copy
import json
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.runtime.core_artifacts import (
    MAX_LEN,
    SALT,
    VALID,
    VOCAB,
    Json,
    for_texts,
    manifest_of,
    write_artifact,
)

ROOT = Path(__file__).parent.parent.parent
CORE = ROOT / "runtime/cpp/core"
TESTS = Path(__file__).parent / "cpp"
# Compiling is most of the time: nothing is optimised.
FLAGS = [
    "-DSPECC_DEBUG",
    "-std=c++17",
    "-O0",
    "-g1",
    "-Wall",
    "-Wextra",
    "-Werror",
    f"-I{ROOT / 'runtime/include'}",
]
COMMON = [
    "algorithm",
    "map",
    "memory",
    "mutex",
    "optional",
    "random",
    "sstream",
    "string",
    "vector",
]
BATCHED, TEXTS = ("ngram", "none", "tap", "model", "drawn"), 3
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
THREADS = ["-fsanitize=thread"]
UNITS = ["json", "commit", "drafters", "controller", "sampling", "pool", "files"]
SESSIONS = ["session", "pieces", "drawn", "edges", "costs", "policy", "arena", "batch"]
ROUNDS = 10_000


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300
    )


def compile_to(output: Path, *arguments: object) -> None:
    done = run("g++", *FLAGS, *arguments, "-o", output)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def build(shared_folder: Path) -> Path:
    return built(shared_folder / "core", SANITIZE)


@pytest.fixture(scope="module")
def watched(shared_folder: Path) -> Path:
    """Where two threads that touch the same memory without order end the program."""
    return built(shared_folder / "core-threads", THREADS)


def built(folder: Path, sanitize: list[str]) -> Path:
    """Compiled once per run, whichever worker comes first."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    with FileLock(str(folder) + ".lock"):
        if not (folder / "done").exists():
            folder.mkdir()
            compile_all(folder, sanitize)
            for kind in (
                "ngram",
                "suffix",
                "none",
                "eos",
                "tap",
                "model",
                "pairs",
                "whole",
                "drawn",
                "short",
            ):
                write_artifact(folder / "artifacts" / kind, manifest_of(kind), folder / "model.so")
            for kind in BATCHED:
                several = for_texts(manifest_of(kind), TEXTS)
                write_artifact(folder / "artifacts" / f"batch-{kind}", several, folder / "model.so")
            (folder / "done").touch()
    return folder


def compile_all(folder: Path, sanitize: list[str]) -> None:
    sources = sorted(path for path in TESTS.glob("*.cpp") if path.name != "tiny_model.cpp")
    for part in sorted({path.parent for path in CORE.rglob("*.cpp")}):
        # A folder at a time, as it is shipped: most of what a file costs is the headers that they share.
        sources.append(folder / f"{part.name}_whole.cpp")
        files = (p for p in sorted(part.glob("*.cpp")) if p.name != "tokenize_api.cpp")
        sources[-1].write_text("".join(f'#include "{path}"\n' for path in files))
    objects = [folder / f"{i}_{path.stem}.o" for i, path in enumerate(sources)]
    common = folder / "common.h"  # precompiled: most of a source is the standard library's headers
    common.write_text("".join(f"#include <{name}>\n" for name in COMMON))
    compile_to(folder / "common.h.gch", *sanitize, "-x", "c++-header", common)
    with ThreadPoolExecutor(2) as workers:
        version = f"-include{common}", '-DSPECC_VERSION="test"'
        list(
            workers.map(
                lambda pair: compile_to(pair[1], *sanitize, *version, "-c", pair[0]),
                zip(sources, objects, strict=True),
            )
        )
        shared = ["-shared", "-fPIC", "-fvisibility=hidden", TESTS / "tiny_model.cpp"]
        kinds = (
            ["model"],
            ["old", "-DTINY_ABI=7"],
            ["other", "-DTINY_SALT=1"],
            ["kept", "-DTINY_KEEPS_INTEGERS"],
        )
        for name, *extra in kinds:
            compile_to(folder / f"{name}.so", *sanitize, *extra, *shared)
    compile_to(folder / "core_tests", *sanitize, *objects, "-pthread", "-ldl")


@pytest.fixture(scope="module")
def artifacts(build: Path) -> Path:
    return build / "artifacts"


@pytest.mark.parametrize("name", UNITS)
def test_unit(build: Path, tmp_path: Path, name: str) -> None:
    done = run(build / "core_tests", name, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", SESSIONS)
def test_session(build: Path, artifacts: Path, name: str) -> None:
    done = run(build / "core_tests", name, artifacts)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_many_rounds(build: Path, artifacts: Path) -> None:
    """Texts of a batch that join, stop, are cancelled, go on and leave, over and over."""
    done = run(build / "core_tests", "rounds", artifacts, ROUNDS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", [*UNITS, *SESSIONS, "rounds"])
def test_threads_do_not_race(watched: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path if name in UNITS else watched / "artifacts"
    # (Its map of memory does not foresee how far some kernels spread addresses.)
    alone = ["setarch", "--addr-no-randomize"]
    done = run(*alone, watched / "core_tests", name, folder, ROUNDS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_library_in_another_ones_place_is_loaded_anew(build: Path, tmp_path: Path) -> None:
    libraries = [(build / name).read_bytes() for name in ("model.so", "other.so")]
    size = max(map(len, libraries))  # equal sizes: not even that tells them apart
    for name, data in zip(("model.so", "next.so"), libraries, strict=True):
        (tmp_path / name).write_bytes(data.ljust(size, b"\0"))
    folder = write_artifact(tmp_path / "artifact", manifest_of("none"), tmp_path / "model.so")
    shutil.copy(tmp_path / "next.so", folder)
    done = run(build / "core_tests", "replace", folder)
    assert done.returncode == 0, done.stdout + done.stderr


Change = Callable[[Json], object]


def put(path: str, new: object) -> Change:
    """Sets a field by its dotted path; a number is a list index, the value ... deletes."""

    def change(manifest: Json) -> None:
        *parents, last = path.split("/")
        node: Any = manifest
        for part in parents:
            node = node[int(part) if part.isdigit() else part]
        key = int(last) if last.isdigit() else last
        if new is ...:
            del node[key]
        else:
            node[key] = new

    return change


HUGE = 2**62
MOST = 2**46 - 2**20  # allowed in a manifest, too much for any address space with a sanitizer in it
DAMAGE = [
    ("E0503", put("schema_version", 2)),
    ("E0503", put("abi", 9)),
    ("E0502", put("schema_version", ...)),
    ("E0502", put("schema_version", "1")),
    ("E0504", put("device/isa", "x86-64-v9")),
    ("E0504", put("device/arch", "riscv64")),
    ("E0504", put("device/type", "cuda")),
    ("E0502", put("device", [])),
    ("E0502", put("model/vocab_size", 0)),
    ("E0502", put("model/vocab_size", HUGE)),
    ("E0502", put("model/max_model_len", -1)),
    ("E0502", put("model/max_model_len", 1.5)),
    ("E0502", put("model/prefill_chunk", HUGE)),
    ("E0502", put("model/eos_token_ids", [VOCAB])),
    ("E0502", put("num_speculative_tokens", [])),
    ("E0502", put("num_speculative_tokens", [1, 2])),
    ("E0502", put("num_speculative_tokens", [0, 2, 2])),
    ("E0502", put("num_speculative_tokens", [0, HUGE])),
    ("E0508", put("num_speculative_tokens", [0, 3])),
    ("E0502", put("drafter/host_drafter", "eagle3")),
    ("E0502", put("drafter/host_drafter", 1)),
    ("E0502", put("drafter/state", "shared")),
    ("E0502", put("drafter/state", ...)),
    ("E0502", put("drafter/lag", 1)),
    ("E0502", put("drafter/extend", "prefill")),
    ("E0502", put("drafter/min_length", 2)),
    ("E0502", put("drafter/draft_rows", -1)),
    ("E0502", put("drafter/lag", ...)),
    ("E0502", put("drafter/options/prompt_lookup_max", 0)),
    ("E0502", put("drafter/depths", [3, 2])),
    ("E0508", put("drafter/depths", [2])),
    ("E0508", put("drafter/state", "target")),
    ("E0508", put("rounds/2", ...)),
    ("E0508", put("rounds/2/k", 3)),
    ("E0508", put("rounds/2/depth", 1)),
    ("E0508", put("rounds/2/function", "absent")),
    ("E0508", put("rounds/2/function", "verify_2")),
    ("E0502", put("rounds/2/k", -1)),
    ("E0502", put("rounds/2/verify", 1)),
    ("E0508", put("rounds/2/verify", "absent")),
    ("E0508", put("rounds/2/verify", "verify_1")),
    ("E0508", put("functions/verify_2/outputs/0/dtype", "i64")),
    ("E0508", put("functions/verify_2/outputs/0/shape", [3, VALID - 1])),
    ("E0508", put("functions/verify_2/inputs/0/name", "ids")),
    ("E0502", put("rounds", ...)),
    ("E0502", put("state/0/bytes", 8)),
    ("E0502", put("state/0/shape", [HUGE, HUGE])),
    ("E0502", put("state/0/dtype", "f8")),
    ("E0507", put("state/0/name", "other")),
    ("E0502", put("state/1/name", "text")),
    ("E0502", put("state/0", {"name": "big", "dtype": "u8", "shape": [2**47], "bytes": 2**47})),
    ("E0608", put("state/0", {"name": "text", "dtype": "u8", "shape": [MOST], "bytes": MOST})),
    ("E0502", put("functions", [])),
    ("E0508", put("functions/prefill", ...)),
    ("E0508", put("functions/round_2", ...)),
    ("E0508", put("functions/prefill/inputs/0/name", "ids")),
    ("E0508", put("functions/prefill/inputs/0/shape", [4])),
    ("E0508", put("functions/prefill/plan/0/entry", "unknown")),
    ("E0508", put("functions/prefill/plan/0/in/0", "%nothing")),
    ("E0508", put("functions/prefill/plan/0/in/0", "nothing")),
    ("E0508", put("functions/prefill/plan/0/out", ["a", "a"])),
    ("E0507", put("functions/prefill/plan/0/in/3", "w:absent")),
    ("E0507", put("functions/prefill/plan/0/in/2", "s:absent")),
    ("E0609", put("functions/prefill/plan/0/in", [])),
    ("E0609", put("functions/prefill/plan/0/entry", "broken")),
    ("E0508", put("functions/round_0/outputs", [])),
    ("E0508", put("functions/round_0/outputs/0/shape", [2])),
    ("E0508", put("functions/round_0/inputs/0/dtype", "f32")),
    ("E0508", put("functions/round_0/inputs/0/name", "unheard")),
    ("E0609", put("functions/round_0/plan/3/attrs", [])),
    ("E0502", put("functions/round_0/plan/0/attrs", [HUGE * 2])),
    ("E0502", put("functions/round_0/inputs/0/shape", [1] * 9)),
    ("E0502", put("weights", ...)),
    ("E0502", put("weights/file", "../weights.safetensors")),
    ("E0502", put("weights/file", "/etc/passwd")),
    ("E0505", put("weights/file", "absent")),
    ("E0505", put("weights/bytes", 1)),
    ("E0505", put("weights/file", "model.so")),
    ("E0502", put("files/model.so", ...)),
    ("E0505", put("files/model.so/bytes", 1)),
    ("E0502", put("files/..", {"bytes": 1, "sha256": ""})),
    ("E0505", put("files/absent", {"bytes": 1, "sha256": ""})),
]


PLAN = "arena/plans/0"
DAMAGED_ARENA = [
    put("arena", []),
    put("arena/plans", []),
    put("arena/plans/1", ...),
    put("arena/guard/page", 4097),
    put("arena/guard/page", 64),
    put("arena/guard/canary", 0),
    put("arena/guard/canary", 4096),
    put(f"{PLAN}/rows", MAX_LEN),
    put(f"{PLAN}/rows", 0),
    put(f"{PLAN}/rows", 63),
    put(f"{PLAN}/bytes", 4096),
    put(f"{PLAN}/zones/0/offset", 0),
    put(f"{PLAN}/zones/0/offset", 4160),
    put(f"{PLAN}/zones/0/bytes", HUGE),
    put(f"{PLAN}/zones/0/buffers/text", 4096),
    put(f"{PLAN}/zones/0/buffers/text", 4096 + 129),
    put(f"{PLAN}/zones/0/buffers/text", HUGE),
    put(f"{PLAN}/zones/0/buffers/other", 4096 + 128),
    put(f"{PLAN}/zones/0/buffers/text", ...),
    put(f"{PLAN}/zones/1/buffers/text", 12288 + 128),
    put(f"{PLAN}/zones/1/offset", 4096),
    put(f"{PLAN}/zones/1/offset", 8192),
    put(f"{PLAN}/zones/2/bytes", 8192),
]


@pytest.mark.parametrize("change", DAMAGED_ARENA, ids=[str(i) for i in range(len(DAMAGED_ARENA))])
def test_a_damaged_arena_is_refused(
    build: Path, artifacts: Path, tmp_path: Path, change: Change
) -> None:
    """No offset of a manifest leads out of the memory that the engine maps, or onto another buffer."""
    folder = tmp_path / "artifact"
    shutil.copytree(artifacts / "short", folder)
    assert load(build, folder) == "ok\n"
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert load(build, folder).startswith("SPECC-E0502 ")


@pytest.mark.parametrize(("code", "change"), DAMAGE, ids=[str(i) for i in range(len(DAMAGE))])
def test_damaged_manifest_is_refused(
    build: Path, artifacts: Path, tmp_path: Path, code: str, change: Change
) -> None:
    folder = tmp_path / "artifact"
    shutil.copytree(artifacts / "none", folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert load(build, folder).startswith(f"SPECC-{code} ")


def load(build: Path, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [build / "core_tests", "load", folder],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_field_may_be_missing_or_of_another_kind(
    build: Path, artifacts: Path, tmp_path: Path
) -> None:
    """Nothing crashes, whatever a field is; fields the engine does not need may be anything."""
    folder = tmp_path / "artifact"
    shutil.copytree(artifacts / "none", folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for key in manifest:
        kinds: list[object] = [..., None, -1, "x", [], {}, [[]], [{}], {"x": {}}]
        for wrong in kinds:
            changed = copy.deepcopy(manifest)
            put(key, wrong)(changed)
            (folder / "manifest.json").write_text(json.dumps(changed))
            report = load(build, folder)
            assert report.startswith(("SPECC-E05", "ok")), (key, wrong, report)


def test_damaged_files_are_refused(build: Path, artifacts: Path, tmp_path: Path) -> None:
    good = tmp_path / "artifact"
    shutil.copytree(artifacts / "none", good)
    assert load(build, good) == "ok\n"
    assert load(build, good, SPECC_VERIFY_HASHES="1") == "ok\n"

    weights = bytearray((good / "weights.safetensors").read_bytes())
    weights[-1] ^= 1
    (good / "weights.safetensors").write_bytes(weights)
    assert load(build, good) == "ok\n"
    assert load(build, good, SPECC_VERIFY_HASHES="1").startswith("SPECC-E0505 ")
    (good / "weights.safetensors").write_bytes(weights[:-1])
    assert load(build, good).startswith("SPECC-E0505 ")

    text = (good / "manifest.json").read_text()
    for cut in (0, 1, len(text) // 2, len(text) - 1):
        (good / "manifest.json").write_text(text[:cut])
        assert load(build, good).startswith("SPECC-E0502 ")
    (good / "manifest.json").unlink()
    assert load(build, good).startswith("SPECC-E0501 ")


@pytest.mark.parametrize("library", ["text", "old", "other isa"])
def test_foreign_library_is_refused(build: Path, tmp_path: Path, library: str) -> None:
    (tmp_path / "text.so").write_text("not a library, but as long as one wishes")
    source = {"text": tmp_path / "text.so", "old": build / "old.so"}.get(
        library, build / "model.so"
    )
    manifest = manifest_of("none")
    if library == "other isa":
        manifest["device"]["isa"] = "x86-64-v2"
    assert load(build, write_artifact(tmp_path / "artifact", manifest, source)).startswith(
        "SPECC-E0506 "
    )


def test_integers_that_a_device_does_not_hand_out_are_an_error(build: Path, tmp_path: Path) -> None:
    told = load(
        build, write_artifact(tmp_path / "artifact", manifest_of("none"), build / "kept.so")
    )
    assert "a device does not hand out a value" in told
    assert "the device is gone" in told


def test_names_of_the_tiny_model_agree() -> None:
    text = (TESTS / "tiny_lm.h").read_text()
    assert f"kVocab = {VOCAB};" in text
    assert f"kValid = {VALID};" in text
    assert f"kSalt = {SALT};" in text
