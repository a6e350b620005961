"""Caches on several devices under the C++ engine: each device's graphs run by onnxruntime, here one after another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.attention import Seen, watched
from specc.cli import main
from specc.errors import ArtifactError, UsageError
from specc.judge import check_request
from specc.request import CompileRequest
from specc.runtime import Artifact, Manifest
from tests.backends.test_onnx_engine import NEW, PROMPT, wanted
from tests.conftest import compiled

assert wanted  # a fixture
ARTIFACTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "rows2": {"kv_shards": (2, "rows"), "link_gbps": 100.0},
    "rows4": {"kv_shards": (4, "")},
    "heads2": {"kv_shards": (2, ""), "drafter": "itself"},
    "rows4-draft": {"kv_shards": (4, "rows"), "drafter": "itself"},
}
PLACES = (5, 62, 126, 129)
"""Rows before, on and behind the end of a shard."""


@pytest.fixture(scope="module")
def engines(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Artifact]]:
    """Opened, by name. The model has four heads, and two of keys."""
    folder = tmp_path_factory.mktemp("shards")
    with ExitStack() as stack:
        found = {}
        for name, options in ARTIFACTS.items():
            given = {**options, "device": "onnx", "prefill_chunk": 4}
            if "drafter" in options:
                given["drafter"] = str(tiny_model)
            method = "draft_model" if "drafter" in options else "ngram"
            path = compiled(tiny_model, folder / f"{name}.specc", method, **given)
            found[name] = stack.enter_context(Artifact.load(path, threads=1))
        yield found


@pytest.mark.parametrize("name", ARTIFACTS)
def test_tokens_are_those_of_transformers(
    name: str, engines: dict[str, Artifact], wanted: list[int]
) -> None:
    for k in (0, 2, 4, -1):
        found = engines[name].generate(
            PROMPT, max_tokens=NEW, num_speculative_tokens=k, ignore_eos=True
        )
        assert list(found.token_ids) == wanted, k
        if "drafter" in ARTIFACTS[name] and k > 0:
            assert found.stats.accepted_tokens == found.stats.draft_tokens > 0


@pytest.fixture(scope="module")
def of_one_device(engines: dict[str, Artifact]) -> list[tuple[torch.Tensor, Seen]]:
    return _scored(engines["whole"])


def _scored(engine: Artifact) -> list[tuple[torch.Tensor, Seen]]:
    """Logits of three rows at each of PLACES, and what attention yielded."""
    found = []
    with engine.session() as session:
        session.append([3 + i % 90 for i in range(130)])
        with watched(engine) as seen:
            for root in PLACES:
                place = [root, root + 1, root + 2]
                inputs = {"tokens": [9, 8, 7], "positions": place, "rows": place}
                logits = torch.tensor(session.run("verify_2", inputs).tolist())
                found.append((logits, seen.take()))
    return found


@pytest.mark.parametrize("name", sorted(set(ARTIFACTS) - {"whole"}))
def test_attention_and_logits_are_those_of_one_device(
    name: str, engines: dict[str, Artifact], of_one_device: list[tuple[torch.Tensor, Seen]]
) -> None:
    """What the merge yields: in the first layer, whose inputs are equal, one device's; in all, double precision's.

    (Further on, inputs differ by how sums were ordered before, as one device's differ from double precision's.)
    """
    for (logits, seen), (whole, plain) in zip(_scored(engines[name]), of_one_device, strict=True):
        np.testing.assert_allclose(seen.layers[0], plain.layers[0], rtol=0, atol=1e-5)
        assert sorted(seen.layers) == [0, 1, 2, 3]
        for layer, found in seen.layers.items():
            want = exact(seen.shares[f"verify_2.attend_{layer}"], layer, name.startswith("rows"))
            np.testing.assert_allclose(found, want, rtol=0, atol=1e-5)
        torch.testing.assert_close(logits, whole, rtol=1e-5, atol=1e-5)


def exact(shares: list[dict[str, Any]], layer: int, by_rows: bool) -> Any:
    """Softmax attention over all that devices have, in double precision: f64[T, heads * width]."""
    scores, values = [], []
    for share in shares:
        given = {name: array.astype(np.float64) for name, array in share.items()}
        rows, heads, width = given["k_new"].shape
        # Of each layer keys, then values.
        cache = given["cache"][0].reshape(-1, 4, 2, heads, width)[:, layer]
        keys, held = (
            np.concatenate([cache[:, kind], given[new]]).repeat(4 // 2, 1)
            for kind, new in enumerate(("k_new", "v_new"))
        )
        score = np.einsum("thd,shd->hts", given["q"], keys) / width**0.5
        scores.append(score + np.concatenate([given["old"], given["new"]], 1))
        values.append(held)
    ways = [range(len(shares))] if by_rows else [[i] for i in range(len(shares))]
    found = []
    for way in ways:
        score = np.concatenate([scores[i] for i in way], 2)
        weights = np.exp(score - score.max(2, keepdims=True))
        weights /= weights.sum(2, keepdims=True)
        found.append(np.einsum("hts,shd->thd", weights, np.concatenate([values[i] for i in way])))
    return np.concatenate(found, 1).reshape(rows, -1)


def test_nothing_runs_on_several_npus(
    tiny_model: Path, tmp_path: Path, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs for each NPU are made, and the CPU runs them where that is asked for."""
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.delenv(name, raising=False)
    path = compiled(
        tiny_model, tmp_path / "npu.specc", "ngram", device="ascend:Ascend910B3", kv_shards=(2, ""),
        prefill_chunk=4,
    )  # fmt: skip
    assert "verify_2.attend_3" in (path / "build_om.sh").read_text()
    with pytest.raises(ArtifactError, match="SPECC-E0512"):
        Artifact.load(path)
    monkeypatch.setenv("SPECC_EXECUTOR", "onnxruntime")
    with Artifact.load(path) as engine:
        found = engine.generate(PROMPT, max_tokens=NEW, num_speculative_tokens=4, ignore_eos=True)
    assert list(found.token_ids) == wanted


def test_costs_are_told(engines: dict[str, Artifact], capsys: pytest.CaptureFixture[str]) -> None:
    path = engines["rows2"].path
    shards = Manifest.read(path).graphs.shards  # type: ignore[union-attr]
    assert shards is not None
    assert (shards.count, shards.way) == (2, "rows")
    rows, heads = shards.costs
    # Four layers, four heads of 16 and two numbers more, f32, to one other device.
    assert (rows.exchanges, rows.bytes_received) == (4, 4 * 4 * 18 * 4)
    assert heads.bytes_received * 2 == rows.bytes_received
    assert rows.link_microseconds == pytest.approx(rows.bytes_received * 8 / 1e5)
    assert Manifest.read(engines["heads2"].path).graphs.shards.way == "heads"  # type: ignore[union-attr]
    assert main(["inspect", str(path)]) == 0
    told = capsys.readouterr().out
    assert "2 devices, by rows" in told
    assert "by rows: receives 1.2 kB in 0.1 us in 4 exchanges" in told
    assert main(["inspect", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["graphs"]["shards"]["costs"][0]["bytes_received"] == rows.bytes_received


def _request(device: str, shards: tuple[int, str] | None, gbps: float = 0) -> CompileRequest:
    return CompileRequest("m", Path("a"), "ngram", device=device, kv_shards=shards, link_gbps=gbps)


@pytest.mark.parametrize(("device", "count"), [
    ("ascend:Ascend910B3", 16), ("ascend:Ascend910ProB", 8), ("ascend:Ascend310P3", 4),
    ("ascend:Ascend310B4", 2),
])  # fmt: skip
def test_more_than_a_server_has_is_refused(device: str, count: int) -> None:
    with pytest.raises(UsageError, match="SPECC-E0133"):
        check_request(_request(device, (count, "")))


@pytest.mark.parametrize(("device", "count"), [
    ("ascend:Ascend910B3", 8), ("ascend:Ascend910_9391", 16), ("ascend:Ascend310P3", 2), ("onnx", 16),
])  # fmt: skip
def test_as_many_as_a_server_has(device: str, count: int) -> None:
    check_request(_request(device, (count, "")))


@pytest.mark.parametrize("flags", [
    "--kv-shards 2", "--device onnx --kv-shards 1", "--device onnx --kv-shards 17",
    "--device onnx --kv-shards layers:2", "--device onnx --link-gbps 100",
    "--device onnx --kv-shards 2 --link-gbps -1", "--device onnx --method mtp --tree 8",
])  # fmt: skip
def test_wrong_flags(flags: str, tmp_path: Path) -> None:
    method = [] if "--method" in flags else ["--method", "ngram"]
    assert main(["compile", "m", *method, *flags.split(), "-o", str(tmp_path / "a")]) == 2


def test_heads_that_do_not_divide_are_refused_by_name(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compile", str(tiny_model), "--method", "ngram", "--device", "onnx", "--no-cache"]
    words += ["--kv-shards", "heads:4", "-o", str(tmp_path / "a")]
    assert main(words) != 0
    told = capsys.readouterr().err
    assert "SPECC-E0373" in told
    assert "2 heads of keys are no multiple of 4" in told
    assert not (tmp_path / "a").exists()
