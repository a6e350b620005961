"""Penalties, filters, bias and logprobs (B22, B24, B26): what they change is the target's choice, not who drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from specc.errors import RequestError
from specc.runtime import ADAPTIVE, Artifact
from tests.faults.helpers import PROMPT, drafting, half_wrong, oracle, plain, spoken

COUNT = 20
TOKENS = st.integers(5, 255)
OPTIONS = st.fixed_dictionaries({}, optional={
    "temperature": st.sampled_from([0.0, 0.7, 1.5]),
    "seed": st.integers(0, 3),
    "top_k": st.sampled_from([0, 1, 5]),
    "top_p": st.sampled_from([0.3, 0.9, 1.0]),
    "min_p": st.sampled_from([0.0, 0.1]),
    "repetition_penalty": st.sampled_from([0.8, 1.0, 1.3]),
    "frequency_penalty": st.sampled_from([-1.0, 0.0, 0.5]),
    "presence_penalty": st.sampled_from([-1.0, 0.0, 2.0]),
    "logit_bias": st.dictionaries(TOKENS, st.sampled_from([-100.0, -1.0, 3.0]), max_size=4),
    "banned_token_ids": st.lists(TOKENS, max_size=4),
    "min_tokens": st.integers(0, COUNT),
    "logprobs": st.sampled_from([-1, 0, 3]),
    "stop_token_ids": st.lists(TOKENS, max_size=2),
    "ignore_eos": st.booleans(),
})  # fmt: skip


def told(engine: Artifact, k: int, options: Mapping[str, Any]) -> list[int]:
    with engine.session() as session:
        session.configure(max_tokens=COUNT, num_speculative_tokens=k, **options)
        return spoken(session, PROMPT)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(options=OPTIONS)
def test_any_options_say_the_same_with_every_k(
    engine: Artifact, options: Mapping[str, Any]
) -> None:
    expected = told(engine, 0, options)
    for k in (*drafting(engine), ADAPTIVE):
        assert told(engine, k, options) == expected, (k, options)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(options=OPTIONS, seed=st.integers(0, 99))
def test_and_with_drafts_that_are_right_by_half(
    ngram: Artifact, options: Mapping[str, Any], seed: int
) -> None:
    expected = told(ngram, 0, options)
    with ngram.session() as session:
        session.configure(max_tokens=COUNT, num_speculative_tokens=4, **options)
        session.set_drafter(oracle([*PROMPT, *expected], half_wrong(seed)))
        assert spoken(session, PROMPT) == expected


@pytest.mark.parametrize("seed", range(3))
def test_choosing_outside_of_rounds_changes_nothing(engine: Artifact, seed: int) -> None:
    """A bias of nothing is played in pieces; the round function has the same logits, noise and rule."""
    options = {"temperature": 1.0, "seed": seed, "ignore_eos": True}
    fused = plain(engine, PROMPT, COUNT, **options)
    for k in (0, *drafting(engine)):
        assert tuple(told(engine, k, {**options, "logit_bias": {9: 0.0}})) == fused


def test_one_best_token_is_greedy(engine: Artifact) -> None:
    """B22: what is filtered is the target, not the drafter alone."""
    greedy = list(plain(engine, PROMPT, COUNT))
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        for k in (0, *drafting(engine)):
            options = {**narrow, "temperature": 1.0, "seed": 5, "ignore_eos": True}
            assert told(engine, k, options) == greedy


Change = Callable[[torch.Tensor, Sequence[int]], None]


def _repetition(row: torch.Tensor, text: Sequence[int]) -> None:
    """Keskar et al. 1909.05858, of prompt and output."""
    for token in set(text):
        row[token] = row[token] / 1.4 if row[token] > 0 else row[token] * 1.4


def _openai(row: torch.Tensor, text: Sequence[int]) -> None:
    """platform.openai.com: mu[j] - c[j] * frequency - (c[j] > 0) * presence, c over the output."""
    new = text[len(PROMPT) :]
    for token in set(new):
        row[token] -= new.count(token) * 0.6 + 0.9


def _bias(row: torch.Tensor, text: Sequence[int]) -> None:
    del text
    row[30] += 6.0
    row[31] -= 4.0
    row[[40, 41]] = -torch.inf


PLAIN: dict[str, tuple[dict[str, Any], Change]] = {
    "repetition": ({"repetition_penalty": 1.4}, _repetition),
    "openai": ({"frequency_penalty": 0.6, "presence_penalty": 0.9}, _openai),
    "bias": ({"logit_bias": {30: 6.0, 31: -4.0}, "banned_token_ids": [40, 41]}, _bias),
}


@pytest.mark.parametrize("name", PLAIN)
def test_greedy_is_transformers_with_the_formulas(
    ngram: Artifact, llama: PreTrainedModel, name: str
) -> None:
    options, change = PLAIN[name]
    text = list(PROMPT)
    with torch.no_grad():
        for _ in range(COUNT):
            row = llama(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].clone()
            change(row, text)
            text.append(int(row.argmax()))
    expected = text[len(PROMPT) :]
    assert expected != list(plain(ngram, PROMPT, COUNT))
    for k in (0, 4):
        assert told(ngram, k, {**options, "ignore_eos": True}) == expected


def test_logprobs_are_those_of_transformers(ngram: Artifact, llama: PreTrainedModel) -> None:
    with ngram.session() as session:
        session.configure(max_tokens=8, logprobs=2, num_speculative_tokens=4, ignore_eos=True)
        session.append(PROMPT)
        text = list(PROMPT)
        while (token := session.next()) is not None:
            with torch.no_grad():
                logits = llama(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
            expected = logits.log_softmax(-1)
            best = expected.topk(2)
            found = session.logprobs()
            assert found.token == pytest.approx(float(expected[token]), abs=1e-3)
            assert [i for i, _ in found.top] == best.indices.tolist()
            assert [p for _, p in found.top] == pytest.approx(best.values.tolist(), abs=1e-3)
            text.append(token)


def test_a_prompt_s_logprobs_are_those_of_transformers(
    engine: Artifact, llama: PreTrainedModel
) -> None:
    """Of every token, in one append or several; the text that follows is that of any prompt."""
    text = [(7 * i + i * i) % 251 + 5 for i in range(45)]
    with torch.no_grad():
        expected = llama(input_ids=torch.tensor([text]), use_cache=False).logits[0].log_softmax(-1)
    for parts in ((text,), (text[:1], text[1:20], text[20:])):
        with engine.session() as session:
            session.configure(max_tokens=COUNT, prompt_logprobs=2, ignore_eos=True)
            told = []
            for part in parts:
                session.append(part)
                told += session.prompt_logprobs()
            assert told[0] is None
            for row, token, found in zip(expected, text[1:], told[1:], strict=False):
                assert found is not None
                assert found.token == pytest.approx(float(row[token]), abs=1e-4)
                assert found.rank == int((row > row[token]).sum()) + 1
                best = row.topk(2)
                assert [i for i, _ in found.top] == best.indices.tolist()
                assert [p for _, p in found.top] == pytest.approx(best.values.tolist(), abs=1e-4)
            assert len(told) == len(text)
            assert tuple(session.generate()) == plain(engine, text, COUNT)
            session.rewind(0)
            session.configure(prompt_logprobs=-1)
            session.append(PROMPT)
            with pytest.raises(RequestError, match="SPECC-E0607"):
                session.prompt_logprobs()


def test_what_a_mask_raises_is_raised(ngram: Artifact) -> None:
    def broken(new: list[int], drafts: list[int], rows: list[memoryview[int]]) -> int:
        raise ZeroDivisionError

    with ngram.session() as session:
        session.configure(max_tokens=3)
        session.set_mask(broken)
        session.append(PROMPT)
        with pytest.raises(ZeroDivisionError):
            session.next()
        session.set_mask(None)
        assert len(list(session.iterate())) == 3
        for name, value in (
            ("top_p", 0.0), ("top_k", -2), ("acceptance_rule", "typical"), ("bias", {3: 1.0}),
            ("banned", [1]), ("logit_bias", {1 << 20: 1.0}), ("logit_bias", {1: "x"}),
        ):  # fmt: skip
            with pytest.raises(RequestError, match=r"SPECC-E060[12]"):
                session.set(name, value)
