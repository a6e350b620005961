"""What is sent back, in OpenAI's forms."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from specc.errors import SpeccError
from specc.serve.logprobs import Told
from specc.serve.scheduler import Event, Job
from specc.serve.service import Reply, Request

STATUS = {
    "SPECC-E0107": 400, "SPECC-E0620": 400, "SPECC-E0601": 400, "SPECC-E0602": 400, "SPECC-E0603": 400,
    "SPECC-E0607": 400, "SPECC-E0608": 503, "SPECC-E0702": 400, "SPECC-E0703": 400, "SPECC-E0704": 400,
    "SPECC-E0706": 404, "SPECC-E0707": 401, "SPECC-E0708": 413, "SPECC-E0709": 429, "SPECC-E0710": 503,
    "SPECC-E0711": 504, "SPECC-E0712": 404, "SPECC-E0713": 408, "SPECC-E0716": 501, "SPECC-E0717": 400,
    "SPECC-E0723": 503,
}  # fmt: skip
"""By code; 500 for all else."""

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_FINISH = {"context": "length"}
"""OpenAI knows one word for a full answer and a full context."""


def status_of(error: SpeccError) -> int:
    """Of HTTP."""
    return STATUS.get(error.code, 500)


def error_body(error: SpeccError, status: int | None = None) -> dict[str, Any]:
    """The error as OpenAI's clients read it; `code` is ours."""
    status = status_of(error) if status is None else status
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    return {
        "error": {
            "message": error.render(), "type": kind, "param": error.where or None,
            "code": error.code,
        }
    }  # fmt: skip


async def whole(reply: Reply) -> dict[str, Any]:
    """The answer at once."""
    request = reply.request
    texts = {choice.index: "" for choice in request.choices}
    finish = dict.fromkeys(texts, "")
    told = _told_by(reply)
    async for index, event in reply.events():
        texts[index] += event.text
        told[index].add(event)
        finish[index] = event.finish or finish[index]
    answer = _envelope(reply, streamed=False)
    answer["choices"] = [_whole_choice(request, i, texts[i], finish[i], told[i]) for i in texts]
    if request.chat:
        answer |= told[0].of_prompt  # one prompt for all choices
    answer["usage"] = _usage(reply)
    if request.body.specc:
        answer["specc"] = report(reply)
    return answer


async def stream(reply: Reply) -> AsyncIterator[bytes]:
    """The answer as server-sent events. An error after the first of them is the last."""
    request = reply.request
    options = request.body.stream_options
    envelope = _envelope(reply, streamed=True)
    if options.include_usage:
        envelope["usage"] = None
    told = _told_by(reply)
    try:
        # Not before there is something to say: clients take the first piece for the first token.
        silent = {choice.index for choice in request.choices if request.chat}
        async for index, event in reply.events():
            if index in silent:
                silent.remove(index)
                opening = _delta(index, {"role": "assistant", "content": ""}, "", None)
                yield _sse({**envelope, "choices": [opening]})
            told[index].add(event)
            if event.text or event.finish:
                yield _sse({**envelope, "choices": [_piece(request, index, event, told[index])]})
        last = {**envelope, "choices": []}
        if options.include_usage:
            last["usage"] = _usage(reply)
        if request.body.specc:
            last["specc"] = report(reply)
        if options.include_usage or request.body.specc:
            yield _sse(last)
        yield b"data: [DONE]\n\n"
    except SpeccError as error:
        reply.service.metrics.refused[error.code].inc()
        yield _sse(error_body(error))


def report(reply: Reply) -> dict[str, Any]:
    """How it went, for the `specc` field. Seconds; statistics as `specc run --json` has them."""
    return {
        "schema": 1,
        "choices": [
            {"index": choice.index, **_told(job), "seed": choice.ask.seed}
            for choice, job in zip(reply.request.choices, reply.jobs, strict=True)
        ],
    }


def _told(job: Job) -> dict[str, Any]:
    def since(moment: float | None) -> float | None:
        return None if moment is None else moment - job.arrived

    return {
        "token_ids": job.token_ids, "finish_reason": job.reason, "queue_s": since(job.admitted),
        "first_token_s": since(job.first_token), "total_s": since(job.ended),
        "stats": None if job.stats is None else job.stats.as_json(),
    }  # fmt: skip


def _envelope(reply: Reply, *, streamed: bool) -> dict[str, Any]:
    request = reply.request
    kind = "text_completion"
    if request.chat:
        kind = "chat.completion.chunk" if streamed else "chat.completion"
    return {
        "id": request.id, "object": kind, "created": request.created,
        "model": reply.service.settings.model,
    }  # fmt: skip


def _usage(reply: Reply) -> dict[str, int]:
    prompt = reply.request.prompt_tokens
    new = sum(len(job.token_ids) for job in reply.jobs)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def _told_by(reply: Reply) -> dict[int, Told]:
    """What will be told of logprobs, by choice."""

    def decode(ids: Sequence[int]) -> str:
        return reply.service.engine.detokenize(ids, skip_special=False)

    request = reply.request
    return {
        choice.index: Told(decode, request.body, choice.ask.prompt_ids)
        for choice in request.choices
    }


def _whole_choice(
    request: Request, index: int, text: str, finish: str, told: Told
) -> dict[str, Any]:
    end = {"finish_reason": _FINISH.get(finish, finish), "logprobs": told.take()}
    if request.chat:
        return {"index": index, "message": {"role": "assistant", "content": text}, **end}
    return {"index": index, "text": text, **end, **told.of_prompt}


def _piece(request: Request, index: int, event: Event, told: Told) -> dict[str, Any]:
    logprobs = told.take()
    if request.chat:
        return _delta(index, {"content": event.text} if event.text else {}, event.finish, logprobs)
    finish = _FINISH.get(event.finish, event.finish) or None
    return {"index": index, "text": event.text, "logprobs": logprobs, "finish_reason": finish}


def _delta(
    index: int, delta: dict[str, str], finish: str, logprobs: dict[str, Any] | None
) -> dict[str, Any]:
    ended = _FINISH.get(finish, finish) or None
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": ended}


def _sse(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"
