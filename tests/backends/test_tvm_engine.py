"""Artifacts of the tvm backend under the C++ engine: transformers' tokens, for every method and K, bit for bit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from specc.cli import main
from specc.runtime import Artifact
from tests.backends.test_inductor import ALLOWED
from tests.conftest import artifact_of, batch_of, by_night, compiled, greedy
from tests.passes import knowing_drafters
from tests.runtime.test_batch import together

PROMPT = [7, 21, 40, 7, 21, 99, 150, 7, 21]
NEW = 24
METHODS = ("ngram", "draft_model", "layerskip", "eagle:adaptive")


@pytest.fixture(scope="module")
def wanted(tiny_model: Path) -> list[int]:
    return greedy(tiny_model, PROMPT, NEW)


def _artifact(method: str, model: Path, folder: Path) -> Path:
    if method == "ngram":
        return batch_of(method, model, folder, "tvm")
    return artifact_of(method, model, folder, "tvm", backend="tvm")


@pytest.fixture(scope="module", params=METHODS)
def artifact(request: pytest.FixtureRequest, tiny_model: Path, shared_folder: Path) -> Path:
    return _artifact(request.param, tiny_model, shared_folder)


@pytest.fixture(scope="module")
def ngram(tiny_model: Path, shared_folder: Path) -> Path:
    return _artifact("ngram", tiny_model, shared_folder)


def test_same_tokens_as_transformers(artifact: Path, wanted: list[int]) -> None:
    with Artifact.load(artifact) as engine:
        assert engine.manifest.backend == "tvm"
        for k in (*engine.manifest.num_speculative_tokens, -1):
            for depth in engine.manifest.drafter.depths or (-1,):
                found = engine.generate(
                    PROMPT, max_tokens=NEW, num_speculative_tokens=k, draft_depth=depth,
                    ignore_eos=True,
                )  # fmt: skip
                assert list(found.token_ids) == wanted, (k, depth)


def test_a_drafter_that_is_the_target_is_always_right(
    tiny_model: Path, shared_folder: Path
) -> None:
    with Artifact.load(_artifact("draft_model", tiny_model, shared_folder)) as engine:
        for heat in (0.0, 1.0):
            stats = engine.generate(
                PROMPT, max_tokens=NEW, num_speculative_tokens=4, temperature=heat, ignore_eos=True
            ).stats
            assert stats.accepted_tokens == stats.draft_tokens > 0


def test_logits_have_the_same_bits_in_any_block_and_on_any_number_of_threads(ngram: Path) -> None:
    """What `lossless` in the manifest says. Kernels for one row and for several are other code."""
    with Artifact.load(ngram) as engine:
        assert engine.manifest.lossless
        with engine.session() as wide, engine.session() as one:
            for session in (wide, one):
                session.append(PROMPT[:1])
            at = [1, 2, 3, 4, 5]
            block = wide.run("verify_4", {"tokens": PROMPT[1:6], "positions": at, "rows": at})
            for row in range(5):
                tokens, at = [PROMPT[1 + row]], [1 + row]
                alone = bytes(one.run("verify_0", {"tokens": tokens, "positions": at, "rows": at}))
                assert alone == bytes(block)[row * len(alone) : (row + 1) * len(alone)]


def test_several_texts_in_one_pass(ngram: Path, tiny_model: Path) -> None:
    """Of other lengths, in caches that lie one behind the other."""
    prompts = [PROMPT, [5, 6, 7, 5, 6, 7, 5], [9, 10, 11, 12] * 4, [20]]
    options = [{"num_speculative_tokens": k, "max_tokens": NEW} for k in (4, 0, -1, 2)]
    with Artifact.load(ngram, threads=1) as engine, engine.batch() as batch:
        got = together(batch, prompts, options)
        assert batch.passes.texts > batch.passes.passes
    assert got == [greedy(tiny_model, prompt, NEW) for prompt in prompts]


def test_sampled_tokens_do_not_depend_on_speculation(ngram: Path) -> None:
    with Artifact.load(ngram) as engine:
        texts = {
            engine.generate(
                PROMPT, max_tokens=NEW, num_speculative_tokens=k, temperature=0.8, seed=3, ignore_eos=True
            ).token_ids
            for k in (*engine.manifest.num_speculative_tokens, -1)
        }  # fmt: skip
        assert len(texts) == 1


@pytest.mark.parametrize("name", ["model.so", "lib/libspecc.so"])
def test_libraries_need_the_system_alone(ngram: Path, name: str) -> None:
    """No Python, no TVM, not even tvm-ffi."""
    told = subprocess.run(["ldd", str(ngram / name)], capture_output=True, text=True, check=True)
    needed = [line.strip() for line in told.stdout.splitlines()]
    assert needed
    assert [line for line in needed if not ALLOWED.search(line)] == []
    symbols = subprocess.run(
        ["nm", "-D", str(ngram / name)], capture_output=True, text=True, check=True
    )
    assert "TVM" not in symbols.stdout


@pytest.mark.parametrize(
    ("method", "tree"),
    by_night([("eagle", None), ("eagle3", None), ("medusa", None), ("dspark", None), ("eagle3", 30)],
             ("dspark", None), ("eagle3", 30)),
)  # fmt: skip
def test_a_trained_drafter_is_believed_as_far_as_it_knows(
    method: str, tree: int | None, tmp_path: Path
) -> None:
    """Drafts are wrong where the drafter is made so, and nowhere else; a tree may have the right token beside them."""
    wrong = {3, 4, 11, 20, 21, 26, 30}
    knowing_drafters.target().save_pretrained(tmp_path / "model")
    drafter = knowing_drafters.MAKERS[method](tmp_path / "drafter", wrong)
    path = compiled(
        tmp_path / "model", tmp_path / f"{method}.specc", method, drafter=str(drafter),
        prefill_chunk=4, backend="tvm", tree=tree,
    )  # fmt: skip
    text = [9]
    while len(text) < 64:
        text.append(knowing_drafters.NEXT[text[-1]])
    with Artifact.load(path) as engine, engine.session() as session:
        session.configure(ignore_eos=True, max_tokens=100)
        session.append(text[:11])
        if tree is not None:
            assert [session.next() for _ in range(24)] == text[11:35]
            assert session.stat("accepted_tokens") > 0
            return
        knowing_drafters.play(session, text, wrong, range(11, 30), [4, 0, 2, 4])


WRONG = [
    ("--quant int8", "E0104"),
    ("--quant keep", "E0104"),
    ("--device onnx", "E0104"),
]


@pytest.mark.parametrize(("flags", "code"), WRONG)
def test_what_it_cannot_do_is_refused(
    flags: str, code: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["compile", "m", "--backend", "tvm", "--method", "ngram", *flags.split()]
    assert main([*words, "-o", str(tmp_path / "a")]) == 2
    assert f"SPECC-{code}" in capsys.readouterr().err


@pytest.mark.parametrize("way", [["--backend", "tvm"], ["--format", "mlc"]])
def test_another_tvm(
    way: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:  # fmt: skip
    """Refused before a model is looked for."""
    import sys

    import tvm

    for name in [n for n in sys.modules if n.startswith("specc.backends.tvm")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(tvm, "__version__", "0.26.0")
    words = ["compile", str(tmp_path / "none"), *way, "--method", "none", "-o", str(tmp_path / "a")]
    assert main(words) == 1
    told = capsys.readouterr().err
    assert "SPECC-E0444" in told
    assert "0.26.0" in told


def test_without_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from specc.backends.base import find_backend
    from specc.errors import BackendError

    for name in [n for n in sys.modules if n.startswith("specc.backends.tvm")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tvm", None)
    with pytest.raises(BackendError, match="SPECC-E0444"):
        find_backend("tvm")
