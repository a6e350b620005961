"""A draft service in a process of its own, without torch."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tools.serve.processes import started


@contextmanager
def drafting(artifact: Path, path: Path | str, *flags: object) -> Iterator[subprocess.Popen[str]]:
    """The process, once it listens at `path`; killed in the end."""
    with started("draft-service", artifact, "--socket", path, *flags) as (process, told):
        assert told["socket"] == str(path)
        yield process


def eventually(true: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether it becomes so."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
