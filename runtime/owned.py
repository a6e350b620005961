"""What specc.h gives a handle for."""

from __future__ import annotations

import ctypes as c
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Self

from specc.errors import RequestError
from specc.runtime import native


class Owned:
    """Given back once: by close, at the end of `with`, or when nothing refers to it any more."""

    def __init__(self, library: c.CDLL, handle: int, free: Callable[[int], None]) -> None:
        self._library, self._handle = library, handle
        self._free = weakref.finalize(self, free, handle)

    @property
    def handle(self) -> int:
        """Of specc.h; raises RequestError (SPECC-E0607) once it is closed."""
        if not self._free.alive:
            raise self._closed()
        return self._handle

    def close(self) -> None:
        """Let go."""
        self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def _closed(self) -> RequestError:
        """What to say when it is used after that."""
        raise NotImplementedError

    def _check(self, result: int) -> int:
        return native.check(self._library, result)
