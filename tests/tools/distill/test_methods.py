"""Drafters trained for a tiny target, exported and read back, against programs that draft with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import PreTrainedModel

from specc import trained as trained_drafters
from specc.distill.features import read_texts
from specc.distill.run import MAKERS, DistillReport, DistillRequest, distill
from specc.distill.training import Plan
from specc.errors import SpeccError, UsageError
from specc.ir import SpeculativeProgram
from specc.ir.importers.drafters import Ownership, Target, load_drafter
from specc.ir.importers.huggingface import import_model
from specc.ir.importers.source import load_model
from specc.judge import check_request
from specc.passes import pipelines
from specc.passes.pipelines import Shape
from specc.progress import SilentProgress
from specc.request import CompileRequest
from tests.ir.importers.drafters import reference, synthetic
from tests.passes.driver import generate

K, PROMPT, ANSWER = 3, 6, 36
PLAN = Plan(steps=120, rate=3e-3, warmup=10, rows=4, length=84, k=K, floor=1.1, held_texts=100)


@dataclass
class Trained:
    model: PreTrainedModel
    request: DistillRequest
    report: DistillReport

    @property
    def held(self) -> list[tuple[int, ...]]:
        """The texts that were held out."""
        assert self.request.corpus is not None
        return [t.ids for t in read_texts(self.request.corpus, 0, 1 << 20, 96) if t.held]

    def compiled(self, folder: Path | None = None) -> SpeculativeProgram:
        """The program that drafts with what was exported."""
        folder, program = folder or self.request.output, imported()
        drafter = load_drafter(folder, Target.of(program), self.request.method)
        return pipelines.trained(Shape((0, K), 60, 8), drafter.spec.kind, drafter)(program)


@cache
def target() -> PreTrainedModel:
    return synthetic.target()


@cache
def imported() -> SpeculativeProgram:
    return import_model(target(), "tiny")


def write_corpus(path: Path, model: PreTrainedModel, count: int = 120) -> None:
    """What the target says greedily after random prompts."""
    ids = torch.randint(3, 90, (count, PROMPT), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        for _ in range(ANSWER):
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], 1)
    lines = [{"prompt": r[:PROMPT], "ids": r[PROMPT:], "kind": "chat"} for r in ids.tolist()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distill")
    target().save_pretrained(folder / "target")
    write_corpus(folder / "corpus.jsonl", target())
    return folder


def train(folder: Path, method: str) -> Trained:
    request = DistillRequest(
        str(folder / "target"), method, folder / method, folder / f"{method}.work", folder / "corpus.jsonl",
        draft_vocab_size=80, dtype="f32", plan=PLAN,
    )  # fmt: skip
    return Trained(target(), request, distill(request, SilentProgress()))


@pytest.fixture(scope="module")
def made(folder: Path) -> Callable[[str], Trained]:
    """The drafter of a method, trained when first asked for."""
    return cache(partial(train, folder))


@pytest.fixture(params=MAKERS)
def trained(request: pytest.FixtureRequest, made: Callable[[str], Trained]) -> Trained:
    return made(request.param)


@pytest.fixture
def eagle3(made: Callable[[str], Trained]) -> Trained:
    return made("eagle3")


def test_acceptance_is_that_of_the_exported_drafter(trained: Trained) -> None:
    """The same rounds on the same prompts, by the program that is compiled; far from what chance would give."""
    compiled, kept = trained.compiled(), []
    assert len(trained.held) == 4
    for text in trained.held:
        _, rounds = generate(compiled, text[:PROMPT], ANSWER, [K])
        n = PROMPT - 1
        for _, accepted in rounds:
            if n + K < PROMPT + ANSWER:  # (the text ends within the others)
                kept.append(accepted)
            n += accepted + 1
    found = trained.report.acceptance["all"]
    assert sorted(kept) == sorted(found.kept)
    assert found.length > 1.2


def test_a_checkpoint_with_its_head_drafts_the_same(eagle3: Trained, tmp_path: Path) -> None:
    """What other engines read, by eager code on the raw files: tests/ir/importers/drafters/reference.py."""
    whole = replace(eagle3.request, output=tmp_path / "whole", full_head=True)
    distill(
        whole, SilentProgress()
    )  # (goes on from the checkpoint, where nothing is left to train)
    text = list(eagle3.held[0][:PROMPT])
    for output in (eagle3.request.output, whole.output):
        drafted: list[tuple[list[int], list[int]]] = []
        generate(eagle3.compiled(output), text, 8, [K], drafted=drafted)
        assert drafted
        for before, drafts in drafted:
            assert drafts == reference.draft(whole.output, target(), before, K)


def test_a_head_that_is_left_out_is_rows_of_the_targets(eagle3: Trained) -> None:
    with safe_open(eagle3.request.output / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 (not a dict)
        kept = file.get_tensor("t2d").nonzero().squeeze(-1)
    theirs = Target.of(imported())
    drafter = load_drafter(eagle3.request.output, theirs, "eagle3")
    assert drafter.spec.head is Ownership.TARGET
    assert torch.equal(drafter.weights["lm_head.weight"].load(), theirs.head.load()[kept])


def test_a_drafter_that_comes_with_specc_is_for_one_target(
    eagle3: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No --drafter is needed for the target that it was trained for; one of the same sizes is another."""
    shutil.copytree(eagle3.request.output, tmp_path / "drafters" / "tiny")
    monkeypatch.setattr(trained_drafters, "SHIPPED", tmp_path / "drafters")
    mine = load_model(eagle3.request.target)
    found = trained_drafters.load("eagle3", eagle3.request.target, None, mine)
    assert found.provenance["source"] == str(tmp_path / "drafters" / "tiny")
    other = synthetic.target()
    other.lm_head.weight.data[3] *= 1.5
    other.save_pretrained(tmp_path / "other")
    request = CompileRequest(str(tmp_path / "other"), tmp_path / "art", method="eagle3")
    check_request(request)  # (the files' sizes alone could be ours)
    with pytest.raises(UsageError, match="SPECC-E0104"):
        trained_drafters.load("eagle3", request.model, None, load_model(request.model))
    with pytest.raises(UsageError, match="SPECC-E0104"):
        check_request(replace(request, method="medusa"))


def test_a_training_begins_where_another_ended(trained: Trained, tmp_path: Path) -> None:
    """With --init and one step too small to move anything, what is written is what was read."""
    request = replace(
        trained.request, output=tmp_path / "out", work=tmp_path / "work", init=trained.request.output,
        plan=replace(PLAN, steps=1, rate=1e-9, decay=0.0),
    )  # fmt: skip
    report = distill(request, SilentProgress())
    before, after = (
        load_file(folder / "model.safetensors")
        for folder in (trained.request.output, request.output)
    )
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, atol=2e-3, rtol=2e-3)
    assert report.acceptance["all"].length == pytest.approx(
        trained.report.acceptance["all"].length, abs=0.05
    )


def test_a_training_begins_with_a_drafter_of_its_kind(eagle3: Trained, tmp_path: Path) -> None:
    begun = replace(eagle3.request, work=tmp_path, init=eagle3.request.output)
    for change, code in (
        ({"intermediate_size": 24}, "SPECC-E0287"),
        ({"method": "medusa"}, "SPECC-E02"),
    ):
        with pytest.raises(SpeccError, match=code):
            distill(replace(begun, output=tmp_path / "out", **change), SilentProgress())


def test_a_run_goes_on_where_it_was_stopped(eagle3: Trained, tmp_path: Path) -> None:
    half = replace(
        eagle3.request, output=tmp_path / "out", work=tmp_path, plan=replace(PLAN, steps=20, floor=1.0)
    )  # fmt: skip
    assert distill(half, SilentProgress()).state.step == 20
    rest = replace(half, force=True, plan=replace(half.plan, steps=30))
    report = distill(rest, SilentProgress())
    assert report.state.step == 30
    assert {line["step"] for line in report.state.history if "held_out" in line} == {20, 30}
    other = replace(rest, intermediate_size=16)
    with pytest.raises(SpeccError, match="SPECC-E0283"):
        distill(other, SilentProgress())


def test_a_head_that_guesses_nothing_is_not_written(eagle3: Trained, tmp_path: Path) -> None:
    plan = replace(PLAN, steps=1, floor=2.0)
    request = replace(eagle3.request, output=tmp_path / "out", work=tmp_path / "work", plan=plan)
    with pytest.raises(SpeccError, match="SPECC-E0286"):
        distill(request, SilentProgress())
    assert not request.output.exists()


def test_too_little_text_of_the_users(folder: Path, tmp_path: Path) -> None:
    """The cure is not --tokens, which --corpus leaves no meaning."""
    lines = (folder / "corpus.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "corpus.jsonl").write_text("".join(lines[:2]))
    request = DistillRequest(
        str(folder / "target"), "eagle3", tmp_path / "out", tmp_path / "work", tmp_path / "corpus.jsonl",
        draft_vocab_size=80, dtype="f32", plan=replace(PLAN, rows=8, length=512),
    )  # fmt: skip
    with pytest.raises(SpeccError, match=r"SPECC-E0285(.|\n)*--corpus"):
        distill(request, SilentProgress())


@pytest.mark.parametrize(
    "line", ['{"prompt": [1], "ids": [999], "kind": "chat"}', '{"prompt": [1]}', "none", '{"prompt": "12", "ids": []}',
             '{"prompt": [1], "ids": [2], "kind": "\xff"}', "[" * 100000],
)  # fmt: skip
def test_lines_that_are_no_texts_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(line.encode("latin-1") + b"\n")
    with pytest.raises(SpeccError, match=r"SPECC-E0282(.|\n)*corpus\.jsonl:1"):
        list(read_texts(tmp_path / "corpus.jsonl", 0, 100, 96))
