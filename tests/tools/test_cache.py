"""The compile cache: what was made once is used again, if and only if it is what would be made now."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from specc import artifacts, cache, cli
from specc.artifacts import compile_kept, key_of
from specc.destination import whole_or_nothing
from specc.errors import BackendError, UsageError
from specc.progress import NotingProgress, SilentProgress
from specc.request import CompileRequest

HOUR = 3600


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SPECC_CACHE_LIMIT", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def request(model: Path, output: str = "a.specc", **changes: Any) -> CompileRequest:
    base = CompileRequest(str(model), model.parent / output, method="none", backend="reference")
    return replace(base, max_model_len=64, **changes)


def contents(artifact: Path) -> dict[str, bytes]:
    files = {str(p.relative_to(artifact)): p for p in artifact.rglob("*") if p.is_file()}
    return {name: p.read_bytes() for name, p in files.items() if name != "manifest.json"}


def manifest(artifact: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((artifact / "manifest.json").read_text())
    return found


def test_the_same_again_is_copied_without_torch(model: Path) -> None:
    first = compile_kept(request(model), SilentProgress())
    code = """
import sys
from specc import cli
sys.exit(cli.main() or "torch" in sys.modules)
"""
    command = ["compile", model, "--method", "none", "--backend", "reference", "--max-model-len", "64",
               "-o", model.parent / "b.specc"]  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "copied from the cache" in ran.stderr
    copy = model.parent / "b.specc"
    assert contents(copy) == contents(first.path)
    facts, again = manifest(first.path), manifest(copy)
    assert again["provenance"].pop("argv") != facts["provenance"].pop("argv")
    assert again == facts


def test_copies_share_nothing(model: Path, folder: Path) -> None:
    """What is done to an artifact, in place, shows in no other."""
    first = compile_kept(request(model), SilentProgress()).path
    before = contents(first)
    weights = first / "weights.safetensors"
    with weights.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"oops")
    second = compile_kept(request(model, "b.specc"), SilentProgress()).path
    assert contents(second) == before
    assert len(list((folder / "artifacts").iterdir())) == 1


@pytest.mark.parametrize("file", ["weights.safetensors", "manifest.json", "report.json"])
def test_a_damaged_artifact_is_not_used(
    model: Path, folder: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compile_kept(request(model), SilentProgress())
    (entry,) = (folder / "artifacts").iterdir()
    kept = bytearray((entry / file).read_bytes())
    kept[len(kept) // 2] ^= 1
    if file == "report.json":
        del kept[-1]
    (entry / file).write_bytes(kept)
    made = []
    keep = artifacts._keep
    monkeypatch.setattr(artifacts, "_keep", lambda *a: (made.append(a[0]), keep(*a)))
    second = compile_kept(request(model, "b.specc"), SilentProgress())
    weights = "weights.safetensors"
    assert contents(second.path)[weights] == contents(first.path)[weights]
    assert made == [entry.name], "compiled anew, and kept in place of what was damaged"
    compile_kept(request(model, "c.specc"), SilentProgress())
    assert made == [entry.name]


def test_what_an_artifact_depends_on(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {key_of(request(model))}
    assert key_of(request(model, "elsewhere", force=True)) in keys

    def differs(**changes: Any) -> None:
        key = key_of(request(model, **changes))
        assert key not in keys, changes
        keys.add(key)

    differs(method="suffix")
    differs(prefill_chunk=8)
    differs(drafter_options={"prompt_lookup_max": 8})
    differs(method="draft_model", drafter=str(model))
    config = model / "config.json"
    config.write_text(config.read_text() + "\n")
    differs()
    weights = model / "model.safetensors"
    stat, data = weights.stat(), bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    differs()  # by content: size and time are as they were
    (model / "chat_template.jinja").write_text("other")
    differs()
    monkeypatch.setattr(artifacts, "_source", lambda: "another version of specc")
    differs()
    monkeypatch.setattr(artifacts, "version", lambda name: "0")
    differs()
    monkeypatch.setenv("CXX", "cc")
    differs()
    monkeypatch.setenv("TORCHINDUCTOR_MAX_FUSION_SIZE", "1")
    differs()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")  # as Inductor does itself
    assert key_of(request(model)) in keys
    model.rename(model.with_name("renamed"))
    model = model.with_name("renamed")
    differs()


def test_a_model_that_changed_meanwhile_is_not_kept(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specc import driver

    compile_model = driver.compile_model

    def meddle(*arguments: Any) -> Any:
        report = compile_model(*arguments)
        (model / "config.json").write_text((model / "config.json").read_text() + " ")
        return report

    monkeypatch.setattr(driver, "compile_model", meddle)
    compile_kept(request(model), SilentProgress())
    assert not (folder / "artifacts").exists()


def test_what_was_measured_is_not_kept(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specc import driver

    compile_model = driver.compile_model

    def choose(asked: CompileRequest, progress: Any) -> Any:
        """As if measuring had found this best."""
        return compile_model(replace(asked, method="none"), progress)

    monkeypatch.setattr(driver, "compile_model", choose)
    for output in ("a.specc", "b.specc"):
        compile_kept(request(model, output, method="auto"), SilentProgress())
        assert (model.parent / output / "manifest.json").is_file()
    assert not (folder / "artifacts").exists()


def test_generated_code_depends_on_the_settings_of_inductor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from specc.backends.inductor import lower
    from specc.ir import Role
    from tests.passes import toy

    program = toy.after("build-accept")
    leaf = next(f for f in program.functions.values() if f.role is Role.LEAF)
    before = lower._identity(leaf, "x86-64-v3")
    assert lower._identity(leaf, "x86-64-v3") == before
    monkeypatch.setenv("TORCHINDUCTOR_MAX_FUSION_SIZE", "1")
    assert lower._identity(leaf, "x86-64-v3") != before


@pytest.mark.parametrize("name", ["CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"])
def test_the_compiler_searches_no_folders_that_no_key_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    from specc.backends.toolchain import Toolchain

    monkeypatch.setenv(name, str(tmp_path))
    Toolchain("x86-64-v3")._run(["sh", "-c", f'test -z "${name}"'], "nothing")


def test_too_large_to_keep(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--method", "none", "--backend", "reference", "--max-model-len", "64", "-o"]
    monkeypatch.setenv("SPECC_CACHE_LIMIT", "100k")
    assert cli.main(["compile", str(model), *flags, str(model.parent / "a.specc")]) == 0
    assert "over half" in capsys.readouterr().err
    monkeypatch.setenv("SPECC_CACHE_LIMIT", "1G")
    assert (
        cli.main(["compile", str(model), *flags, str(model.parent / "b.specc"), "--no-cache"]) == 0
    )
    assert not (folder / "artifacts").exists()
    assert cache.folder() == folder


def test_whatever_backends_keep_can_be_cleared() -> None:
    """A folder that nobody trims grows without limit."""
    backends = Path(__file__).parents[2] / "backends"
    kept = {
        part for file in backends.rglob("*.py")
        for part in re.findall(r'Pieces\("(\w+)"\)', file.read_text())
    }  # fmt: skip
    assert {"leaves", "tvm", "mlc"} <= kept <= set(cache.PARTS)


def test_pieces_are_made_once_and_checked(folder: Path) -> None:
    made = []

    def make(path: Path) -> None:
        made.append(path)
        path.write_text("content")

    pieces = cache.Pieces("objects")
    path = pieces.get("x.o", make)
    assert pieces.get("x.o", make).read_text() == "content"
    assert len(made) == 1
    path.write_text("c0ntent")
    assert pieces.get("x.o", make).read_text() == "content"
    assert len(made) == 2
    (folder / "objects/x.o.sha256").unlink()
    assert pieces.get("x.o", make).read_text() == "content"
    assert len(made) == 3
    assert {p.name for p in (folder / "objects").iterdir()} == {"x.o", "x.o.sha256"}


MAKER = """
import sys, time
from pathlib import Path
from specc.cache import Pieces

def make(path):
    with open(sys.argv[1], "a") as log:
        log.write("made\\n")
    time.sleep(1)
    path.write_text("content")

print(Pieces("objects").get("x.o", make).read_text())
"""


def test_processes_beside_each_other_make_a_piece_once(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKER, str(tmp_path / "log")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [p.communicate(timeout=60)[0] for p in both] == ["content\n"] * 2
    assert (tmp_path / "log").read_text() == "made\n"
    assert {p.name for p in (folder / "objects").iterdir()} == {"x.o", "x.o.sha256"}


def test_who_waits_too_long_for_another_makes_it_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = cache.Pieces("objects")
    monkeypatch.setattr(cache, "_PATIENCE", 0.2)
    with FileLock(folder / "objects/tmp-lock-x.o"):
        assert pieces.get("x.o", lambda p: p.write_text("content")).read_text() == "content"


def test_what_fails_leaves_nothing(folder: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        cache.Pieces("objects").get("x.o", fail)
    assert not list((folder / "objects").iterdir())


def test_a_full_disk_is_a_coded_error(tmp_path: Path) -> None:
    from specc.backends.toolchain import Toolchain

    def write(folder: Path) -> None:
        (folder / "weights.safetensors").write_bytes(b"half")
        Path("/dev/full").write_bytes(b"the rest")

    def link(folder: Path) -> None:
        command = ["dd", "if=/dev/zero", "of=/dev/full", "count=1"]
        Toolchain("x86-64-v3")._run(command, "model.so", folder)

    def build(step: Callable[[Path], None]) -> None:
        with whole_or_nothing(tmp_path / "art", False) as folder:
            step(folder)

    for step in (write, link):
        with pytest.raises(BackendError, match="SPECC-E0408") as error:
            build(step)
        assert "specc cache clear" in error.value.cure
    assert [p.name for p in tmp_path.iterdir()] == ["cache"]


def test_what_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from specc.backends.toolchain import Toolchain

    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(BackendError, match="SPECC-E0403") as error:
        Toolchain("x86-64-v3")
    assert error.value.where == "/bin/false"
    assert "CXX" in error.value.cure
    # A compiler, but of this machine's code: --isa neon needs one for ARM.
    monkeypatch.setenv("CXX", "g++")
    with pytest.raises(BackendError, match=r"SPECC-E0403[\s\S]*aarch64[\s\S]*x86_64"):
        Toolchain("armv8-a")


@pytest.mark.parametrize(
    ("kind", "source", "least"),
    [
        (
            "leaf", "float twice(float x) { return at::vec::Vectorized<float>(x + x).size() * x; }", 10_000_000,
        ),
        ("calling", '#include "leaf_cuda.h"\nvoid begin(AtenTensorHandle* in) { SPECC_LEAF_ENTER(in, 1); }', 1_000_000),
    ],
)  # fmt: skip
def test_headers_understood_before_change_no_byte(
    folder: Path, kind: str, source: str, least: int
) -> None:
    """The same object from the text of the headers, which is what g++ goes back to for what it did not make itself."""
    from specc.backends.toolchain import Toolchain

    def compiled() -> bytes:
        chain = Toolchain("x86-64-v3")
        with chain.at_work() as start:
            (made,) = start([getattr(chain, kind)(source, "leaf0")])
            return made.result().read_bytes()

    found = compiled()
    (understood,) = (folder / "headers").glob("*.gch")
    assert understood.stat().st_size > least
    assert compiled() == found
    understood.write_bytes(b"of another g++")
    Path(f"{understood}.sha256").write_text(cache.sha256(understood))
    shutil.rmtree(folder / "objects")
    assert compiled() == found


def test_trimming_begins_with_what_is_idle_for_longest(folder: Path) -> None:
    for number, (part, name) in enumerate(
        [("objects", "old"), ("artifacts", "older"), ("leaves", "new")]
    ):
        path = folder / part / name
        path.parent.mkdir(parents=True)
        if part == "artifacts":
            path.mkdir()
            (path / "weights").write_bytes(bytes(1000))
        else:
            path.write_bytes(bytes(1000))
        age = [10, 20, 0][number] * HOUR
        os.utime(path, (time.time() - age,) * 2)
    (folder / "mine").write_bytes(bytes(1000))
    assert cache.trim(3000) == 0
    assert cache.trim(2500) == 1000
    assert not (folder / "artifacts/older").exists()
    assert cache.trim(0) == 1000, "what was used within the hour may be in use now"
    assert [p.name for p in folder.rglob("*") if p.is_file()] in (["new", "mine"], ["mine", "new"])


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("12", 12), ("5M", 5 * 10**6), ("2GB", 2 * 10**9)]
)
def test_limit(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv("SPECC_CACHE_LIMIT", text)
    assert cache.limit() == size
    monkeypatch.setenv("SPECC_CACHE_LIMIT", text + "x")
    with pytest.raises(UsageError, match="SPECC_CACHE_LIMIT"):
        cache.limit()


def test_the_verb(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_kept(request(model), SilentProgress())
    (folder / "mine").write_bytes(b"123")
    assert cli.main(["cache", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["parts"]["artifacts"]["entries"] == 1
    (kept,) = listed["artifacts"]
    assert (kept["name"], kept["method"]) == ("model", "none")
    assert kept["bytes"] == listed["parts"]["artifacts"]["bytes"] > 10**5
    assert cli.main(["cache", "trim"]) == 0
    assert "0 B deleted" in capsys.readouterr().out
    assert cli.main(["cache", "clear"]) == 0
    assert "model" in capsys.readouterr().out
    assert [p.name for p in folder.iterdir()] == ["mine"]


def test_a_copy_says_what_was_said_when_it_was_made(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specc import driver

    compile_model = driver.compile_model

    def warn(asked: CompileRequest, progress: Any) -> Any:
        progress.note("it will not pay")
        return compile_model(asked, progress)

    monkeypatch.setattr(driver, "compile_model", warn)
    compile_kept(request(model), SilentProgress())
    second = NotingProgress(SilentProgress())
    compile_kept(request(model, "b.specc"), second)
    assert "copied from the cache" in second.notes[0]
    assert "it will not pay" in second.notes[1:]
