"""Verbs of specc in processes of their own, without torch unless a test asks for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Whoever imports torch gets an ImportError.
NO_TORCH = "import sys; sys.modules['torch'] = None"
SPECC = "import sys; from specc.cli import main; sys.exit(main())"


@contextmanager
def started(
    *words: object, torch: bool = False
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The process of `specc WORDS --json`, and the line that says that it is ready; killed in the end."""
    code = SPECC if torch else f"{NO_TORCH}; {SPECC}"
    command = [sys.executable, "-c", code, *map(str, words), "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()
