"""The advisor: what was measured wins, by its speed alone; the rest is ordered by questions with reasons."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from specc.advice import ASSUMED, SCORES, Measured, Situation, advise, choice, predicted
from specc.cli import main
from specc.engines import open_compiled
from specc.measurement import Measurements, Run
from specc.method_table import METHODS, running_on
from specc.runtime import Stats

NOTHING = Stats(0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0.0, (), ())
VICUNA = "lmsys/vicuna-7b-v1.3"


def test_every_method_is_judged() -> None:
    assert set(SCORES) == set(METHODS)
    assert set(ASSUMED) == set(METHODS) - {"none"}


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        (Situation("my/model"), "suffix"),  # nothing has to be found for it
        (Situation(VICUNA), "eagle"),  # a public drafter, short texts, one at a time
        (Situation("my/model", batch=64), "none"),
        (Situation("my/model", device="ascend:Ascend910B3"), "suffix"),
    ],
)
def test_without_measurements_questions_decide(situation: Situation, expected: str) -> None:
    options = advise(situation)
    assert choice(options).method == expected
    assert all(o.basis == "assumed" and o.tokens_per_s is None for o in options)
    if situation.device != "cpu":
        assert {o.method for o in options} <= set(running_on("onnx"))


def test_a_drafter_that_is_public_is_named() -> None:
    (eagle,) = [o for o in advise(Situation(VICUNA)) if o.method == "eagle"]
    assert "--drafter yuhuili/EAGLE-Vicuna-7B-v1.3" in eagle.how
    (mine,) = [o for o in advise(Situation("my/model")) if o.method == "eagle3"]
    assert any("specc distill" in reason for reason in mine.why)


def test_many_texts_leave_less_to_gain() -> None:
    """Rows of a verify stop being free where the texts alone fill the machine."""
    gains = [predicted("eagle3", batch) for batch in (1, 4, 8, 64)]
    assert gains[:3] == sorted(gains[:3], reverse=True)
    assert gains[0] > 1.5
    assert gains[-1] < 1.0


def _played(artifact: Path, plain: float, adaptive: float) -> Measured:
    """An artifact with made-up speeds: what the advisor does with them is what is tested."""
    with open_compiled(artifact) as engine:
        manifest = engine.manifest
    found = Measurements()
    for repeat, (arm, speed) in itertools.product(
        range(3), (("plain", plain), ("adaptive", adaptive))
    ):
        stats = replace(NOTHING, new_tokens=100, decode_s=100 / speed, rounds=100)
        found.runs.append(Run(arm, "chat", repeat, stats))
    return Measured(str(artifact), manifest, 1000, found)


@pytest.mark.parametrize(
    ("adaptive", "expected"), [(150.0, "ngram"), (100.5, "none"), (60.0, "none")]
)
def test_a_measurement_is_never_contradicted(
    tiny_artifact: Path, adaptive: float, expected: str
) -> None:
    """Even for a model whose drafters are public and whose scores are better."""
    options = advise(
        Situation(VICUNA, price_per_hour=3.6), [_played(tiny_artifact, 100.0, adaptive)]
    )
    assert choice(options).method == expected
    by_method = {o.method: o for o in options}
    assert by_method["ngram"].pays == (expected == "ngram")
    assert by_method["ngram"].speed_up == pytest.approx(adaptive / 100)
    # 3.6 an hour are 0.001 a second.
    assert by_method["none"].cost_per_million == pytest.approx(0.001 / 100 * 1e6)
    assert [o.basis for o in options] == sorted((o.basis for o in options), reverse=True)


def test_the_verb(
    tiny_model: Path, tiny_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "advise",
        str(tiny_model),
        "--artifact",
        str(tiny_artifact),
        "--max-tokens",
        "8",
        "--repeats",
        "1",
    ]
    assert main([*arguments, "--price-per-hour", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    first, second = told["options"][:2]
    assert {first["method"], second["method"]} == {"none", "ngram"}
    assert told["recommended"] == first["method"]
    assert first["basis"] == "measured"
    assert first["memory_bytes"] > 0
    fastest = max(told["options"], key=lambda o: o["tokens_per_s"] or 0.0)
    assert fastest["tokens_per_s"] <= 1.03 * first["tokens_per_s"]
    assert main([*arguments, "--processor-time", "--threads", "1"]) == 0
    assert "measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--batch", "0"], "SPECC-E0103"), (["--device", "tpu"], "SPECC-E0113"), (["--prompts", "x"], "SPECC-E0104"),
        (["--processor-time"], "SPECC-E0104"),
        (["--artifact", "nowhere"], "SPECC-E0"), (["--device", "ascend:910"], "SPECC-E0103"),
    ],
)  # fmt: skip
def test_refuses(
    flags: list[str], code: str, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", str(tiny_model), *flags]) in (1, 2)
    assert code in capsys.readouterr().err
