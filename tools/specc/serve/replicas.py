"""Several processes that serve one artifact at one address, as many as are needed: Ray Serve starts and stops them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from specc.errors import UsageError
from specc.serve.app import application
from specc.serve.opening import Opening

_NAME = "specc"
_DELETE_S = 60
"""How long Ray's delete waits."""


def serve_replicas(
    opening: Opening, host: str, port: int, replicas: tuple[int, int], drain_s: float,
    ready: Callable[[], None],
) -> None:  # fmt: skip
    """Until a signal says to stop; then what was begun is finished, for at most `drain_s` seconds.

    From the first of `replicas` to the second as texts wait; each takes `opening.threads` CPUs. Raises UsageError
    (SPECC-E0701) without Ray, E0724 if it starts none.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # tell nobody
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise UsageError(
            "SPECC-E0701", "serving needs packages that are not installed", found=str(error),
            cure="pip install 'specc-compiler[ray]'",
        ) from error  # fmt: skip
    least, most = replicas
    settings = opening.settings
    ray.init(
        address="local",  # not what RAY_ADDRESS or a file in /tmp names: the API key goes with the opening
        num_cpus=most * opening.threads, include_dashboard=False, log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):  # which Ray has taken
        signal.signal(number, signal.default_int_handler)
    try:
        serve.start(http_options={"host": host, "port": port})
        deployed = serve.deployment(
            _replica(serve), name=_NAME,
            # What a replica cannot take at once waits in it; more is refused there (429).
            max_ongoing_requests=settings.max_sessions + settings.max_queue + 1,
            autoscaling_config={
                "min_replicas": least, "max_replicas": most,
                "target_ongoing_requests": settings.max_sessions,
            },
            ray_actor_options={"num_cpus": opening.threads},
            graceful_shutdown_timeout_s=drain_s,
        )  # fmt: skip
        try:
            serve.run(deployed.bind(opening), name=_NAME, route_prefix="/")
        except RuntimeError as error:
            raise UsageError(
                "SPECC-E0724", "no replica could be started", found=str(error)[:300],
                cure="serve without --replicas, which says why",
            ) from error  # fmt: skip
        ready()
        threading.Event().wait()
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):  # a second one does not wait
            _finish(serve, drain_s)
    finally:
        serve.shutdown()
        ray.shutdown()


def _finish(serve: Any, drain_s: float) -> None:
    """Until the replicas have ended: Ray's shutdown ends the proxies at once, and with them what is being answered."""
    for _ in range(2 + int(drain_s / _DELETE_S)):
        with suppress(TimeoutError):
            serve.delete(_NAME)
            return


def _replica(serve: Any) -> type:
    """The deployment's class: an artifact of its own, behind the application that one server has."""

    @serve.ingress()
    class Replica:
        def __init__(self, opening: Opening) -> None:
            self._held = ExitStack()
            self._service = self._held.enter_context(opening.open())

        def __serve_build_asgi_app__(self) -> Any:
            return application(self._service)

        def check_health(self) -> None:
            if not self._service.scheduler.alive:
                raise RuntimeError("the scheduler has ended")

        def __del__(self) -> None:
            self._held.close()

    found: type = Replica
    return found
