"""Several texts in one pass of the model, over the C ABI."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from dataclasses import dataclass

from specc.errors import RequestError
from specc.runtime.manifest import Manifest
from specc.runtime.owned import Owned
from specc.runtime.session import Session


@dataclass(frozen=True)
class Passes:
    """Of a batch so far: passes of the model, the texts and rows in them, summed, and their seconds."""

    passes: int
    texts: int
    rows: int
    pass_s: float


class Batch(Owned):
    """Texts whose drafts one pass verifies. It and its sessions belong to one thread at a time.

    Sessions that are open when it is closed keep what they need.
    """

    def __init__(self, library: c.CDLL, handle: int, manifest: Manifest) -> None:
        super().__init__(library, handle, library.specc_batch_close)
        self._manifest = manifest

    def session(self) -> Session:
        """A new text; raises RequestError (SPECC-E0607) if as many are open as fit."""
        handle = c.c_void_p()
        self._check(self._library.specc_batch_session(self.handle, c.byref(handle)))
        assert handle.value is not None
        return Session(self._library, handle.value, self._manifest)

    def step(self, sessions: Sequence[Session]) -> None:
        """Play a round of each that has one to play; then `Session.next` tells what came of it, failures too.

        Raises RequestError (SPECC-E0601) for a session of another batch, or one named twice.
        """
        handles = (c.c_void_p * len(sessions))(*(s.handle for s in sessions))
        self._check(self._library.specc_batch_step(self.handle, handles, len(sessions)))

    @property
    def passes(self) -> Passes:
        """What it did so far."""
        values = {name: self._stat(name) for name in ("passes", "texts", "rows")}
        return Passes(**{n: int(v) for n, v in values.items()}, pass_s=self._stat("pass_s"))

    def _stat(self, name: str) -> float:
        value = c.c_double()
        self._check(self._library.specc_batch_stat(self.handle, name.encode(), c.byref(value)))
        return value.value

    def _closed(self) -> RequestError:
        return RequestError("SPECC-E0607", "the batch is closed", cure="open another one")
