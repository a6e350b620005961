"""`--method auto`: what is measured, and what comes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from specc.auto import candidates, named
from specc.driver import compile_model
from specc.errors import UsageError
from specc.ir.importers.source import load_model
from specc.progress import SilentProgress
from specc.request import CompileRequest
from tests.ir.importers.drafters import synthetic

BOTH = "medusa with suffix beside it"


@pytest.fixture(scope="module")
def drafter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    return synthetic.medusa(tmp_path_factory.mktemp("heads") / "medusa", model, heads=4)


def request(model: Path, output: Path = Path("out"), **more: Any) -> CompileRequest:
    return replace(CompileRequest(str(model), output, max_model_len=256), **more)


@pytest.mark.parametrize(
    ("more", "first"),
    [
        ({}, f"{BOTH}, its drafter's weights int8"),
        ({"drafter_quant": "none"}, f"{BOTH}, its drafter's weights none"),
        ({"quant": "int8"}, BOTH),
        ({"backend": "tvm"}, BOTH),
        ({"tree": 4, "num_speculative_tokens": (0, 4)}, "medusa, its drafter's weights int8"),
    ],
)  # fmt: skip
def test_a_drafter_is_measured_at_its_best(
    tiny_model: Path, drafter: Path, more: dict[str, Any], first: str
) -> None:
    """With what the other flags let stand beside it; n-gram and suffix have no use for the drafter."""
    found = candidates(
        request(tiny_model, drafter=str(drafter), **more), load_model(str(tiny_model))
    )
    assert named(found[0]) == first
    assert [(each.method, each.drafter) for each in found[1:]] == [
        ("ngram", None),
        ("suffix", None),
    ]


def test_a_drafter_that_cannot_be_compiled_so_is_refused(tiny_model: Path, drafter: Path) -> None:
    asked = request(
        tiny_model, drafter=str(drafter), max_num_seqs=2, tree=4, num_speculative_tokens=(0, 4)
    )
    with pytest.raises(UsageError, match="SPECC-E0104"):
        candidates(asked, load_model(str(tiny_model)))


def test_without_a_drafter(tiny_model: Path) -> None:
    found = candidates(request(tiny_model), load_model(str(tiny_model)))
    assert [each.method for each in found] == ["ngram", "suffix"]


def test_what_was_measured_is_said_and_the_fastest_is_written(
    tiny_model: Path, drafter: Path, tmp_path: Path
) -> None:
    asked = request(
        tiny_model,
        tmp_path / "a.specc",
        method="auto",
        drafter=str(drafter),
        num_speculative_tokens=(0, 2),
    )
    report = compile_model(asked, SilentProgress())
    ran = dict(line.split(" ran at ") for line in report.why if " ran at " in line)
    assert list(ran) == [f"{BOTH}, its drafter's weights int8", "ngram", "suffix"]
    speeds = {name: float(rest.split()[0]) for name, rest in ran.items()}
    manifest = json.loads((tmp_path / "a.specc" / "manifest.json").read_text())
    written = manifest["drafter"]["kind"]
    if max(speeds.values()) < 1.01:
        assert written == "none"
    elif max(speeds.values()) > 1.03:
        fastest = max(speeds.values())
        assert written in {
            name.split()[0] for name, speed in speeds.items() if fastest - speed < 0.011
        }
    assert not list(tmp_path.glob(".auto.*"))
