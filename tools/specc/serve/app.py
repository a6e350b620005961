"""HTTP: routes, keys, limits, and what happens when a client goes away."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from specc.errors import RequestError, SpeccError
from specc.serve import answers, bodies
from specc.serve.bodies import Body, ChatBody, CompletionBody
from specc.serve.scheduler import stopped
from specc.serve.service import Reply, Service

_GONE = 499
"""What logs show for a client that did not wait; it never sees it."""

_T = TypeVar("_T")
_Handler = Callable[[HttpRequest], Awaitable[Response]]


def application(service: Service) -> Starlette:
    """The ASGI application of one artifact."""

    def refused(_: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, SpeccError)
        service.metrics.refused[error.code].inc()
        status = answers.status_of(error)
        headers = {"Retry-After": "1"} if status in (429, 503) else {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(answers.error_body(error), status, headers)

    def no_route(request: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        unknown = RequestError(
            "SPECC-E0712", error.detail, where=f"{request.method} {request.url.path}",
            cure="the routes: specc help serve",
        )  # fmt: skip
        service.metrics.refused[unknown.code].inc()
        body = answers.error_body(unknown, error.status_code)
        return JSONResponse(body, error.status_code, error.headers)

    def broken(_: HttpRequest, error: Exception) -> Response:
        internal = SpeccError("SPECC-E0100", f"internal error: {type(error).__name__}")
        return JSONResponse(answers.error_body(internal), 500)

    def guarded(handler: _Handler) -> _Handler:
        async def checked(request: HttpRequest) -> Response:
            _check_key(request, service.settings.api_key)
            return await handler(request)

        return checked

    async def completions(request: HttpRequest) -> Response:
        return await _answer(service, request, CompletionBody)

    async def chat(request: HttpRequest) -> Response:
        return await _answer(service, request, ChatBody)

    async def models(_: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [_model(service)]})

    async def model(request: HttpRequest) -> Response:
        if (name := request.path_params["name"]) != service.settings.model:
            raise HTTPException(404, f"there is no model {name}")
        return JSONResponse(_model(service))

    async def health(_: HttpRequest) -> Response:
        return _state("ok", "the scheduler has ended", is_well=service.scheduler.alive)

    async def ready(_: HttpRequest) -> Response:
        ill = "the draft service is unwell" if service.without_drafts else "draining"
        return _state("ready", ill, is_well=service.ready)

    async def metrics(_: HttpRequest) -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/v1/completions", guarded(completions), methods=["POST"]),
            Route("/v1/chat/completions", guarded(chat), methods=["POST"]),
            Route("/v1/models", guarded(models)),
            Route("/v1/models/{name:path}", guarded(model)),
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
        ],
        exception_handlers={
            SpeccError: refused, HTTPException: no_route, ClientDisconnect: _gone, Exception: broken,
        },
    )  # fmt: skip


async def _answer(service: Service, request: HttpRequest, kind: type[Body]) -> Response:
    if service.without_drafts:
        raise RequestError(
            "SPECC-E0723", "the draft service is unwell, and this server answers nothing without it",
            cure="ask again, or another server",
        )  # fmt: skip
    if not service.ready:
        raise stopped()
    data = await _read(request, service)
    asked = await run_in_threadpool(lambda: service.understand(bodies.parse(kind, data)))
    reply = service.start(asked)
    if asked.body.stream:
        return _EventStream(reply)
    try:
        answer = await _unless_gone(request, answers.whole(reply))
    finally:
        reply.cancel()
    return Response(status_code=_GONE) if answer is None else JSONResponse(answer)


class _EventStream(StreamingResponse):
    """A stream whose jobs end with it, however it ends; even if it never begins."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(
            answers.stream(reply), media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )  # fmt: skip
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A client that goes away is noticed while nothing is being sent, too.
        watch = asyncio.create_task(_disconnected(receive))
        work = asyncio.create_task(self.stream_response(send))
        try:
            await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self._reply.cancel()
            await _end(watch, work)


async def _unless_gone(request: HttpRequest, work: Awaitable[_T]) -> _T | None:
    """What `work` gives; None if the client goes away before."""
    watch = asyncio.create_task(_disconnected(request.receive))
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({watch, task}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await _end(watch, task)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def _read(request: HttpRequest, service: Service) -> bytes:
    """The body, in time and within bounds."""
    most, seconds = service.settings.max_body, service.settings.timeout
    data = bytearray()
    try:
        async with asyncio.timeout(seconds or None):
            async for chunk in request.stream():
                data += chunk
                if len(data) > most:
                    raise RequestError(
                        "SPECC-E0708", "the request's body is too large", where="body",
                        expected=f"at most {most} bytes", cure="send less, or serve with a larger --max-body",
                    )  # fmt: skip
    except TimeoutError as error:
        raise RequestError(
            "SPECC-E0713", "the request's body did not come in time", where="body",
            expected=f"all of it within {seconds:g} s", cure="send it faster",
        ) from error  # fmt: skip
    return bytes(data)


def _check_key(request: HttpRequest, key: str | None) -> None:
    if key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # (Starlette reads headers as Latin-1. Blanks are stripped from bytes: some of a letter's are a blank in Latin-1.)
    same = secrets.compare_digest(
        given.encode("latin-1").strip(), key.encode("utf-8", "surrogateescape").strip()
    )
    if scheme.lower() != "bearer" or not same:
        raise RequestError(
            "SPECC-E0707", "the API key is missing or wrong", where="Authorization",
            expected="Authorization: Bearer KEY", cure="send the key that the server was given",
        )  # fmt: skip


def _gone(_: HttpRequest, error: Exception) -> Response:
    del error
    return Response(status_code=_GONE)


def _state(well: str, ill: str, *, is_well: bool) -> Response:
    return JSONResponse({"status": well if is_well else ill}, 200 if is_well else 503)


def _model(service: Service) -> dict[str, object]:
    manifest = service.engine.manifest
    return {
        "id": service.settings.model, "object": "model", "created": service.created, "owned_by": "specc",
        "max_model_len": manifest.model.max_model_len,
        "specc": {
            "method": manifest.method, "lossless": manifest.lossless,
            "num_speculative_tokens": manifest.num_speculative_tokens,
        },
    }  # fmt: skip
