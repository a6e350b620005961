"""`specc cache`: what was compiled and is kept for the next time."""

from __future__ import annotations

import json as json_
import time
from typing import Any, Literal

from specc import cache, output
from specc.flags import Json
from specc.progress import human_bytes


def main(
    action: Literal["ls", "trim", "clear"] = "ls",
    /,
    *,
    json: Json = False,
) -> int:
    """List, trim or clear the compile cache.

    The folder is SPECC_CACHE_DIR, or specc in the user's cache folder. Each compile trims it to
    SPECC_CACHE_LIMIT (10G if unset), what was not used for longest first. Clearing it costs time,
    never a result.

    Args:
        action: ls, trim (to the limit, now) or clear.
        json: Print one JSON object on stdout.
    """
    limit, folder = cache.limit(), cache.folder()
    gone = cache.trim(limit) if action == "trim" else 0
    kept = {part: cache.entries(part) for part in cache.PARTS}
    artifacts = [found for e in kept["artifacts"] if (found := _artifact(e)) is not None]
    if action == "clear":
        for part, entries in kept.items():
            for entry in entries:
                cache.drop(entry.path)
            if (folder / part).is_dir() and not any((folder / part).iterdir()):
                (folder / part).rmdir()
        gone = sum(e.bytes for entries in kept.values() for e in entries)
    sizes = {
        p: {"entries": len(found), "bytes": sum(e.bytes for e in found)}
        for p, found in kept.items()
    }
    if json:
        output.emit({
            "folder": str(folder), "limit": limit, "parts": sizes, "artifacts": artifacts,
            "cleared": action == "clear", "bytes_deleted": gone,
        })  # fmt: skip
        return output.EXIT_OK
    print(f"{folder}, at most {human_bytes(limit)}")
    rows = [(p, f"{s['entries']}", human_bytes(s["bytes"])) for p, s in sizes.items()]
    print(output.table([("", "entries", "size"), *rows]))
    if artifacts:
        lines = [
            (a["name"], a["method"], human_bytes(a["bytes"]), f"{a['idle_s'] / 3600:.1f} h")
            for a in artifacts
        ]
        print(output.table([("artifact", "method", "size", "last used"), *lines]))
    if action != "ls":
        print(f"{human_bytes(gone)} deleted")
    return output.EXIT_OK


def _artifact(entry: cache.Entry) -> dict[str, Any] | None:
    """What a kept artifact is."""
    try:
        manifest = json_.loads((entry.path / "manifest.json").read_text())
        return {
            "key": entry.path.name, "name": manifest["name"], "method": manifest["method"],
            "bytes": entry.bytes, "idle_s": round(max(0.0, time.time() - entry.used)),
        }  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None
