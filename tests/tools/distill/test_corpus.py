"""A corpus is what the target says, to questions that it made up."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from specc.distill.corpus import SEEDS, Sample, continued, write
from specc.distill.target import Teacher, load_teacher
from specc.ir.importers.source import load_model
from specc.templates import ChatTemplate

ROWS, ANSWER = 7, 24


@pytest.fixture(scope="module")
def teacher(tiny_model: Path) -> Teacher:
    return load_teacher(str(tiny_model), "f32")


@pytest.fixture(scope="module")
def samples(teacher: Teacher) -> list[Sample]:
    return list(islice(write(teacher, seed=3, answer_tokens=ANSWER, rows=ROWS), 12))


def eager(teacher: Teacher, prompt: list[int], most: int) -> list[int]:
    """Greedy decoding by transformers, one text by itself, without a cache."""
    logits = load_model(teacher.imported.provenance["source"]).eager
    assert logits is not None
    ids = list(prompt)
    while len(ids) < len(prompt) + most:
        ids.append(int(logits(torch.tensor(ids))[-1, : teacher.facts.vocab_size].argmax()))
        if ids[-1] in teacher.imported.program.model.eos_token_ids:
            break
    return ids[len(prompt) :]


def test_answers_are_the_targets_own(teacher: Teacher, samples: list[Sample]) -> None:
    """Two of three answers are greedy: those are what the prompt gives by itself, without neighbours."""
    greedy = sum(eager(teacher, s.prompt, ANSWER) == s.ids for s in samples)
    assert 3 <= greedy < len(samples)


def test_rows_end_by_themselves(teacher: Teacher) -> None:
    """Prompts of many lengths, one of them taken out at its end: the others do not notice."""
    prompts = [[5, 9, 11], [7] * 12, [3, 8, 3, 8, 3, 8, 2], [40, 41]]
    alone = [eager(teacher, p, 10) for p in prompts]
    noise = torch.Generator().manual_seed(0)
    assert continued(teacher, prompts, [0.0] * 4, 10, (), noise) == alone
    end = alone[1][4]
    assert continued(teacher, prompts, [0.0] * 4, 10, (end,), noise) == [
        said[: said.index(end) + 1] if end in said else said for said in alone
    ]


def test_a_temperature_draws_from_the_softmax(teacher: Teacher) -> None:
    """4,096 draws of one next token against its probabilities: within 5 standard deviations each."""
    logits = load_model(teacher.imported.provenance["source"]).eager
    assert logits is not None
    wanted = torch.softmax(
        logits(torch.tensor([5, 9, 11]))[-1, : teacher.facts.vocab_size] / 0.7, -1
    )
    noise, count = torch.Generator().manual_seed(1), 4096
    drawn = continued(teacher, [[5, 9, 11]] * count, [0.7] * count, 1, (), noise)
    seen = torch.bincount(torch.tensor(drawn).flatten(), minlength=len(wanted)) / count
    assert ((seen - wanted).abs() <= 5 * (wanted * (1 - wanted) / count).sqrt() + 1e-3).all()


def test_a_prompt_is_one_turn_of_the_template(teacher: Teacher, samples: list[Sample]) -> None:
    files = teacher.imported.tokenizer_files
    template = ChatTemplate.of_files(files, "model")
    tokenizer = Tokenizer.from_str(teacher.imported.tokenizer_json)
    for sample in samples:
        text = tokenizer.decode(sample.prompt, skip_special_tokens=False)
        empty = template.render([{"role": "user", "content": ""}])
        assert text.endswith(template.render([{"role": "user", "content": "x"}])[-8:])
        assert len(text) > len(empty)
        assert sample.kind in SEEDS


def test_a_seed_says_it_all(teacher: Teacher, samples: list[Sample]) -> None:
    again = write(teacher, seed=3, answer_tokens=ANSWER, rows=ROWS)
    assert list(islice(again, 4)) == samples[:4]
    other = write(teacher, seed=4, answer_tokens=ANSWER, rows=ROWS)
    assert list(islice(other, 4)) != samples[:4]
