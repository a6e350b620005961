"""The process: a socket, uvicorn, and an end in good order."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from specc.errors import UsageError
from specc.serve.app import application
from specc.serve.service import Service

_LOOK = 0.05
"""Seconds between two looks at whether all is done."""
_KEEP = 75
"""Seconds that a connection may be idle. Clients, which give theirs up after 5 (httpx) to 60, must be first: else one
asks on a connection that is being closed, and hears nothing."""
_SWITCH = 5e-4
"""Seconds after which the event loop yields to the worker, who asks for Python's lock several times
a round. Python's own 5 ms are as long as a round of a small model."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; raises UsageError (SPECC-E0715) if it cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(
            "SPECC-E0715", "the address cannot be listened on", where=f"{host}:{port}",
            found=error.strerror or str(error), cure=_cure(error),
        ) from error  # fmt: skip


def _cure(error: OSError) -> str:
    if (error.errno or 0) < 0:  # of getaddrinfo
        return "correct --host: a name or number of this machine"
    if error.errno == errno.EADDRINUSE:
        return "choose another --port, or end who has this one; --port 0 takes any that is free"
    if error.errno == errno.EACCES:
        return "choose a --port of 1024 or more: lower ones are root's"
    return "choose a --host that this machine has, as 127.0.0.1 or 0.0.0.0"


def serve(
    service: Service, listening: socket.socket, ready: Callable[[], None], drain_s: float
) -> None:
    """Until a signal says to stop, and then until all is answered, for at most `drain_s` seconds."""
    config = uvicorn.Config(
        application(service), log_level="warning", access_log=False, lifespan="off", ws="none",
        server_header=False, timeout_graceful_shutdown=1, timeout_keep_alive=_KEEP,
    )  # fmt: skip
    # It warns of what is written to a client that has gone, which is nobody's fault.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    sys.setswitchinterval(_SWITCH)
    try:
        asyncio.run(_Server(config, service, ready, drain_s).serve([listening]))
    finally:
        service.scheduler.stop()


class _Server(uvicorn.Server):
    """Goes on while it drains: /ready says so, and new requests are told to go elsewhere."""

    def __init__(
        self, config: uvicorn.Config, service: Service, ready: Callable[[], None], drain_s: float
    ) -> None:
        super().__init__(config)
        self._service, self._ready, self._drain_s = service, ready, drain_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame  # not kept: what uvicorn keeps, it raises again when all is over
        if self._service.draining:
            self.should_exit = self.force_exit = True
            return
        self._service.draining = True
        self._loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        self._draining = self._loop.create_task(self._drain())  # kept, or it may be collected

    async def _drain(self) -> None:
        scheduler = self._service.scheduler
        until = time.monotonic() + self._drain_s
        while (scheduler.running or scheduler.waiting) and time.monotonic() < until:
            await asyncio.sleep(_LOOK)
        scheduler.stop()  # who is left is told
        self.should_exit = True
