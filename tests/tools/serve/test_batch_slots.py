"""Texts of a server in one pass of the model: they join and leave between passes, and say what each says alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specc.errors import RequestError
from specc.runtime import Artifact
from specc.serve.slots import BatchSlots
from tests.conftest import BATCH_TEXTS
from tests.tools.serve.conftest import running
from tests.tools.serve.test_http import ask
from tests.tools.serve.test_scheduler import PROMPT, Stage


@pytest.fixture(scope="module")
def batched(tiny_batch: Path) -> Iterator[Artifact]:
    with Artifact.load(tiny_batch) as opened:
        yield opened


@pytest.fixture
def stage(batched: Artifact) -> Iterator[Stage]:
    made = Stage(batched, BATCH_TEXTS, 50, BatchSlots)
    yield made
    made.scheduler.stop()


def test_texts_join_and_leave(stage: Stage, batched: Artifact) -> None:
    """More texts than fit, of other lengths and options; prompts are fed in chunks while others go on."""
    asked: list[dict[str, Any]] = [
        {"prompt": PROMPT * (1 + i % 3), "max_tokens": 5 + 4 * i, "seed": i, "temperature": (i % 3) / 2}
        for i in range(2 * BATCH_TEXTS)
    ]  # fmt: skip
    jobs = [stage.job(**each) for each in asked]
    stage.play(*jobs)
    for job, each in zip(jobs, asked, strict=True):
        options = {k: v for k, v in each.items() if k != "prompt"}
        alone = batched.generate(each["prompt"], ignore_eos=True, **options)
        assert tuple(job.token_ids) == alone.token_ids
        assert job.reason == "length"
    passes = stage.slots.passes
    assert passes.texts > 2 * passes.passes
    assert passes.rows >= passes.texts
    assert stage.count("generation_tokens_total") == sum(each["max_tokens"] for each in asked)


def test_what_fails_or_goes_does_not_touch_the_others(stage: Stage, batched: Artifact) -> None:
    class Broken:
        def mask(self) -> Any:
            def refuse(new: list[int], drafts: list[int], rows: list[memoryview[int]]) -> int:
                raise RequestError("SPECC-E0717", "no token may follow")

            return refuse

    bad = stage.job(grammar=Broken())
    left = stage.job(lambda job, event: stage.scheduler.cancel([job]))
    good = stage.job(seed=4, temperature=1.0)
    stage.play(bad, left, good)
    assert (bad.reason, left.reason, good.reason) == ("error", "cancelled", "length")
    alone = batched.generate(PROMPT, max_tokens=30, ignore_eos=True, seed=4, temperature=1.0)
    assert tuple(good.token_ids) == alone.token_ids


def test_a_server_of_a_batch(tiny_batch: Path, batched: Artifact) -> None:
    """Over HTTP: as many slots as the artifact has room for, at most; /metrics tells of passes."""
    with running(tiny_batch, "--max-sessions", 16) as server:
        assert server.slots == BATCH_TEXTS
        client = server.client()

        def text(seed: int) -> list[int]:
            answer: Any = client.completions.create(
                model=server.model, prompt=list(PROMPT), max_tokens=40, temperature=1.0, seed=seed,
                extra_body={"specc": True, "ignore_eos": True},
            )  # fmt: skip
            return answer.specc["choices"][0]["token_ids"]

        with ThreadPoolExecutor(BATCH_TEXTS) as clients:
            made = list(clients.map(text, range(2 * BATCH_TEXTS)))
        page = ask(server, "GET", "/metrics")[1]
    for seed, tokens in enumerate(made):
        alone = batched.generate(PROMPT, max_tokens=40, temperature=1.0, seed=seed, ignore_eos=True)
        assert tuple(tokens) == alone.token_ids
    found = {n: float(v) for n, v in re.findall(r"^specc:(\w+){.*} (\S+)$", page, re.M)}
    assert found["passes"] > 0
    assert found["pass_rows"] >= found["pass_texts"] >= found["passes"]
