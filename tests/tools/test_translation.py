"""`--translate-tokens`: a drafter whose tokens are others than the target's."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specc.errors import ModelError
from specc.ir.importers.source import ImportedModel, load_model
from specc.runtime import Artifact
from specc.translation import translation
from tests.conftest import compiled, greedy

PROMPT = [7, 21, 40, 7, 21, 99, 150, 7, 21]
NEW = 16
TABLES = ("model.embed_tokens.weight", "lm_head.weight")
SPECIAL = 5


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> ImportedModel:
    return load_model(str(tiny_model))


def words_of(model: ImportedModel) -> dict[str, int]:
    assert model.tokenizer_json is not None
    found: dict[str, int] = json.loads(model.tokenizer_json)["model"]["vocab"]
    return found


def with_words(model: ImportedModel, words: dict[str, int]) -> ImportedModel:
    """`model` with other tokens, which no merges lead to."""
    document: dict[str, Any] = json.loads(model.tokenizer_json or "")
    document["model"] |= {"vocab": words, "merges": []}
    return replace(model, tokenizer_json=json.dumps(document))


def shuffled(count: int) -> list[int]:
    """Where each token goes; special ones stay."""
    order = list(range(SPECIAL, count))
    random.Random(1).shuffle(order)
    return [*range(SPECIAL), *order]


def test_the_target_in_another_order_is_always_right(tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    document = json.loads((other / "tokenizer.json").read_text())
    words: dict[str, int] = document["model"]["vocab"]
    order = shuffled(len(words))
    document["model"]["vocab"] = {t: order[i] for t, i in words.items()}
    (other / "tokenizer.json").write_text(json.dumps(document))
    weights = load_file(other / "model.safetensors")
    for name in TABLES:
        moved = torch.empty_like(weights[name])
        moved[order] = weights[name]
        weights[name] = moved
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    path = compiled(
        tiny_model, tmp_path / "a.specc", "draft_model", drafter=str(other), translate_tokens=True,
        num_speculative_tokens=(0, 4),
    )  # fmt: skip
    with Artifact.load(path) as engine:
        done = engine.generate(PROMPT, max_tokens=NEW, num_speculative_tokens=4, ignore_eos=True)
    assert list(done.token_ids) == greedy(tiny_model, PROMPT, NEW)
    assert done.stats.accepted_tokens == done.stats.draft_tokens > 0


def test_what_is_lost_is_never_said_and_read_as_its_last_piece(tiny: ImportedModel) -> None:
    """Without merges a word's last piece is its last byte."""
    words = words_of(tiny)
    order = shuffled(len(words))
    word, lost = max(words.items(), key=lambda pair: (pair[1] >= SPECIAL, len(pair[0])))
    other = with_words(tiny, {t if t != word else "@@@": order[i] for t, i in words.items()})
    found = translation(tiny, other)
    rest = [i for i in range(len(order)) if i != lost]
    assert (
        [found.said[i] for i in rest] == [found.read[i] for i in rest] == [order[i] for i in rest]
    )
    assert (found.said[lost], found.read[lost]) == (-1, order[words[word[-1]]])


def test_ends_and_beginnings_are_each_others_whatever_they_are_called(tiny: ImportedModel) -> None:
    renamed = (tiny.tokenizer_json or "").replace("<|end|>", "</s>").replace("<|bos|>", "<s>")
    found = translation(tiny, replace(tiny, tokenizer_json=renamed))
    model = tiny.program.model
    for token in (*model.eos_token_ids, model.bos_token_id):
        assert token is not None
        assert found.said[token] == found.read[token] == token


def test_refuses(tiny: ImportedModel) -> None:
    strange = {t if i < SPECIAL else f"@@{i}": i for t, i in words_of(tiny).items()}
    for other, code in (
        (replace(tiny, tokenizer_json=None), "SPECC-E0233"),
        (tiny, "SPECC-E0240"),
        (with_words(tiny, strange), "SPECC-E0240"),
    ):
        with pytest.raises(ModelError, match=code):
            translation(tiny, other)
