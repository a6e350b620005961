"""Libraries for MLC as object files, and what cannot be one."""

from __future__ import annotations

import ctypes
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from tvm import relax
from tvm.relax.frontend.nn.llm.kv_cache import TIRPagedKVCache

from specc.backends.tvm.mlc import cache
from specc.backends.tvm.mlc import compile as mlc_compile
from specc.backends.tvm.mlc.leaf import Heads, PagedLeaf
from specc.cli import main
from specc.errors import BackendError
from specc.ir import Function, Role, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import Builder
from specc.ir.infer import infer_types
from tests.backends.mlc_engine import GREEDY, SPECULATIVE, Engine
from tests.backends.mlc_folders import check_folder, folder_for_mlc
from tests.conftest import by_night, greedy
from tests.ir.importers.tiny_models import tiny

MACHINES = {"iphone": "Mach-O 64-bit arm64", "android": "ELF aarch64"}


def machine(data: bytes) -> str:
    """What an object file is for, by the formats' own headers (elf.h, mach/machine.h, mach-o/loader.h)."""
    if data[:4] == b"\x7fELF" and data[4] == 2 and int.from_bytes(data[18:20], "little") == 183:
        return "ELF aarch64"
    if data[:4] == (0xFEEDFACF).to_bytes(4, "little") and data[4:8] == (0x0100000C).to_bytes(
        4, "little"
    ):
        return "Mach-O 64-bit arm64"
    return data[:20].hex()


@pytest.fixture(scope="module")
def smaller(shared_folder: Path) -> Path:
    """One layer, so that the libraries are soon there; positions are learned, and added to embeddings."""
    folder = shared_folder / "mlc-smaller"
    with FileLock(str(folder) + ".lock"):
        if not folder.exists():
            tiny("gpt2", n_layer=1).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("phone", by_night(["iphone", "android"], "iphone"))
def test_phones_are_given_static_libraries(
    phone: str, smaller: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Compiled by LLVM alone: objects for arm64, in a .tar, under a name that `mlc_llm package` looks for."""
    out = tmp_path / "out"
    flags = ["--format", "mlc", "--mlc-target", phone, "--method", "none", "--json"]
    kept = tmp_path / "kept"
    if phone == "iphone":  # compiled anew, and nothing of it is kept
        monkeypatch.setenv("SPECC_CACHE_DIR", str(kept))
        flags.append("--no-cache")
    assert main(["compile", str(smaller), *flags, "-o", str(out)]) == 0
    told = json.loads(capfd.readouterr().out)
    assert not kept.exists()
    engine = check_folder(out, package_too=True)
    assert (told["format"], told["engine"]) == ("mlc", engine)
    assert engine["model_lib"] == "system://mlc_smaller_target"
    with tarfile.open(out / "target/model.tar") as archive:
        objects = [archive.extractfile(m).read() for m in archive.getmembers()]  # type: ignore[union-attr]
    assert [machine(o) for o in objects] == [MACHINES[phone]] * 2
    found = b"".join(objects)
    underscore = b"_" if phone == "iphone" else b""
    assert b"\0" + underscore + b"mlc_smaller_target___tvm_ffi__library_bin\0" in found
    for kernel in (*GREEDY, *SPECULATIVE):
        symbol = f"__tvm_ffi_mlc_smaller_target_{kernel}".encode()
        assert b"\0" + underscore + symbol + b"\0" in found
    assert {p.name for p in out.iterdir()} == {
        "README.md", "engine.json", "mlc-package-config.json", "specc.json", "target",
    }  # fmt: skip
    readme = (out / "README.md").read_text()
    assert {"iphone": "kDLCPU", "android": "Device.cpu()"}[phone] in readme
    assert "Speculation." not in readme


def test_target_and_drafter_are_linked_into_one_program(
    smaller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a phone's app does, with objects for this machine: two static libraries, no symbol twice, `system://`."""
    monkeypatch.setitem(mlc_compile.TARGETS, "android", mlc_compile.TARGETS["host"])
    out = folder_for_mlc(
        smaller, tmp_path / "out", "draft_model", drafter=str(smaller), mlc_target="android",
        num_speculative_tokens=(0, 3),
    )  # fmt: skip
    check_folder(out, package_too=True)
    assert {p.name for p in out.iterdir()} == {
        "README.md", "Speculation.kt", "drafter", "engine-plain.json", "engine.json", "mlc-package-config.json",
        "specc.json", "target",
    }  # fmt: skip
    objects = []
    for name in ("target", "drafter"):
        with tarfile.open(out / name / "model.tar") as archive:
            archive.extractall(tmp_path / name, filter="data")
        objects += sorted((tmp_path / name).iterdir())
    program = tmp_path / "program.so"
    subprocess.run(["g++", "-shared", "-o", program, *objects], check=True)
    libc = ctypes.CDLL(str(program))  # constructors tell TVM's runtime of both
    engine = Engine(out)
    found = engine.generate([7, 21, 40], 12)
    assert found == greedy(smaller, [7, 21, 40], len(found))
    assert set(engine.lengths) == {4}, "a drafter that is the target is always right"
    del libc


TREES = ("tree_attn_paged_kv_cpu", "batch_tree_attn")
"""TVM's kernels of token trees: over pages, and over the rows of the call alone."""


def created(swapped: bool) -> list[str]:
    """The kernels of token trees in the call that makes a cache, by their names, in order."""
    builder = relax.BlockBuilder()
    target = mlc_compile.target_of("host", "x86-64-v3")
    original = TIRPagedKVCache.__init__

    def mended(self: Any, **options: Any) -> None:
        original(self, **options)
        call = builder.lookup_binding(self._expr)
        args = list(call.args)
        i, j = (n for n, a in enumerate(args) if "tree_mask" in cache._kernel_name(builder, a))
        args[i], args[j] = args[j], args[i]
        self._expr = builder.emit(relax.Call(call.op, args, call.attrs, call.ty_args))

    with pytest.MonkeyPatch.context() as patch:
        if swapped:
            patch.setattr(TIRPagedKVCache, "__init__", mended)
        cache.add_cache(builder, Heads(4, 2, 8), 1, target)
    made = relax.transform.DeadCodeElimination()(builder.finalize())[cache.CREATE]
    calls = [
        b.value for block in made.body.blocks for b in block.bindings if hasattr(b.value, "args")
    ]
    names = [str(a) for call in calls for a in call.args]
    return [name for text in names for name in TREES if f", {name}" in text]


@pytest.mark.parametrize("swapped", [False, True])
def test_the_kernels_of_trees_are_in_order_in_any_tvm(swapped: bool) -> None:
    """As TVM 0.27 passes them, and as a TVM without that mistake would."""
    assert created(swapped) == ["tree_attn_paged_kv_cpu", "batch_tree_attn"]


def leaf(build: Any, *inputs: TensorType) -> Function:
    builder = Builder()
    nodes = [builder.input(f"x{i}", t) for i, t in enumerate(inputs)]
    graph = builder.output(*build(builder, *nodes))
    infer_types(graph)
    return Function("leaf", Role.LEAF, graph, ("y",))


CACHE, ROWS, NEW_ROWS = (
    TensorType("f32", (2, "S", 8)),
    TensorType("i64", ("T",)),
    TensorType("f32", ("T", 2, 8)),
)


def test_a_write_that_nothing_attends_to_is_an_error() -> None:
    """The cache is written by attention alone: a write without one would be dropped without a word."""

    def build(b: Builder, state: Any, x: Any, rows: Any) -> list[Any]:
        b.op(ops.cache_write.default, state, x, rows)
        return [b.op(torch.ops.aten.neg.default, x)]

    with pytest.raises(BackendError, match="SPECC-E0443"):
        PagedLeaf(leaf(build, CACHE, NEW_ROWS, ROWS), relax.BlockBuilder(), 64)


@pytest.mark.parametrize(
    ("window", "softcap", "sinks", "words"),
    [
        (8, 0.0, False, "a window of 8 tokens"), (64, 0.0, False, ""), (0, 30.0, False, "a cap on scores"),
        (0, 0.0, True, "sinks in the softmax"),
    ],
)  # fmt: skip
def test_attention_that_the_paged_cache_has_not_is_refused(
    window: int, softcap: float, sinks: bool, words: str
) -> None:
    def build(b: Builder, q: Any, k: Any, v: Any, rows: Any, sink: Any) -> list[Any]:
        for state in (k, v):
            b.op(ops.cache_write.default, state, q, rows)
        more = (None, 0.5, window, softcap, sink if sinks else None)
        return [b.op(ops.cached_attention.default, q, k, v, rows, rows, *more)]

    made = leaf(build, NEW_ROWS, CACHE, CACHE, ROWS, TensorType("f32", (2,)))
    if not words:
        assert PagedLeaf(made, relax.BlockBuilder(), 64).heads == Heads(2, 2, 8)
        return
    with pytest.raises(BackendError, match="SPECC-E0441") as refused:
        PagedLeaf(made, relax.BlockBuilder(), 64)
    assert words in refused.value.what
    assert "leave out --format" in refused.value.cure
