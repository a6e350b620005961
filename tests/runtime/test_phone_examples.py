"""The phones' examples, as far as a desktop goes: the C++ part plays a text, and names are those that there are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from specc.runtime import Artifact
from tests.conftest import compiled

ROOT = Path(__file__).parents[2]
ANDROID = ROOT / "examples/android/app/src/main"
IOS = ROOT / "examples/ios"
HERE = Path(__file__).parent / "jni"
TEXT, NEW = "The quick brown", 12


@pytest.fixture(scope="module")
def artifact(tiny_model: Path, shared_folder: Path) -> Path:
    return compiled(tiny_model, shared_folder / "tiny-static.specc", "ngram", static=True)


@pytest.fixture(scope="module")
def library(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libspecc_jni.so by the example's own CMake file, against a double of jni.h."""
    build = tmp_path_factory.mktemp("jni")
    for command in (
        ["cmake", "-S", ANDROID / "cpp", "-B", build, f"-DSPECC_ARTIFACT={artifact}",
         f"-DCMAKE_CXX_FLAGS=-I{HERE} -Werror"],
        ["cmake", "--build", build],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "libspecc_jni.so"


@pytest.fixture(scope="module")
def player(library: Path) -> Path:
    program = library.parent / "play"
    subprocess.run(
        ["g++", "-std=c++17", f"-I{HERE}", HERE / "play.cpp", library, f"-Wl,-rpath,{library.parent}", "-o", program],
        check=True,
    )  # fmt: skip
    return program


def test_an_android_app_says_what_the_artifact_says(artifact: Path, player: Path) -> None:
    with Artifact.load(artifact) as engine:
        ids = engine.tokenize(TEXT, add_special=True, parse_special=True)
        wanted = engine.detokenize(engine.generate(ids, max_tokens=NEW).token_ids)
    told = subprocess.run([player, artifact, TEXT, str(NEW)], capture_output=True, check=True)
    assert told.stdout.decode() == wanted.rstrip("\N{REPLACEMENT CHARACTER}")


def test_a_failure_is_thrown_in_kotlin(player: Path, tmp_path: Path) -> None:
    told = subprocess.run([player, tmp_path, TEXT, "1"], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("java/lang/IllegalStateException: SPECC-E0501")


def test_kotlin_declares_what_the_library_has(library: Path) -> None:
    told = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    kotlin = (ANDROID / "kotlin/dev/specc/Specc.kt").read_text()
    declared = re.findall(r"external fun (\w+)\(", kotlin)
    assert sorted(re.findall(r" Java_dev_specc_Specc_(\w+)", told)) == sorted(declared)


def test_swift_calls_what_the_header_declares() -> None:
    header = (ROOT / "runtime/include/specc.h").read_text()
    header += (IOS / "Sources/CSpecc/shim.h").read_text()
    called = set(
        re.findall(r"\b(?:specc|SPECC)_\w+", (IOS / "Sources/Specc/Specc.swift").read_text())
    )
    assert called
    assert called <= set(re.findall(r"\b(?:specc|SPECC)_\w+", header))


@pytest.mark.parametrize("name", ["CSpecc", "Specc"])
def test_a_swift_target_has_its_folder(name: str) -> None:
    assert f'name: "{name}"' in (IOS / "Package.swift").read_text()
    assert any((IOS / "Sources" / name).iterdir())
