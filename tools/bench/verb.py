"""A verb of specc in a process of its own, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from specc.errors import SpeccError


def told(*words: object) -> dict[str, Any]:
    """What `specc WORDS --json` says; raises SpeccError as the verb does. Its progress goes to stderr."""
    command = [sys.executable, "-m", "specc", *map(str, words), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    said: dict[str, Any] = json.loads(done.stdout)
    if "error" in said:
        raise SpeccError(**said["error"])
    return said
