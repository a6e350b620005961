"""Artifacts for 64-bit ARM, compiled here and played by an emulator.

Collected where SPECC_TEST_ARM=1 says so: aarch64-linux-gnu-g++ and qemu-aarch64-static do not come with pip.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from specc.errors import ArtifactError
from specc.runtime import Artifact
from tests.conftest import compiled, greedy
from tests.runtime.kernels.driver import CROSS, EMULATOR

HERE = Path(__file__).parent / "arm"
LIBRARIES = "/usr/aarch64-linux-gnu"
PROMPT, NEW = [7, 21, 14, 7, 21, 29, 15, 7, 21], 16


@pytest.fixture(scope="module", params=["none", "int8"])
def artifact(request: pytest.FixtureRequest, tiny_model: Path, shared_folder: Path) -> Path:
    """The target drafts for itself, so that every draft is right."""
    return compiled(
        tiny_model, shared_folder / f"tiny-neon-{request.param}.specc", "draft_model", drafter=str(tiny_model),
        isa="neon", quant=request.param, static=True,
    )  # fmt: skip


def play(artifact: Path, folder: Path, k: int, temperature: float = 0) -> tuple[list[int], int]:
    """Tokens that a program over the artifact's C library says, and how many were accepted drafts."""
    program = folder / "play"
    if not program.exists():
        subprocess.run(
            [CROSS, "-x", "c", HERE / "play.c", "-x", "none", f"-I{artifact / 'include'}", artifact / "lib/libspecc.so",
             f"-Wl,-rpath,{artifact / 'lib'}", "-o", program], check=True,
        )  # fmt: skip
    told = subprocess.run(
        [EMULATOR, "-L", LIBRARIES, program, artifact, *map(str, (k, temperature, NEW, *PROMPT))],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    *tokens, accepted = map(int, told.split())
    return tokens, accepted


def test_tokens_are_those_of_transformers(artifact: Path, tiny_model: Path, tmp_path: Path) -> None:
    plain, _ = play(artifact, tmp_path, 0)
    if "int8" not in artifact.name:
        assert plain == greedy(tiny_model, PROMPT, NEW)
    for k in (2, 4):
        tokens, accepted = play(artifact, tmp_path, k)
        assert tokens == plain
        assert accepted >= NEW - NEW // k
    sampled = [play(artifact, tmp_path, k, temperature=0.8)[0] for k in (0, 4)]
    assert sampled[0] == sampled[1] != plain


def test_the_code_is_for_that_processor_alone(artifact: Path) -> None:
    for library in ("model.so", "lib/libspecc.so", "lib/libmodel.a", "lib/libspecc.a"):
        command = ["readelf", "-h", artifact / library]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "AArch64" in told
    with pytest.raises(ArtifactError, match=r"SPECC-E0504[\s\S]*aarch64"):
        Artifact.load(artifact)
