"""`specc cache`: compiled pieces that are kept for the next time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

from specc import output
from specc.flags import Json
from specc.progress import human_bytes

PARTS = ("objects", "leaves")
"""The folders that a compile writes. Nothing else in the cache folder is touched."""


def main(
    action: Literal["ls", "clear"] = "ls",
    /,
    *,
    json: Json = False,
) -> int:
    """List or clear the compile cache.

    The folder is SPECC_CACHE_DIR, or specc in the user's cache folder. Clearing it costs time,
    never a result.

    Args:
        action: ls or clear.
        json: Print one JSON object on stdout.
    """
    folder = cache_folder()
    sizes = {part: _size(folder / part) for part in PARTS}
    if action == "clear":
        for part in PARTS:
            shutil.rmtree(folder / part, ignore_errors=True)
    if json:
        parts = {p: {"files": n, "bytes": b} for p, (n, b) in sizes.items()}
        output.emit({"folder": str(folder), "parts": parts, "cleared": action == "clear"})
        return output.EXIT_OK
    print(folder)
    done = "  cleared" if action == "clear" else ""
    for part, (files, size) in sizes.items():
        print(f"  {part:<10} {files:>6} files  {human_bytes(size):>10}{done}")
    return output.EXIT_OK


def cache_folder() -> Path:
    """The folder that backends write to; found again here because importing them imports torch."""
    chosen = os.environ.get("SPECC_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "specc"


def _size(folder: Path) -> tuple[int, int]:
    files = [p for p in folder.rglob("*") if p.is_file()]
    return len(files), sum(p.stat().st_size for p in files)
