"""Target and drafter of one tokenizer, padded to different sizes; of different tokenizers; and of none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specc.errors import ModelError, SpeccError
from specc.runtime import Artifact
from tests.conftest import compiled, greedy

PROMPT = [7, 21, 40, 7, 21, 99, 150, 7, 21]
NEW = 16
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def padded(model: Path, into: Path, rows: int) -> Path:
    """`model` with `rows` more rows in embedding and head: of noise, as padding is in checkpoints."""
    shutil.copytree(model, into)
    weights = load_file(into / "model.safetensors")
    for name in TABLES:
        noise = 0.02 * torch.randn(rows, weights[name].shape[1])
        weights[name] = torch.cat([weights[name], noise])
    save_file(weights, into / "model.safetensors", {"format": "pt"})
    config = json.loads((into / "config.json").read_text())
    config["vocab_size"] += rows
    (into / "config.json").write_text(json.dumps(config))
    return into


@pytest.mark.parametrize("larger", ["target", "drafter"])
def test_padding_may_differ(larger: str, tiny_model: Path, tmp_path: Path) -> None:
    """The drafter is the target but for its padding, so every draft is right."""
    other = padded(tiny_model, tmp_path / "padded", 8)
    target, drafter = (other, tiny_model) if larger == "target" else (tiny_model, other)
    path = compiled(target, tmp_path / "a.specc", "draft_model", drafter=str(drafter))
    with Artifact.load(path) as engine:
        done = engine.generate(PROMPT, max_tokens=NEW, num_speculative_tokens=4, ignore_eos=True)
    assert list(done.token_ids) == greedy(target, PROMPT, NEW)
    assert done.stats.accepted_tokens == done.stats.draft_tokens > 0


def test_tokens_that_mean_something_else_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.__getitem__)[100:102]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="SPECC-E0233") as error:
        compiled(
            tiny_model, tmp_path / "a.specc", "draft_model", drafter=str(other), backend="reference"
        )
    assert error.value.where == "token id 100"


@pytest.mark.parametrize(("lacking", "code"), [(1, "SPECC-E0233"), (2, "SPECC-E0355")])
def test_without_tokenizers_padding_cannot_be_told(
    lacking: int, code: str, tiny_model: Path, tmp_path: Path
) -> None:
    other = padded(tiny_model, tmp_path / "padded", 8)
    plain = tmp_path / "plain"
    shutil.copytree(tiny_model, plain)
    for folder in (other, plain)[:lacking]:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
    with pytest.raises(SpeccError, match=code):
        compiled(
            plain, tmp_path / "a.specc", "draft_model", drafter=str(other), backend="reference"
        )
