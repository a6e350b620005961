"""Whether a draft service is to be asked: a state that pings move, and nothing else but the end of a connection."""

from __future__ import annotations

import logging
import threading

_LOG = logging.getLogger(__name__)

PING_S = 0.2
"""Seconds between two pings, and those that an answer may take."""
MISSES, GOODS = 3, 5


class Health:
    """Healthy until `MISSES` pings in a row went unanswered, or the connection ended; then after `GOODS` answers.

    Any thread. Changes are logged, as of the service `name`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._healthy = True
        self._streak = 0  # of pings that speak against the state

    @property
    def healthy(self) -> bool:
        return self._healthy

    def good(self) -> None:
        """A ping was answered in time."""
        self._count(against=not self._healthy, most=GOODS)

    def miss(self) -> None:
        """A ping was not."""
        self._count(against=self._healthy, most=MISSES)

    def lost(self) -> None:
        """The connection ended: no need to wait for misses."""
        with self._lock:
            self._turn(healthy=False)

    def _count(self, *, against: bool, most: int) -> None:
        with self._lock:
            self._streak = self._streak + 1 if against else 0
            if self._streak >= most:
                self._turn(healthy=not self._healthy)

    def _turn(self, *, healthy: bool) -> None:
        if healthy != self._healthy:
            told = "is asked again" if healthy else "is lost: texts go on without its drafts"
            _LOG.warning("the draft service %s %s", self._name, told)
        self._healthy, self._streak = healthy, 0
