"""A draft service in a process of its own, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_SPECC = "import sys; sys.modules['torch'] = None; from specc.cli import main; sys.exit(main())"


@contextmanager
def drafting(artifact: Path, path: Path, *flags: object) -> Iterator[subprocess.Popen[str]]:
    """The process, once it listens at `path`; killed in the end."""
    command = [
        sys.executable,
        "-c",
        _SPECC,
        "draft-service",
        artifact,
        "--socket",
        path,
        "--json",
        *flags,
    ]
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["socket"] == str(path)
        yield process
    finally:
        process.kill()
        process.communicate()


def eventually(true: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether it becomes so."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
