"""Artifacts that stay loaded, and one more model: windows, a head wider than the tokenizer, no EOS."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, PreTrainedModel

from specc.runtime import Artifact
from tests.conftest import artifact_of, compiled
from tests.faults.helpers import METHODS
from tests.ir.importers.tiny_models import tiny

WINDOW = 16
PADDING = 6


@pytest.fixture(scope="session", params=METHODS)
def engine(
    request: pytest.FixtureRequest, tiny_model: Path, shared_folder: Path
) -> Iterator[Artifact]:
    """The tiny Llama, compiled with each method."""
    with Artifact.load(artifact_of(request.param, tiny_model, shared_folder)) as opened:
        yield opened


@pytest.fixture(scope="session")
def ngram(tiny_artifact: Path) -> Iterator[Artifact]:
    with Artifact.load(tiny_artifact) as opened:
        yield opened


@pytest.fixture(scope="session")
def llama(tiny_model: Path) -> PreTrainedModel:
    """The tiny Llama as transformers runs it."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    return model.eval()


@pytest.fixture(scope="session")
def windowed_model(tiny_model: Path, shared_folder: Path) -> Path:
    """Gemma 3 with windows. Rows of its head that no token has would win every argmax."""
    folder = shared_folder / "tiny-gemma3"
    with FileLock(str(folder) + ".lock"):
        if not (folder / "tokenizer.json").exists():
            with Artifact.load(
                compiled(tiny_model, shared_folder / "tiny-ngram.specc", "ngram")
            ) as llama:
                rows = llama.manifest.model.vocab_size + PADDING
            model = tiny(
                "gemma3_text", head_dim=8, sliding_window=WINDOW, num_hidden_layers=3,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                vocab_size=rows, max_position_embeddings=128, tie_word_embeddings=False,
                bos_token_id=None, eos_token_id=None, pad_token_id=None,
            )  # fmt: skip
            head = model.lm_head.weight.data
            head[-PADDING::2] *= 1000
            head[-PADDING + 1 :: 2] = -head[-PADDING::2]  # of two opposite rows, one wins
            model.save_pretrained(folder)
            shutil.copy(tiny_model / "tokenizer.json", folder)
    return folder


@pytest.fixture(scope="session")
def gemma(windowed_model: Path) -> PreTrainedModel:
    """The same as transformers runs it."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        windowed_model, dtype=torch.float32
    )
    model.set_attn_implementation("eager")
    return model.eval()


@pytest.fixture(scope="session")
def windowed(windowed_model: Path, shared_folder: Path) -> Iterator[Artifact]:
    with Artifact.load(compiled(windowed_model, shared_folder / "tiny-gemma3.specc", "ngram")) as a:
        yield a
