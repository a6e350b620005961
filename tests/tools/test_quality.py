"""`bench --quality`, and what else of quantised weights and trimmed vocabularies a user meets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from specc import cli
from specc.ir import Encoding
from specc.runtime import Artifact, Manifest
from tests.conftest import TEXT, compiled

PROMPT = [7, 21, 40, 7, 21, 99, 150, 7, 21]


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code = cli.main([*map(str, arguments), "--json"])
    payload: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 0, payload
    return payload


def _losses(model: Path, ids: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    eager = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = eager(torch.tensor([ids])).logits[0]
    return torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")


def test_quality_of_float32_is_the_original(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text(TEXT)
    found = as_json(capsys, "bench", tiny_artifact, "--quality", tmp_path / "t.txt")
    with Artifact.load(tiny_artifact) as engine:
        ids = engine.tokenize(TEXT, add_special=engine.manifest.model.add_bos, parse_special=True)
    want = math.exp(float(_losses(tiny_model, ids).double().mean()))
    assert found["tokens"] == len(ids) - 1
    assert found["original_perplexity"] == pytest.approx(want, rel=1e-4)
    assert found["perplexity"] == pytest.approx(want, rel=1e-4)
    assert 0 <= found["kl_divergence"] < 1e-6
    assert found["agreement"] == 1


def test_a_longer_text_is_read_in_windows(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text(TEXT * 6)
    found = as_json(capsys, "bench", tiny_artifact, "--quality", tmp_path / "t.txt")
    with Artifact.load(tiny_artifact) as engine:
        context = engine.manifest.model.max_model_len
        ids = engine.tokenize(
            TEXT * 6, add_special=engine.manifest.model.add_bos, parse_special=True
        )
    parts = [ids[i : i + context] for i in range(0, len(ids), context)]
    assert len(parts) > 1
    losses = torch.cat([_losses(tiny_model, part) for part in parts if len(part) > 1])
    assert found["tokens"] == len(losses)
    assert found["perplexity"] == pytest.approx(math.exp(float(losses.double().mean())), rel=1e-4)


def test_what_does_not_fit_is_said(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path
) -> None:
    """Rows of 64 have no groups of 128; those of 128 have."""
    output = tmp_path / "a.specc"
    arguments = [
        "compile",
        tiny_model,
        "-o",
        output,
        "--method",
        "none",
        "--quant",
        "q4g128",
        "--isa",
        "avx2",
    ]
    assert cli.main(list(map(str, arguments))) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "13 matrices stay float32, since q4g128 does not fit them" in told
    encodings = [m.encoding for m in Manifest.read(output).packed.values()]
    assert encodings.count("q4g128") == 4
    assert Encoding.parse("q4g128").fits(64, 128)


def test_keep_is_refused_where_nothing_is_quantised(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path
) -> None:
    arguments = [
        "compile",
        tiny_model,
        "-o",
        tmp_path / "a",
        "--method",
        "none",
        "--quant",
        "keep",
        "--json",
    ]
    assert cli.main(list(map(str, arguments))) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "SPECC-E0360"
    assert error["cure"]


@pytest.mark.parametrize("method", ["layerskip", "draft_model"])
def test_a_trimmed_draft_vocabulary_changes_no_text(
    tiny_model: Path, tiny_artifact: Path, tmp_path: Path, method: str
) -> None:
    options: dict[str, object] = {
        "layerskip": {"draft_layers": (0, 1, 3)}, "draft_model": {"drafter": str(tiny_model)},
    }[method]  # fmt: skip
    path = compiled(tiny_model, tmp_path / "t.specc", method, draft_vocab_size=128, **options)
    with Artifact.load(path) as engine, Artifact.load(tiny_artifact) as plain:
        for heat in (0.0, 0.8):
            want = plain.generate(
                PROMPT, max_tokens=40, num_speculative_tokens=0, temperature=heat, ignore_eos=True
            )
            found = engine.generate(
                PROMPT, max_tokens=40, num_speculative_tokens=4, temperature=heat, ignore_eos=True
            )
            assert found.token_ids == want.token_ids
            assert found.stats.draft_tokens > 0
            if (
                method == "draft_model"
            ):  # the target itself: wrong only where it wants a token that is left out
                assert 0 < found.stats.accepted_tokens < found.stats.draft_tokens
