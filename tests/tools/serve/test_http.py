"""`specc serve` as the official client sees it: what comes out is what the artifact says by itself."""

from __future__ import annotations

import http.client
import json
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specc.runtime import Artifact
from specc.templates import ChatTemplate
from tests.tools.serve.conftest import Server

Start = Callable[..., AbstractContextManager[Server]]

PROMPT = "The quick brown fox jumps over"
KS = (0, 2, 4, -1)
REPORT = {"specc": True, "ignore_eos": True}


def ids_of(artifact: Artifact, prompt: str) -> list[int]:
    return artifact.tokenize(prompt, add_special=False, parse_special=True)


def said(artifact: Artifact, prompt: str, count: int, **options: Any) -> tuple[list[int], str]:
    """What the artifact says alone."""
    asked = {"ignore_eos": True, "max_tokens": count, **options}
    found = artifact.generate(ids_of(artifact, prompt), **asked)
    return list(found.token_ids), artifact.detokenize(found.token_ids)


def ask(
    server: Server, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any]:
    """Status and body, by no client's leave."""
    with closing(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)) as wire:
        wire.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = wire.getresponse()
        text = answer.read()
        kind = answer.headers.get("Content-Type", "")
        return answer.status, json.loads(text) if "json" in kind else text.decode()


def metric(server: Server, name: str) -> float:
    """The sum of a metric over its labels."""
    page = ask(server, "GET", "/metrics")[1]
    found = re.findall(rf"^specc:{name}(?:{{.*}})? (\S+)$", page, re.M)
    assert found, name
    return sum(map(float, found))


def until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def code_of(error: openai.APIStatusError) -> str:
    assert isinstance(error.body, dict)
    return str(error.body["code"])


@pytest.mark.parametrize("k", KS)
def test_completion(server: Server, artifact: Artifact, k: int) -> None:
    tokens, text = said(artifact, PROMPT, 40)
    answer = server.client().completions.create(
        model=server.model, prompt=PROMPT, max_tokens=40, temperature=0,
        extra_body={**REPORT, "num_speculative_tokens": k},
    )  # fmt: skip
    (choice,) = answer.choices
    assert choice.text == text
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(ids_of(artifact, PROMPT))
    assert answer.usage.completion_tokens == 40
    (report,) = answer.specc["choices"]  # type: ignore[attr-defined]
    assert report["token_ids"] == tokens
    assert report["stats"]["prefill_tokens"] == answer.usage.prompt_tokens - 1
    if (
        k >= 0
    ):  # (adaptive, the engine may have learnt from other requests that drafts do not pay here)
        assert (report["stats"]["drafts"] > 0) is (k > 0)


def test_prompts_longer_than_a_chunk(server: Server, artifact: Artifact) -> None:
    """They are fed in pieces, between other texts' turns."""
    prompt = " ".join([PROMPT] * 12)
    count = len(ids_of(artifact, prompt))
    assert 2 * artifact.manifest.model.prefill_chunk < count < 240
    answer = server.client().completions.create(
        model=server.model, prompt=prompt, max_tokens=12, temperature=0, extra_body=REPORT
    )
    (report,) = answer.specc["choices"]  # type: ignore[attr-defined]
    assert report["token_ids"] == said(artifact, prompt, 12)[0]
    assert report["stats"]["prefill_tokens"] == count - 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_streamed_in_pieces(server: Server, artifact: Artifact, temperature: float) -> None:
    text = said(artifact, PROMPT, 60, temperature=temperature, seed=7)[1]
    pieces = list(server.client().completions.create(
        model=server.model, prompt=PROMPT, max_tokens=60, temperature=temperature, seed=7, stream=True,
        stream_options={"include_usage": True}, extra_body=REPORT,
    ))  # fmt: skip
    *shown, last = pieces
    assert "".join(p.choices[0].text for p in shown) == text
    assert len(shown) > 3
    assert [p.choices[0].finish_reason for p in shown[:-1]] == [None] * (len(shown) - 1)
    assert shown[-1].choices[0].finish_reason == "length"
    assert all(p.usage is None for p in shown)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 60
    assert last.specc["choices"][0]["seed"] == 7  # type: ignore[attr-defined]


def test_chat(server: Server, artifact: Artifact, tiny_artifact: Path) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "naïve"}, {"type": "text", "text": "日本"}]},
    ]  # fmt: skip
    flat = [messages[0], {"role": "user", "content": "naïve\n日本"}]
    prompt = ChatTemplate.of_artifact(tiny_artifact).render(flat)
    text = said(artifact, prompt, 30)[1]
    create = server.client().chat.completions.create
    asked: dict[str, Any] = {
        "model": server.model, "messages": messages, "max_completion_tokens": 30, "temperature": 0,
        "extra_body": REPORT,
    }  # fmt: skip
    whole = create(**asked)
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].message.content == text
    pieces = list(create(**asked, stream=True))
    deltas = [p.choices[0].delta for p in pieces if p.choices]
    assert deltas[0].role == "assistant"
    assert "".join(d.content or "" for d in deltas) == text
    # The client sends an answer back with a null for all that it did not have.
    message = {**whole.choices[0].message.model_dump(), "annotations": None}
    asked["messages"] = [*messages, message, {"role": "user", "content": "and?"}]
    assert create(**asked).usage.prompt_tokens > whole.usage.total_tokens


def test_the_bodies_that_vllm_bench_sends(server: Server, artifact: Artifact) -> None:
    """By vllm/benchmarks/lib/endpoint_request_func.py, which reads `choices` of each piece, or else `usage`."""
    common = {"model": server.model, "stream": True, "stream_options": {"include_usage": True},
              "ignore_eos": True, "temperature": 0.0}  # fmt: skip
    content = [{"type": "text", "text": PROMPT}]
    for path, body, field in (
        ("completions", {"prompt": PROMPT, "repetition_penalty": 1.0, "max_tokens": 9, "logprobs": None}, "text"),
        ("chat/completions", {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 9}, "delta"),
    ):  # fmt: skip
        status, text = ask(server, "POST", f"/v1/{path}", json.dumps({**common, **body}).encode())
        assert status == 200
        *pieces, done = (line.removeprefix("data: ") for line in text.strip().split("\n\n"))
        assert done == "[DONE]"
        *spoken, usage = map(json.loads, pieces)
        assert usage["usage"]["completion_tokens"] == 9
        assert all(field in piece["choices"][0] for piece in spoken)
        if field == "text":
            heard = "".join(piece["choices"][0]["text"] for piece in spoken)
            assert heard == said(artifact, PROMPT, 9)[1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", [3, 17, 31])
def test_a_stop_string_ends_the_text_before_it(
    server: Server, artifact: Artifact, place: int, stream: bool
) -> None:
    """Wherever it lies in tokens and rounds; the decoy begins to match, and is given out."""
    text = said(artifact, PROMPT, 60)[1]
    stop = text[place : place + 5]
    decoy = text[1:4] + "\x00"
    answers = server.client().completions.create(
        model=server.model, prompt=PROMPT, max_tokens=60, temperature=0, stop=[decoy, stop],
        stream=stream, extra_body=REPORT,
    )  # fmt: skip
    pieces = list(answers) if stream else [answers]
    choices = [p.choices[0] for p in pieces if p.choices]
    assert "".join(c.text for c in choices) == text[: text.find(stop)]
    assert choices[-1].finish_reason == "stop"
    used = pieces[-1].specc["choices"][0]["token_ids"]
    assert stop in artifact.detokenize(used)
    assert stop not in artifact.detokenize(used[:-1])


def test_several_prompts_choices_and_echo(server: Server, artifact: Artifact) -> None:
    prompts = ["def add(a, b)", "What is the capital"]
    answer = server.client().completions.create(
        model=server.model, prompt=prompts, n=3, max_tokens=9, temperature=1.0, seed=40, echo=True,
        extra_body=REPORT,
    )  # fmt: skip
    assert [c.index for c in answer.choices] == list(range(6))
    for choice in answer.choices:
        prompt = prompts[choice.index // 3]
        seed = 40 + choice.index % 3
        assert choice.text == prompt + said(artifact, prompt, 9, temperature=1.0, seed=seed)[1]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(len(ids_of(artifact, p)) for p in prompts)
    assert answer.usage.completion_tokens == 6 * 9


def test_token_ids_and_the_end_of_the_context(server: Server, artifact: Artifact) -> None:
    prompt = [5, 6, 7] * 80
    answer = server.client().completions.create(
        model=server.model, prompt=prompt, max_tokens=1000, temperature=0, extra_body=REPORT
    )
    assert answer.choices[0].finish_reason == "length"  # OpenAI has no word of its own for it
    (report,) = answer.specc["choices"]  # type: ignore[attr-defined]
    assert report["finish_reason"] == "context"
    alone = artifact.generate(prompt, max_tokens=1000, ignore_eos=True)
    assert report["token_ids"] == list(alone.token_ids)


def test_many_clients_get_what_each_would_get_alone(server: Server, artifact: Artifact) -> None:
    asked = [
        {"prompt": f"{word} {n}", "max_tokens": 30 + 5 * n, "temperature": n % 3 / 2, "seed": n}
        for n, word in enumerate(("fox", "dog", "Paris", "café", "add", "0123", "lazy", "∑"))
    ]

    def stream(options: dict[str, Any]) -> list[int]:
        pieces = list(server.client().completions.create(
            model=server.model, stream=True, **options,
            extra_body={**REPORT, "num_speculative_tokens": KS[options["seed"] % 4]},
        ))  # fmt: skip
        text = "".join(p.choices[0].text for p in pieces if p.choices)
        tokens: list[int] = pieces[-1].specc["choices"][0]["token_ids"]  # type: ignore[attr-defined]
        assert text == artifact.detokenize(tokens)
        return tokens

    with ThreadPoolExecutor(len(asked)) as pool:
        told = list(pool.map(stream, asked * 2))
    for options, tokens in zip(asked * 2, told, strict=True):
        rest = {k: v for k, v in options.items() if k not in ("prompt", "max_tokens")}
        assert tokens == said(artifact, options["prompt"], options["max_tokens"], **rest)[0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_slots(server: Server, stream: bool) -> None:
    body = {"prompt": PROMPT, "max_tokens": 220, "n": 24, "ignore_eos": True, "stream": stream,
            "num_speculative_tokens": 0}  # fmt: skip
    wire = http.client.HTTPConnection(urlsplit(server.url).netloc)
    wire.request("POST", "/v1/completions", json.dumps(body))
    assert until(lambda: metric(server, "num_requests_running") == 4)
    assert metric(server, "state_bytes") > 0
    made = metric(server, "generation_tokens_total")
    assert wire.sock is not None
    wire.sock.close()
    wire.close()
    assert until(lambda: metric(server, "num_requests_running") == 0)
    assert metric(server, "num_requests_waiting") == 0
    assert metric(server, "state_bytes") == 0
    assert metric(server, "generation_tokens_total") - made < 24 * 220


def test_clients_that_come_and_go_do_not_disturb_the_others(
    server: Server, artifact: Artifact
) -> None:
    """Twelve at once, of whom every other one leaves in the middle of its answer."""

    def talk(number: int) -> list[int] | None:
        stream = server.client().completions.create(
            model=server.model, prompt=f"{PROMPT} {number}", max_tokens=100, temperature=0.7, seed=number,
            stream=True, extra_body=REPORT,
        )  # fmt: skip
        pieces = []
        for piece in stream:
            pieces.append(piece)
            if number % 2 and len(pieces) > number % 11:
                stream.close()
                return None
        tokens: list[int] = pieces[-1].specc["choices"][0]["token_ids"]  # type: ignore[attr-defined]
        return tokens

    with ThreadPoolExecutor(12) as pool:
        told = list(pool.map(talk, range(24)))
    for number, tokens in enumerate(told):
        if number % 2 == 0:
            prompt = f"{PROMPT} {number}"
            assert tokens == said(artifact, prompt, 100, temperature=0.7, seed=number)[0]
    assert until(lambda: metric(server, "num_requests_running") == 0)
    assert metric(server, "num_requests_waiting") == metric(server, "state_bytes") == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 3), ("suffix", "x"), ("typo", 1), ("store", True), ("length_penalty", 2),
        ("use_beam_search", True), ("bad_words", ["The quick brown fox"]),
    ],
)  # fmt: skip
def test_what_the_engine_cannot_do_is_refused_by_name(
    server: Server, field: str, value: object
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().completions.create(
            model=server.model, prompt=PROMPT, extra_body={field: value}
        )
    assert code_of(refused.value) == "SPECC-E0703"
    assert refused.value.param == field
    assert field in str(refused.value)


def test_what_asks_for_nothing_is_no_reason_to_refuse(server: Server) -> None:
    server.client().completions.create(
        model=server.model, prompt=PROMPT, max_tokens=1, top_p=1, presence_penalty=0, logit_bias={},
        best_of=1, user="somebody", frequency_penalty=0.0, suffix=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "E0702"), (b"{", 400, "E0702"), (b"[]", 400, "E0702"), (b"\xff", 400, "E0702"),
        (b"[" * 4000, 400, "E0702"), (b'{"prompt": NaN}', 400, "E0702"), (b"{}", 400, "E0702"),
        (b'{"prompt": "\\ud800"}', 400, "E0702"), (b'{"prompt": 5}', 400, "E0702"),
        (b'{"prompt": "a", "n": 0}', 400, "E0702"), (b'{"prompt": "a", "n": true}', 400, "E0702"),
        (b'{"prompt": "a", "temperature": -1}', 400, "E0702"),
        (b'{"prompt": "a", "temperature": 1e999}', 400, "E0702"),
        (b'{"prompt": "a", "max_tokens": -1}', 400, "E0702"),
        (b'{"prompt": "a", "stop": [""]}', 400, "E0702"),
        (b'{"prompt": "a", "stream_options": {"include_usage": true}}', 400, "E0702"),
        (b'{"prompt": "a", "num_speculative_tokens": 3}', 400, "E0704"),
        (b'{"prompt": "a", "n": 25}', 400, "E0704"), (b'{"prompt": "a", "model": "b"}', 404, "E0706"),
        (b'{"prompt": [99999]}', 400, "E0602"), (b'{"prompt": [[5], [-1]]}', 400, "E0702"),
        (b'{"prompt": ""}', 400, "E0607"), (b'{"prompt": []}', 400, "E0607"),
        (json.dumps({"prompt": [5] * 257}).encode(), 400, "E0603"),
        (b" " * 5001, 413, "E0708"),
    ],
)  # fmt: skip
def test_malformed_bodies(server: Server, body: bytes, status: int, code: str) -> None:
    found, answer = ask(server, "POST", "/v1/completions", body)
    assert found == status, answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["code"] == f"SPECC-{code}"


def test_malformed_conversations(server: Server) -> None:
    def refused(**fields: object) -> str:
        body = {"messages": [{"role": "user", "content": "hi"}], **fields}
        status, answer = ask(server, "POST", "/v1/chat/completions", json.dumps(body).encode())
        assert status == 400, answer
        return str(answer["error"]["code"])

    assert refused(messages=[]) == "SPECC-E0702"
    image = {"type": "image_url", "image_url": {"url": "x"}}
    assert refused(messages=[{"role": "user", "content": [image]}]) in (
        "SPECC-E0702",
        "SPECC-E0703",
    )
    assert refused(tools=[{"type": "function", "function": {"name": "f"}}]) == "SPECC-E0703"
    assert refused(tool_choice="required") == "SPECC-E0702"
    assert refused(prompt="x") == "SPECC-E0703"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
_FIELDS = st.sampled_from([
    "n", "stop", "seed", "temperature", "stream", "stream_options", "echo", "model", "tools", "specc",
    "stop_token_ids", "num_speculative_tokens", "top_p", "ignore_eos", "x", "max_completion_tokens",
])  # fmt: skip


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.dictionaries(_FIELDS, _JSON, max_size=3), _JSON, st.booleans())
def test_any_body_gets_an_answer_or_a_coded_refusal(
    server: Server, fields: dict[str, object], content: object, chat: bool
) -> None:
    body = {"max_tokens": 2, "prompt": content, **fields}
    if chat:
        body |= {"messages": [{"role": "user", "content": content}]}
        del body["prompt"]
    path = "/v1/chat/completions" if chat else "/v1/completions"
    status, answer = ask(server, "POST", path, json.dumps(body).encode())
    if status != 200:
        assert 400 <= status < 500, answer
        assert re.fullmatch(r"SPECC-E0[67]\d\d|SPECC-E0107", answer["error"]["code"])


def test_routes(server: Server, artifact: Artifact) -> None:
    assert ask(server, "GET", "/health") == (200, {"status": "ok"})
    assert ask(server, "GET", "/ready") == (200, {"status": "ready"})
    (model,) = server.client().models.list()
    assert model.id == server.model == artifact.manifest.name
    assert server.client().models.retrieve(server.model).id == server.model
    for method, path, status in (("GET", "/v2", 404), ("GET", "/v1/completions", 405)):
        found, answer = ask(server, method, path)
        assert found == status
        assert answer["error"]["code"] == "SPECC-E0712"


def test_keys_and_a_full_queue(start: Start) -> None:
    with start("--api-key", "s3cret", "--max-sessions", 1, "--max-queue", 30) as server:
        for key in ("", "wrong", "s3crét"):
            header = {"Authorization": f"Bearer {key}".encode().decode("latin-1")}
            status, answer = ask(server, "GET", "/v1/models", **header)
            assert status == 401
            assert answer["error"]["code"] == "SPECC-E0707"
        assert ask(server, "GET", "/health")[0] == 200
        create = server.client("s3cret").completions.create
        stream = create(
            model=server.model, prompt=PROMPT, max_tokens=200, n=31, stream=True,
            extra_body={"ignore_eos": True, "num_speculative_tokens": 0},
        )  # fmt: skip
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as refused:
            create(model=server.model, prompt=PROMPT, n=31)
        assert code_of(refused.value) == "SPECC-E0709"
        stream.close()


def test_requests_that_take_too_long(start: Start) -> None:
    with start("--max-sessions", 1, "--timeout", 0.3) as server:
        create = server.client().completions.create
        asked: dict[str, Any] = {
            "model": server.model, "prompt": PROMPT, "max_tokens": 240, "n": 60,
            "extra_body": {"ignore_eos": True, "num_speculative_tokens": 0},
        }  # fmt: skip
        with pytest.raises(openai.InternalServerError) as late:
            create(**asked)
        assert late.value.status_code == 504
        assert code_of(late.value) == "SPECC-E0711"
        assert until(lambda: metric(server, "num_requests_waiting") == 0)  # (or the queue is full)
        with pytest.raises(openai.APIError, match="SPECC-E0711"):
            list(create(**asked, stream=True))
        assert until(lambda: metric(server, "num_requests_running") == 0)


def test_told_to_stop_it_finishes_what_it_began(start: Start) -> None:
    with start("--max-sessions", 1) as server:
        create = server.client().completions.create
        asked: dict[str, Any] = {"model": server.model, "prompt": PROMPT, "max_tokens": 200}
        options = {"ignore_eos": True, "num_speculative_tokens": 0}
        stream = iter(create(**asked, n=40, stream=True, extra_body=options))
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        assert until(lambda: ask(server, "GET", "/ready")[0] == 503)
        assert ask(server, "GET", "/health")[0] == 200
        with pytest.raises(openai.InternalServerError) as refused:
            create(**asked)
        assert code_of(refused.value) == "SPECC-E0710"
        ended = [p.choices[0].finish_reason for p in stream if p.choices[0].finish_reason]
        assert ended == ["length"] * 40
        assert server.process.wait(60) == 0


def test_told_twice_to_stop_it_does_not_wait(start: Start) -> None:
    with start("--max-sessions", 1) as server:
        stream = server.client().completions.create(
            model=server.model, prompt=PROMPT, max_tokens=240, n=60, stream=True,
            extra_body={"ignore_eos": True, "num_speculative_tokens": 0},
        )  # fmt: skip
        next(iter(stream))
        server.process.send_signal(signal.SIGTERM)
        assert until(lambda: ask(server, "GET", "/ready")[0] == 503)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0
        stream.close()


def test_told_to_stop_at_once_it_says_so(start: Start) -> None:
    with start("--max-sessions", 1, "--drain-timeout", 0) as server:
        stream = server.client().completions.create(
            model=server.model, prompt=PROMPT, max_tokens=240, n=60, stream=True,
            extra_body={"ignore_eos": True, "num_speculative_tokens": 0},
        )  # fmt: skip
        next(iter(stream))
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="SPECC-E0710"):
            list(stream)
        assert server.process.wait(60) == 0
