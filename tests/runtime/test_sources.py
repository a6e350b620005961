"""Artifacts that are no folder: from memory, and linked into a program that loads no code."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from specc.runtime import Artifact
from tests.conftest import compiled, greedy

ROOT = Path(__file__).parents[2]
NEW = 20
Find = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t),
)  # fmt: skip


class Source(ctypes.Structure):
    """specc_source, written from the header."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("find", Find), ("user", ctypes.c_void_p), ("model", ctypes.c_void_p),
        ("build", ctypes.c_char_p),
    )  # fmt: skip


class Memory:
    """Files of an artifact in memory, each `shift` bytes after a multiple of 64."""

    def __init__(self, folder: Path, names: tuple[str, ...], shift: int = 0) -> None:
        self.held = {name: self._aligned((folder / name).read_bytes(), shift) for name in names}
        self.library = ctypes.CDLL(str(folder / "lib/libspecc.so"))
        self.library.specc_last_error.restype = ctypes.c_char_p
        self.source = Source(ctypes.sizeof(Source), Find(self._find), None, None, None)

    @staticmethod
    def _aligned(data: bytes, shift: int) -> tuple[object, int, int]:
        room = ctypes.create_string_buffer(len(data) + 128)
        at = ctypes.addressof(room) + -ctypes.addressof(room) % 64 + shift
        ctypes.memmove(at, data, len(data))
        return room, at, len(data)

    def _find(self, user: object, name: bytes, data: object, size: object) -> int:
        held = self.held.get(name.decode())
        if held is None:
            return 0
        data[0], size[0] = held[1], held[2]  # type: ignore[index]
        return 1

    def load(self) -> tuple[int, ctypes.c_void_p]:
        artifact = ctypes.c_void_p()
        call = self.library.specc_artifact_load_from
        return call(ctypes.byref(self.source), 1, ctypes.byref(artifact)), artifact

    def generate(self, artifact: ctypes.c_void_p, prompt: list[int]) -> list[int]:
        c, session, token = self.library, ctypes.c_void_p(), ctypes.c_int64()
        assert c.specc_session_open(artifact, ctypes.byref(session)) == 0
        c.specc_session_set_int(session, b"max_tokens", ctypes.c_int64(NEW))
        c.specc_session_set_int(session, b"ignore_eos", ctypes.c_int64(1))
        ids = (ctypes.c_int64 * len(prompt))(*prompt)
        assert c.specc_session_append(session, ids, ctypes.c_size_t(len(prompt))) == 0
        found = []
        while c.specc_session_next(session, ctypes.byref(token)) == 0:
            found.append(token.value)
        c.specc_session_close(session)
        return found


FILES = ("manifest.json", "model.so", "weights.safetensors", "tokenizer.bin")
PROMPT = [7, 21, 40, 7, 21, 99, 150, 7, 21]


def test_from_memory_the_same_tokens(tiny_artifact: Path, tiny_model: Path) -> None:
    memory = Memory(tiny_artifact, FILES)
    status, artifact = memory.load()
    assert status == 0, memory.library.specc_last_error()
    assert memory.generate(artifact, PROMPT) == greedy(tiny_model, PROMPT, NEW)
    count, text = ctypes.c_size_t(), b"The quick"
    tokenize = memory.library.specc_tokenize
    assert (
        tokenize(
            artifact,
            text,
            ctypes.c_size_t(len(text)),
            0,
            0,
            None,
            ctypes.c_size_t(0),
            ctypes.byref(count),
        )
        == 0
    )
    assert count.value > 0
    memory.library.specc_artifact_free(artifact)


@pytest.mark.parametrize(
    ("missing", "code"),
    [("manifest.json", b"E0501"), ("model.so", b"E0505"), ("weights.safetensors", b"E0505")],
)
def test_what_is_missing_is_named(tiny_artifact: Path, missing: str, code: bytes) -> None:
    memory = Memory(tiny_artifact, tuple(name for name in FILES if name != missing))
    status, _ = memory.load()
    told = memory.library.specc_last_error()
    assert status == 4
    assert code in told
    assert missing.encode() in told


def test_weights_that_are_not_aligned_are_refused(tiny_artifact: Path) -> None:
    memory = Memory(tiny_artifact, FILES, shift=4)
    assert memory.load()[0] != 0
    assert b"multiple of 64" in memory.library.specc_last_error()


def test_a_source_of_another_size_is_refused(tiny_artifact: Path) -> None:
    memory = Memory(tiny_artifact, FILES)
    memory.source.size -= 8
    assert memory.load()[0] == 3


def test_code_of_another_artifact_is_refused(tiny_artifact: Path) -> None:
    """Linked code is named by the model.so that it is the archive of; the manifest knows that one's hash."""
    memory = Memory(tiny_artifact, FILES)
    entry = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: None)  # never called
    memory.source.model = ctypes.cast(entry, ctypes.c_void_p)
    assert memory.load()[0] == 3
    assert b"source.build" in memory.library.specc_last_error()
    memory.source.build = b"0" * 64
    assert memory.load()[0] == 4
    assert b"another artifact" in memory.library.specc_last_error()


def test_an_open_folder_by_its_descriptor(tiny_artifact: Path, tiny_model: Path) -> None:
    """What docs/embedding.md says of descriptors."""
    import os

    descriptor = os.open(tiny_artifact, os.O_RDONLY)
    try:
        with Artifact.load(Path(f"/proc/self/fd/{descriptor}")) as engine:
            found = engine.generate(PROMPT, max_tokens=NEW, ignore_eos=True)
    finally:
        os.close(descriptor)
    assert list(found.token_ids) == greedy(tiny_model, PROMPT, NEW)


def test_one_program_with_code_and_weights_inside(
    tiny_model: Path, shared_folder: Path, tmp_path: Path
) -> None:
    """examples/cpp, run where there is no file of the artifact, and needing no library of ours."""
    artifact = compiled(tiny_model, shared_folder / "tiny-static.specc", "ngram", static=True)
    build = tmp_path / "build"
    for command in (
        [
            "cmake",
            "-S",
            str(ROOT / "examples/cpp"),
            "-B",
            str(build),
            f"-DSPECC_ARTIFACT={artifact}",
        ],
        ["cmake", "--build", str(build)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    program = build / "specc_single"
    names = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    assert "specc_model_build" in names
    needed = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True)
    assert "specc" not in needed.stdout
    text = "The quick brown"
    with Artifact.load(artifact) as engine:
        ids = engine.tokenize(text, add_special=True, parse_special=True)
        wanted = engine.detokenize(engine.generate(ids, max_tokens=NEW).token_ids)
    answer = subprocess.run(
        [program, text, str(NEW)], capture_output=True, check=True, env={}, cwd="/"
    )
    assert answer.stdout.decode() == wanted + "\n"


def test_archives_show_an_app_the_interface_alone(tiny_model: Path, shared_folder: Path) -> None:
    artifact = compiled(tiny_model, shared_folder / "tiny-static.specc", "ngram", static=True)
    for name, known in (("libspecc.a", "specc_"), ("libmodel.a", "specc_model_")):
        listed = subprocess.run(
            ["nm", "-g", "--defined-only", artifact / "lib" / name],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        names = [line.split()[-1] for line in listed if len(line.split()) == 3]
        assert names
        assert [n for n in names if not n.startswith(known)] == []
