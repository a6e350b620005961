"""What the model says of a prompt's own tokens, as evaluation harnesses ask for it, is what transformers says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from specc.runtime import Artifact
from specc.serve.slots import BatchSlots
from tests.conftest import BATCH_LENGTH, BATCH_TEXTS
from tests.tools.serve.conftest import Server
from tests.tools.serve.test_http import PROMPT, REPORT, code_of, ids_of
from tests.tools.serve.test_scheduler import Stage

TEXTS = [[(11 * i + i * i) % 251 + 5 for i in range(length)] for length in (1, 4, 70)]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


def laws(model: Any, ids: list[int]) -> torch.Tensor:
    """[tokens, vocabulary]: row i is what may follow the first i + 1 ids."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return torch.as_tensor(logits.log_softmax(-1))


def complete(server: Server, prompt: Any, **body: Any) -> Any:
    asked = {"max_tokens": 0, "temperature": 0, "extra_body": REPORT, **body}
    return server.client().completions.create(model=server.model, prompt=prompt, **asked)


@pytest.mark.parametrize("count", [0, 1, 9])
def test_echoed_tokens_have_logprobs(
    server: Server, artifact: Artifact, model: Any, count: int
) -> None:
    """Token ids in, as lm-evaluation-harness sends them with max_tokens 0 or 1."""
    answer = complete(server, TEXTS, echo=True, logprobs=2, max_tokens=count)
    assert answer.usage.prompt_tokens == sum(map(len, TEXTS))
    assert answer.usage.completion_tokens == count * len(TEXTS)
    for choice, prompt in zip(answer.choices, TEXTS, strict=True):
        ids = prompt + answer.specc["choices"][choice.index]["token_ids"]
        assert len(ids) == len(prompt) + count
        assert choice.text == artifact.detokenize(prompt) + artifact.detokenize(ids[len(prompt) :])
        assert choice.finish_reason == "length"
        told = choice.logprobs
        texts = [artifact.detokenize([token], skip_special=False) for token in ids]
        assert told.tokens == texts
        assert told.text_offset == [len("".join(texts[:place])) for place in range(len(ids))]
        assert told.token_logprobs[0] is told.top_logprobs[0] is None
        expected = laws(model, ids)
        for place, token in enumerate(ids[1:], 1):
            law = expected[place - 1]
            assert told.token_logprobs[place] == pytest.approx(float(law[token]), abs=1e-4)
            best: dict[
                str, float
            ] = {}  # of tokens that share a text, as pieces of characters do, the best
            for other in (*map(int, law.topk(2).indices), token):
                best.setdefault(artifact.detokenize([other], skip_special=False), float(law[other]))
            assert told.top_logprobs[place] == pytest.approx(best, abs=1e-4)


def test_choices_and_streams_echo_the_same(server: Server) -> None:
    """What is said has the logprobs that it has without an echo; a stream's first piece is the prompt."""
    asked = {"max_tokens": 7, "logprobs": 1, "temperature": 1.0, "seed": 5}
    bare = complete(server, PROMPT, n=2, **asked).choices
    whole = complete(server, PROMPT, n=2, echo=True, **asked).choices
    streamed: list[dict[str, list[Any]]] = [{}, {}]
    texts = ["", ""]
    for piece in complete(server, PROMPT, n=2, echo=True, stream=True, **asked):
        for choice in piece.choices:
            if not texts[choice.index]:
                assert choice.text == PROMPT
            texts[choice.index] += choice.text
            for name, values in dict(choice.logprobs or {}).items():
                streamed[choice.index].setdefault(name, []).extend(values)
    for place in range(2):
        assert whole[place].text == texts[place] == PROMPT + bare[place].text
        assert dict(whole[place].logprobs) == streamed[place]
        assert whole[place].logprobs.tokens[-7:] == bare[place].logprobs.tokens
        assert whole[place].logprobs.token_logprobs[-7:] == bare[place].logprobs.token_logprobs


def test_vllms_field(server: Server, artifact: Artifact, model: Any) -> None:
    """By token id, with ranks, beside logprobs of another number; for chats as well."""
    extra = {**REPORT, "prompt_logprobs": 3}
    (choice,) = complete(server, PROMPT, max_tokens=2, logprobs=0, extra_body=extra).choices
    assert len(choice.logprobs.tokens) == 2
    ids = ids_of(artifact, PROMPT)
    first, *told = choice.prompt_logprobs
    assert first is None
    for law, token, found in zip(laws(model, ids), ids[1:], told, strict=False):
        rank = int((law > law[token]).sum()) + 1
        expected = {int(t): place + 1 for place, t in enumerate(law.topk(3).indices)} | {
            token: rank
        }
        assert {int(t): each["rank"] for t, each in found.items()} == expected
        for other, each in found.items():
            assert each["logprob"] == pytest.approx(float(law[int(other)]), abs=1e-4)
            assert each["decoded_token"] == artifact.detokenize([int(other)], skip_special=False)
    assert len(told) == len(ids) - 1

    client: Any = server.client()
    messages = [{"role": "user", "content": "fox"}]
    asked = {"model": server.model, "messages": messages, "max_tokens": 1}
    chat = client.chat.completions.create(**asked, n=2, extra_body={"prompt_logprobs": 0})
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens
    assert [len(each) for each in chat.prompt_logprobs[1:]] == [1] * (chat.usage.prompt_tokens - 1)
    with pytest.raises(openai.BadRequestError) as refused:
        complete(server, PROMPT, stream=True, extra_body=extra)
    assert code_of(refused.value) == "SPECC-E0702"


def test_texts_of_a_batch(tiny_batch: Path, model: Any) -> None:
    """Those that are scored and those that are made, side by side."""
    with Artifact.load(tiny_batch) as batched:
        stage = Stage(batched, BATCH_TEXTS, 50, BatchSlots)
        prompts = [tuple(text[: BATCH_LENGTH - 8]) for text in TEXTS] * 2
        scored = [
            stage.job(prompt=p, max_tokens=i % 3, options={"prompt_logprobs": 0})
            for i, p in enumerate(prompts)
        ]
        made = [stage.job(seed=i, temperature=1.0) for i in range(3)]
        stage.play(*scored[:2], *made, *scored[2:])
        stage.scheduler.stop()
        for job, prompt in zip(scored, prompts, strict=True):
            (found,) = (e.prompt_logprobs for j, e in stage.told if j is job and e.prompt_logprobs)
            assert found[0] is None
            assert [each.token for each in found[1:] if each is not None] == pytest.approx(
                [float(law[t]) for law, t in zip(laws(model, list(prompt)), prompt[1:], strict=False)],
                abs=1e-4,
            )  # fmt: skip
            assert len(found) == len(prompt)
        for seed, job in enumerate(made):
            options = {"temperature": 1.0, "seed": seed, "max_tokens": 30, "ignore_eos": True}
            assert tuple(job.token_ids) == batched.generate(job.ask.prompt_ids, **options).token_ids
