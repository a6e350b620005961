"""How many devices of a chip one server has, for caches that lie on several: data and its source, data/servers.json."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

from specc.errors import UsageError


@lru_cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files("specc") / "data" / "servers.json").read_text())
    return found


def check_one_server(soc: str, count: int) -> None:
    """Raise UsageError (SPECC-E0133) where `count` devices of `soc` do not stand in one server, or nobody knows.

    Between servers an exchange waits for the network at every layer.
    """
    server = next((s for s in _table()["servers"] if soc.startswith(s["soc"])), None)
    if server is not None and count <= server["devices"]:
        return
    known = ", ".join(f"{s['soc']}: {s['devices']}" for s in _table()["servers"])
    found = (
        f"{server['devices']} ({server['what']})"
        if server
        else f"no number for {soc}; known are {known}"
    )
    raise UsageError(
        "SPECC-E0133", f"--kv-shards {count} needs {count} devices of {soc} in one server", where="--kv-shards",
        expected="devices that reach each other without the network between servers", found=found,
        cure="choose fewer shards" if server else "use a chip that is known, or leave out --kv-shards",
    )  # fmt: skip
