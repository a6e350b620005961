"""What a request may say of how tokens are chosen: it is done, exactly, whoever drafts."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import ValidationError

from specc.errors import RequestError
from specc.runtime import Artifact
from specc.serve.bodies import ChatBody, CompletionBody, parse
from tests.tools.serve.conftest import Server
from tests.tools.serve.test_http import PROMPT, REPORT, code_of, ids_of

COUNT = 24
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["fox", "dog"]}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def complete(server: Server, k: int = 4, **body: Any) -> Any:
    asked = {"max_tokens": COUNT, "temperature": 0, **body}
    extra = {**asked.pop("extra_body", {}), "num_speculative_tokens": k, "specc": True}
    return server.client().completions.create(
        model=server.model, prompt=PROMPT, extra_body=extra, **asked
    )


def alone(artifact: Artifact, **options: Any) -> list[int]:
    """What a session says to these options, without drafts."""
    with artifact.session() as session:
        session.configure(max_tokens=COUNT, num_speculative_tokens=0, ignore_eos=True, **options)
        session.append(ids_of(artifact, PROMPT))
        return list(session.iterate())


OPTIONS: list[dict[str, Any]] = [
    {"top_p": 0.5, "temperature": 1.0, "seed": 3},
    {"top_k": 5, "temperature": 1.0, "seed": 4},
    {"min_p": 0.2, "temperature": 1.0, "seed": 5},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -1.0},
    {"repetition_penalty": 1.3},
    {"logit_bias": {40: 4.0, 41: -100.0}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: next(iter(o)))
def test_options_are_the_engines(
    server: Server, artifact: Artifact, options: dict[str, Any]
) -> None:
    asked = dict(options)
    if "logit_bias" in asked:
        asked["logit_bias"] = {str(token): bias for token, bias in asked["logit_bias"].items()}
    of_openai = {
        "top_p",
        "temperature",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
    }
    extra = {name: asked.pop(name) for name in list(asked) if name not in of_openai}
    expected = alone(artifact, **options)
    for k in (0, 4, -1):
        answer = complete(server, k, extra_body={**REPORT, **extra}, **asked)
        assert answer.specc["choices"][0]["token_ids"] == expected, k
    # None of them is without effect here.
    assert expected != alone(
        artifact, temperature=options.get("temperature", 0.0), seed=options.get("seed", 0)
    )


def test_words_that_must_not_be_said(server: Server, artifact: Artifact) -> None:
    words = {token: artifact.detokenize([token]) for token in alone(artifact)}
    token, word = next(
        (t, w) for t, w in words.items() if artifact.tokenize(w, add_special=False) == [t]
    )
    answer = complete(server, extra_body={**REPORT, "bad_words": [word]})
    assert answer.specc["choices"][0]["token_ids"] == alone(artifact, banned_token_ids=[token])


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_tokens_that_alone_may_be_said(
    server: Server, artifact: Artifact, temperature: float
) -> None:
    """Without temperature each is the likeliest of them in the model's own logits after the text so far."""
    allowed = [40, 77, 201, 300]
    told = [
        complete(
            server, k, temperature=temperature, seed=8, extra_body={**REPORT, "allowed_token_ids": allowed}
        ).specc["choices"][0]["token_ids"]
        for k in (0, 4, -1)
    ]  # fmt: skip
    assert told[0] == told[1] == told[2]
    assert len(set(told[0])) > 1
    assert set(told[0]) <= set(allowed)
    if temperature == 0:
        text = ids_of(artifact, PROMPT)
        with artifact.session() as session:
            for token in told[0]:
                at = list(range(len(text)))
                session.run("prefill", {"tokens": text, "positions": at, "rows": at})
                last = {"tokens": text[-1:], "positions": at[-1:], "rows": at[-1:]}
                row = session.run("verify_0", last)
                assert token == max(allowed, key=lambda v: row[0, v])
                text.append(token)


def test_logprobs_of_completions(server: Server, artifact: Artifact) -> None:
    plain = complete(server, 0, logprobs=2, extra_body=REPORT).choices[0]
    drafted = complete(server, 4, logprobs=2, extra_body=REPORT).choices[0]
    assert drafted.logprobs == plain.logprobs
    tokens = alone(artifact)
    assert plain.logprobs.tokens == [artifact.detokenize([t], skip_special=False) for t in tokens]
    assert all(p <= 0 for p in plain.logprobs.token_logprobs)
    for best, said in zip(plain.logprobs.top_logprobs, plain.logprobs.token_logprobs, strict=True):
        assert max(best.values()) == said  # greedy
        assert sum(map(math.exp, best.values())) < 1 + 1e-6


def test_logprobs_of_chat_whole_and_streamed(server: Server) -> None:
    asked: dict[str, Any] = {
        "model": server.model, "messages": [{"role": "user", "content": "naïve 🎉"}], "max_tokens": 12,
        "temperature": 0, "logprobs": True, "top_logprobs": 3,
    }  # fmt: skip
    client = server.client()
    whole = client.chat.completions.create(**asked).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    assert len(whole.content) == 12
    streamed = []
    for piece in client.chat.completions.create(stream=True, **asked):
        for choice in piece.choices:
            if choice.logprobs is not None and choice.logprobs.content:
                streamed += choice.logprobs.content
    assert streamed == whole.content
    for entry in whole.content:
        assert [t.logprob for t in entry.top_logprobs] == sorted(
            (t.logprob for t in entry.top_logprobs), reverse=True
        )
        assert entry.token == entry.top_logprobs[0].token


@pytest.mark.parametrize("k", [0, 4, -1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_b28_a_schema_is_followed_whoever_drafts(
    server: Server, k: int, temperature: float
) -> None:
    """The model is random, so nothing but the grammar makes this JSON."""
    form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}
    for extra in (
        {"response_format": form},
        {"guided_json": SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
    ):
        answer = complete(
            server, k, max_tokens=120, temperature=temperature, seed=1, extra_body=extra
        )
        assert answer.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(answer.choices[0].text), SCHEMA)


def test_another_engine_of_grammars(start: Any) -> None:
    with start("--grammar-backend", "xgrammar", torch=True) as server:
        for k in (0, 4):
            extra = {"guided_json": SCHEMA}
            answer = complete(server, k, max_tokens=120, temperature=1.0, seed=1, extra_body=extra)
            jsonschema.validate(json.loads(answer.choices[0].text), SCHEMA)
        with pytest.raises(openai.BadRequestError, match="uniqueItems") as refused:
            complete(server, extra_body={"guided_json": {"type": "array", "uniqueItems": True}})
        assert code_of(refused.value) == "SPECC-E0717"


@pytest.mark.parametrize(
    ("extra", "right"),
    [
        ({"guided_regex": "[ab]{3}c"}, lambda text: len(text) == 4 and set(text[:3]) <= {"a", "b"}),
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}.__contains__),
        ({"guided_grammar": 'root ::= "x" ("y" | "z")'}, {"xy", "xz"}.__contains__),
    ],
)
def test_other_grammars(server: Server, extra: dict[str, Any], right: Any) -> None:
    texts = {complete(server, k, extra_body=extra).choices[0].text for k in (0, 4)}
    assert len(texts) == 1
    assert right(texts.pop())


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"top_p": 0}, "E0702"), ({"top_p": 1.1}, "E0702"), ({"presence_penalty": 3}, "E0702"),
        ({"logit_bias": {"x": 1}}, "E0702"), ({"logit_bias": {"99999": 1}}, "E0602"),
        ({"logprobs": 21}, "E0702"), ({"prompt_logprobs": 21}, "E0702"),
        ({"guided_regex": "[a"}, "E0717"), ({"guided_regex": "a", "guided_choice": ["b"]}, "E0702"),
        ({"response_format": {"type": "json_schema"}}, "E0702"), ({"guided_json": {"type": 5}}, "E0717"),
        ({"bad_words": ["The quick brown fox"]}, "E0703"), ({"allowed_token_ids": [99999]}, "E0602"),
        ({"allowed_token_ids": []}, "E0702"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(server: Server, body: dict[str, Any], code: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(server, extra_body=body)
    assert code_of(refused.value) == f"SPECC-{code}"


def said_of(content: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}]}


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    ("body", "where", "expected"),
    [
        ({"prompt": [-1]}, "prompt.0", "greater than or equal to 0"),
        ({"prompt": [[5], [-1]]}, "prompt.1.0", "greater than or equal to 0"),
        ({"prompt": [1, "a"]}, "prompt.1", "a valid integer"), ({"prompt": ["a", 1]}, "prompt.1", "a valid string"),
        ({"prompt": 5}, "prompt", "a valid string or a valid list"),
        ({"prompt": "x", "stop": ["a"] * 17}, "stop", "at most 16 items"),
        ({"prompt": "x", "stop": [""]}, "stop.0", "at least 1 character"),
        ({"prompt": "x", "stop": ""}, "stop", "at least 1 character"),
        ({"prompt": "x", "guided_json": True}, "guided_json", "a valid string or a valid dictionary"),
        ({"prompt": "x", "structured_outputs": {"json": [1]}}, "structured_outputs.json", "or a valid dictionary"),
        ({"prompt": "x", "logit_bias": {"0001": 1}}, "logit_bias.0001", "match pattern"),
        ({"stop": "x"}, "prompt", "required"),
        (said_of([IMAGE]), "messages.0.content.0.type", "'text'"),
        (said_of([{}]), "messages.0.content.0.type", "required"),
        (said_of([{"type": "text", "text": 1}]), "messages.0.content.0.text", "a valid string"),
    ],
)  # fmt: skip
def test_a_complaint_is_of_what_was_meant(body: dict[str, Any], where: str, expected: str) -> None:
    with pytest.raises(RequestError, match="SPECC-E0702") as refused:
        parse(ChatBody if "messages" in body else CompletionBody, json.dumps(body).encode())
    assert refused.value.where == where
    assert expected.lower() in (refused.value.expected or "").lower()


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({**said_of("x"), "top-p": 1}, "top-p"), ({**said_of("x"), "": 1}, '""'),
        ({"messages": [{"role": "user", "foo-bar": 1}]}, "messages.0.foo-bar"),
        (said_of([{"type": "text", "text": "x", "a b": 1}]), "messages.0.content.0.a b"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named_however_it_is_written(body: dict[str, Any], where: str) -> None:
    with pytest.raises(RequestError, match="SPECC-E0703") as refused:
        parse(ChatBody, json.dumps(body).encode())
    assert refused.value.where == where
    assert where in refused.value.cure


def test_what_is_said_twice_is_refused() -> None:
    body = b'{"prompt": "x", "logit_bias": {"1": 5, "2": 0, "1": -5}}'
    with pytest.raises(RequestError, match="SPECC-E0702") as refused:
        parse(CompletionBody, body)
    assert "'1' more than once" in (refused.value.found or "")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionBody, {"prompt": [None] * 1000}),
        (CompletionBody, {"prompt": [[None] * 1000]}),
        (CompletionBody, {"prompt": "a", "allowed_token_ids": [None] * 1000}),
        (ChatBody, {"messages": [None] * 1000}),
        (ChatBody, {"messages": [{"role": "user", "content": "a"}], "tools": [None] * 1000}),
    ],
)
def test_of_a_long_list_the_first_complaint_is_enough(
    kind: type[Any], body: dict[str, Any]
) -> None:
    """Millions of them would keep the server from everybody else for half a minute."""
    with pytest.raises(ValidationError) as wrong:
        kind.model_validate(body)
    assert wrong.value.error_count() < 10
