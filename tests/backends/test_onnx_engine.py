"""Artifacts of graphs under the C++ engine: transformers' tokens, with and without a (fake) CANN."""

from __future__ import annotations

import gc
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from bench.graphs import compare, passed
from specc.cli import main
from specc.errors import ArtifactError, SpeccError
from specc.runtime import Artifact, Manifest, Session
from tests.backends.test_atc import GOOD, fake
from tests.conftest import compiled, greedy

PROMPT = [7, 21, 40, 7, 21, 99, 150, 7, 21]
NEW = 24


@pytest.fixture(scope="module")
def wanted(tiny_model: Path) -> list[int]:
    return greedy(tiny_model, PROMPT, NEW)


@pytest.fixture(scope="module")
def without_cann(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For Ascend, by the command, where there is no CANN."""
    path = tmp_path_factory.mktemp("onnx") / "ngram.specc"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
            patch.delenv(name, raising=False)
        words = [
            "compile",
            str(tiny_model),
            "--method",
            "ngram",
            "--num-speculative-tokens",
            "2,4",
            "-o",
            str(path),
        ]
        assert (
            main(
                [*words, "--isa", "avx2", "--device", "ascend:Ascend910B3", "--prefill-chunk", "4"]
            )
            == 3
        )
    return path


@pytest.fixture(scope="module")
def with_fake_cann(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cann")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASCEND_HOME_PATH", str(fake(folder, GOOD).home))
        return compiled(
            tiny_model,
            folder / "draft.specc",
            "draft_model",
            drafter=str(tiny_model),
            device="ascend:Ascend910B3",
        )


@pytest.fixture(scope="module")
def half(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Products of halves."""
    path = tmp_path_factory.mktemp("half") / "ngram.specc"
    return compiled(tiny_model, path, "ngram", device="onnx", dtype="f16", prefill_chunk=4)


def test_same_tokens_as_transformers(without_cann: Path, wanted: list[int]) -> None:
    with Artifact.load(without_cann) as engine:
        for k in (0, 2, 4, -1):
            found = engine.generate(
                PROMPT, max_tokens=NEW, num_speculative_tokens=k, ignore_eos=True
            )
            assert list(found.token_ids) == wanted, k


def test_a_drafter_that_is_the_target_is_always_right(
    with_fake_cann: Path, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECC_EXECUTOR", "onnxruntime")
    with Artifact.load(with_fake_cann) as engine:
        found = engine.generate(PROMPT, max_tokens=NEW, num_speculative_tokens=4, ignore_eos=True)
        assert list(found.token_ids) == wanted
        assert found.stats.accepted_tokens == found.stats.draft_tokens > 0


def test_products_of_halves(half: Path, without_cann: Path) -> None:
    """Halves have 11 bits: logits near those of singles, and the same tokens with drafts and without."""
    found = []
    for path in (without_cann, half):
        with Artifact.load(path) as engine, engine.session() as session:
            session.append(PROMPT)
            place = [len(PROMPT) - 1, len(PROMPT), len(PROMPT) + 1]
            inputs = {"tokens": [21, 3, 4], "positions": place, "rows": place}
            found.append(torch.tensor(session.run("verify_2", inputs).tolist()))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0.05)
    assert not torch.equal(found[1], found[0]), "products are of halves"
    with Artifact.load(half) as engine:
        assert engine.manifest.approximations == ("f16 products", "f16 caches")
        said = {
            k: engine.generate(PROMPT, max_tokens=NEW, num_speculative_tokens=k, ignore_eos=True)
            for k in (0, 2, 4, -1)
        }
    assert len({said[k].token_ids for k in said}) == 1
    assert said[4].stats.drafts > 0


def _logits(session: Session, k: int, tokens: list[int], at: int) -> torch.Tensor:
    places = list(range(at, at + k + 1))
    inputs = {"tokens": tokens, "positions": places, "rows": places}
    return torch.tensor(session.run(f"verify_{k}", inputs).tolist())


@pytest.mark.parametrize("name", ["half", "without_cann"])
@pytest.mark.parametrize("length", [1, 9, 30])
def test_k_makes_no_difference_to_a_bit(
    name: str, length: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph plays every K. A row's logits are what plain decoding has, wherever the row stands in its call, and
    whatever is beside it: drafts that are wrong, or the row once more."""
    monkeypatch.setenv("SPECC_EXECUTOR", "onnxruntime")
    text = [(7 * i * i + 21) % 300 for i in range(length + 5)]
    with Artifact.load(request.getfixturevalue(name)) as engine:
        assert engine.manifest.graphs is not None
        assert sorted(engine.manifest.graphs.files) == ["prefill.graph", "verify_4.graph"]

        def after(prefilled: int) -> Session:
            session = engine.session()
            session.append(text[: prefilled + 1])
            return session

        with after(length) as session:
            plain = [_logits(session, 0, [text[p]], p)[0] for p in range(length, length + 5)]
        with after(0) as session:  # a prefill is what decoding would have written
            told = [_logits(session, 0, [text[p]], p)[0] for p in range(length + 1)]
            assert torch.equal(told[-1], plain[0])
        for k in (2, 4):
            for right in range(k + 1):
                drafts = text[length : length + right + 1] + [3 + right] * (k - right)
                with after(length) as session:
                    found = _logits(session, k, drafts, length)
                assert torch.equal(found[: right + 1], torch.stack(plain[: right + 1])), (k, right)


def test_the_manifest_says_what_was_seen(
    without_cann: Path, with_fake_cann: Path, half: Path
) -> None:
    graphs = Manifest.read(without_cann).graphs
    assert graphs is not None
    assert (graphs.opset, graphs.state, graphs.verified_on_npu) == (15, "onnx-only", False)
    assert (without_cann / "build_om.sh").stat().st_mode & 0o111
    manifest = Manifest.read(with_fake_cann)
    assert manifest.graphs is not None
    assert (manifest.graphs.state, manifest.graphs.verified_on_npu) == ("om", False)
    assert manifest.raw["graphs"]["cann"] == "8.5.0"
    assert set(manifest.raw["graphs"]["om"].values()) <= set(manifest.files)
    assert not manifest.lossless, "nobody has seen what an NPU does with a row beside others"
    assert Manifest.read(half).lossless


def test_who_may_still_call_keeps_what_runs_graphs(without_cann: Path, wanted: list[int]) -> None:
    first, second = Artifact.load(without_cann), Artifact.load(without_cann)
    session = second.session()
    session.configure(max_tokens=4, ignore_eos=True)
    for engine in (first, second):
        engine.close()
    del first, second, engine
    gc.collect()
    session.append(PROMPT)
    assert list(session.iterate()) == wanted[:4]
    session.close()


def test_a_model_of_another_shape_is_an_error(without_cann: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.specc"
    shutil.copytree(without_cann, copy)
    model = copy / "graphs/verify_4.graph.onnx"
    shutil.copy(copy / "graphs/prefill.graph.onnx", model)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"]["graphs/verify_4.graph.onnx"]["bytes"] = model.stat().st_size
    (copy / "manifest.json").write_text(json.dumps(manifest))
    told = r"(?s)SPECC-E0609.*the model takes 32 bytes where the engine has 40"
    with Artifact.load(copy) as engine, pytest.raises(SpeccError, match=told):
        engine.generate(PROMPT, max_tokens=2, num_speculative_tokens=0)


def test_without_onnxruntime(without_cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ArtifactError, match="SPECC-E0509"):
        Artifact.load(without_cann)


WRONG = [
    ("--device ascend:Ascend910B", "E0103"),
    ("--device ascend", "E0103"),
    ("--device ascend:910B3", "E0103"),
    ("--device npu", "E0113"),
    ("--device onnx:1", "E0113"),
    ("--device onnx --opset 19", "E0103"),
    ("--opset 15", "E0104"),
    ("--dtype f16", "E0104"),
    ("--device onnx --dtype bf16", "E0104"),
    ("--device onnx --quant int8", "E0104"),
    ("--device onnx --method eagle:adaptive", "E0104"),
    ("--device onnx --method dspark --tree 8", "E0104"),
    ("--device onnx --kv-cache-dtype bf16", "E0104"),
    ("--device onnx --verify-graphs all", "E0103"),
    ("--device onnx --kv-shards 2 --verify-graphs one", "E0104"),
    ("--verify-graphs one", "E0104"),
    ("--device onnx --backend reference", "E0104"),
]


@pytest.mark.parametrize(("flags", "code"), WRONG)
def test_wrong_flags(
    flags: str, code: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    method = [] if "--method" in flags else ["--method", "ngram"]
    assert main(["compile", "m", *method, *flags.split(), "-o", str(tmp_path / "a")]) == 2
    assert f"SPECC-{code}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["without_cann", "with_fake_cann"])
def test_bench_compares_every_function_with_eager(
    name: str, request: pytest.FixtureRequest, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits behind a prefill within 1e-4, tokens, and what a drafter in the graph proposes. A wrong model fails."""
    monkeypatch.setenv("SPECC_EXECUTOR", "onnxruntime")
    asked = [PROMPT, PROMPT[::-1], [9, 8, 7, 9, 8]]
    target = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)

    def eager(tokens: torch.Tensor) -> torch.Tensor:
        return target(tokens[None]).logits[0]

    with Artifact.load(request.getfixturevalue(name)) as engine:
        found = compare(engine, eager, asked, 8, lambda n: None, other=engine)
        assert passed(found)
        assert (found["prompts"], found["tokens"], found["equal"]) == (3, 24, 24)
        assert sorted(found["most_off_eager"]) == ["verify_0", "verify_2", "verify_4"]
        assert max(found["most_off_eager"].values()) < 1e-4
        for texts in ("plain", "against"):
            assert found[texts] == {"texts": 3, "same": 3, "parted": [], "wrong": []}
        assert found["attention_off"]["any_layer"] == 0 < found["attention_off"]["largest_value"]
        proposed = 0 if name == "without_cann" else 3 * (2 + 4)
        assert found["same_drafts"] == {"proposed": proposed, "equal": proposed}
        if proposed:  # the drafter is the target
            assert found["tokens_a_round"] > 2
            assert compare(engine, eager, asked, 8, lambda n: None, above=5)["left_out"] == 3
        assert not passed(compare(engine, lambda x: -eager(x), asked[:1], 4, lambda n: None))
