"""Artifacts of quantised weights, end to end: exact among themselves, near their original, and told so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specc import cli
from specc.backends.reference.executor import ReferenceArtifact
from specc.driver import build_program
from specc.ir.evaluate import evaluate, fresh_state
from specc.progress import SilentProgress
from specc.request import CompileRequest
from specc.runtime import Artifact, Manifest
from tests.conftest import TEXT, compiled
from tests.passes.driver import generate

PROMPT = [7, 21, 40, 7, 21, 99, 150, 7, 21]
FORMS = {"int8": {"q8g32"}, "int4": {"q4mg32", "q8g32"}, "bf16": {"bf16"}}


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code = cli.main([*map(str, arguments), "--json"])
    payload: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 0, payload
    return payload


@pytest.fixture(scope="module", params=FORMS)
def artifact(request: pytest.FixtureRequest, tiny_model: Path, shared_folder: Path) -> Path:
    path = shared_folder / f"tiny-{request.param}.specc"
    return compiled(tiny_model, path, "ngram", quant=request.param)


def test_logits_are_those_of_the_quantised_program(artifact: Path, tiny_model: Path) -> None:
    """Evaluated in plain torch, decoded from the same blocks."""
    quant = artifact.stem.removeprefix("tiny-")
    request = CompileRequest(str(tiny_model), artifact, "ngram", quant=quant, force=True)
    program = build_program(replace(request, num_speculative_tokens=(0, 2, 4)), SilentProgress())
    state, rows = fresh_state(program), []
    with Artifact.load(artifact) as engine, engine.session() as session:
        for begin in (0, 5):
            count = min(5, len(PROMPT) - begin)
            count = 5 if count == 5 else 1
            at = list(range(begin, begin + count))
            tokens = [PROMPT[i] for i in at]
            name = f"verify_{count - 1}"
            view = session.run(name, {"tokens": tokens, "positions": at, "rows": at})
            inputs = [torch.tensor(tokens), torch.tensor(at), torch.tensor(at)]
            want = evaluate(program, name, inputs, state)[0]
            rows.append((torch.tensor(view.tolist()), want))
    for got, want in rows:
        # A sum in another order may round one activation to the next of its 255 steps.
        assert (got - want).abs().max() < 0.02 * want.abs().max()
        assert (got - want).abs().mean() < 1e-3 * want.abs().max()


def test_exact_for_every_k_and_near_the_original(
    capsys: pytest.CaptureFixture[str], artifact: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"token_ids": PROMPT}))
    arguments = [
        "verify",
        artifact,
        "--prompts",
        tmp_path / "p.jsonl",
        "--max-tokens",
        24,
        "--ignore-eos",
    ]
    found = as_json(capsys, *arguments)
    assert (found["exact"], found["ties"], found["mismatches"]) == (1, 0, 0)
    quant = artifact.stem.removeprefix("tiny-")
    # (Caches follow what --kv-cache-dtype auto documents: halves where weights have 8 or fewer bits.)
    caches = set() if quant == "bf16" else {"f16 caches"}
    assert set(found["approximations"]) == FORMS[quant] | caches
    told = found["agreement_with_original"]
    assert told["tokens"] == 24
    assert told["agreed"] == round(24 * told["share"])
    assert cli.main(list(map(str, arguments))) == 0
    printed = capsys.readouterr().out
    assert f"{told['agreed']} of 24 tokens" in printed
    assert "1 exact" in printed


@pytest.mark.parametrize("quant", ["int8", "q4g32"])
def test_the_reference_backend_evaluates_the_same_program(
    tiny_model: Path, tmp_path: Path, quant: str
) -> None:
    path = compiled(tiny_model, tmp_path / "r.specc", "none", quant=quant, backend="reference")
    request = CompileRequest(str(tiny_model), path, "none", quant=quant)
    program = build_program(request, SilentProgress())
    want = generate(program, PROMPT, 12, [0])[0]
    found = ReferenceArtifact.load(path).generate(PROMPT, max_tokens=12, ignore_eos=True)
    assert list(found) == want


def test_inspect_tells_the_bits(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    """By the formats' own definitions: a block of 32 has 16 bits of scale, and as many of minimum."""
    weights = as_json(capsys, "inspect", artifact)["weights"]
    bits = {"q8g32": 8.5, "q4mg32": 5.0, "bf16": 16.0}
    quant = artifact.stem.removeprefix("tiny-")
    assert set(weights["by_encoding"]) - {"f32"} == FORMS[quant]
    for name in FORMS[quant]:
        entry = weights["by_encoding"][name]
        # Rows are filled up to 16 and scales to a cache line, which shows in matrices as small as these.
        assert bits[name] <= entry["bits_per_weight"] < 1.2 * bits[name]
        assert entry["bits_per_weight"] == 8 * entry["bytes"] / entry["numbers"]
    stored = sum(entry["bytes"] for entry in weights["by_dtype"].values())
    assert weights["bits_per_weight"] < 32
    assert stored <= weights["bytes"]
    assert cli.main(["inspect", str(artifact)]) == 0
    assert "bits a weight" in capsys.readouterr().out


def test_quality_of_quantised_weights(
    capsys: pytest.CaptureFixture[str], artifact: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text(TEXT)
    found = as_json(capsys, "bench", artifact, "--quality", tmp_path / "t.txt")
    most = {"bf16": 1e-2, "int8": 1e-2}.get(artifact.stem.removeprefix("tiny-"), 1.0)
    assert 1e-7 < found["kl_divergence"] < most
    assert 0 < found["agreement"] <= 1


def test_a_drafter_in_fewer_bits_than_its_target(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path
) -> None:
    """The text is the float32 target's; the drafter, the same model in fewer bits, is nearly always right."""
    plain = compiled(tiny_model, tmp_path / "plain.specc", "none")
    drafted = compiled(
        tiny_model, tmp_path / "draft.specc", "draft_model", drafter=str(tiny_model), drafter_quant="int8",
    )  # fmt: skip
    want, found = (
        Artifact.load(path).generate(
            PROMPT, max_tokens=24, ignore_eos=True, num_speculative_tokens=k
        )
        for path, k in ((plain, 0), (drafted, 4))
    )
    assert found.token_ids == want.token_ids
    assert found.stats.accepted_tokens > found.stats.rounds
    told = Manifest.read(drafted)
    assert (told.reduced, told.approximations, told.drafter_reduced) == ((), (), ("q8g32",))
    before, after = (as_json(capsys, "inspect", path)["weights"] for path in (plain, drafted))
    assert after["by_encoding"]["f32"]["numbers"] == before["by_encoding"]["f32"]["numbers"]
    assert after["by_encoding"]["q8g32"]["numbers"] > 0
