"""The compile cache: results that cost time and depend on nothing but what is in their names.

A folder for each kind of piece. Everything in it can be deleted at any time; everything read from it is compared with
its hash first, and what does not match is deleted and made again. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specc.errors import BackendError, UsageError

PARTS = ("artifacts", "objects", "headers", "leaves", "om", "tvm", "mlc")
"""The folders that may be trimmed and cleared. Nothing else in the cache folder is touched."""

DEFAULT_LIMIT = 10 * 10**9
_UNFINISHED = "tmp"
"""Begins the names of what is being written."""

_IN_USE = 3600.0
"""Seconds since its last use for which trimming leaves an entry alone: someone may be reading it."""

_PATIENCE = 600.0
"""Seconds to wait for another process that makes the same: it may be stopped (Ctrl-Z) and never end."""


def folder() -> Path:
    """SPECC_CACHE_DIR, or specc in the user's cache folder."""
    chosen = os.environ.get("SPECC_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "specc"


def limit() -> int:
    """Bytes that the cache may keep: SPECC_CACHE_LIMIT, as in 500M, 20G or 0, or 10 GB. Raises UsageError."""
    text = os.environ.get("SPECC_CACHE_LIMIT", "")
    if not text:
        return DEFAULT_LIMIT
    found = read_size(text)
    if found is None:
        raise UsageError(
            "SPECC-E0103", "SPECC_CACHE_LIMIT is no size", expected="a size such as 500M or 20G",
            found=text, cure="correct it, or unset it",
        )  # fmt: skip
    return found


def read_size(text: str) -> int | None:
    """Bytes of 500M, 20G, 1.5GB or 0; None for what is no size."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([kMGT]?)B?", text.strip())
    return None if found is None else int(float(found[1]) * 1000 ** " kMGT".index(found[2] or " "))


@contextmanager
def bypassed() -> Iterator[None]:
    """Within this context the cache is an empty folder, gone at the end."""
    before = os.environ.get("SPECC_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="specc-cache-") as name:
        os.environ["SPECC_CACHE_DIR"] = name
        try:
            yield
        finally:
            del os.environ["SPECC_CACHE_DIR"]
            if before is not None:
                os.environ["SPECC_CACHE_DIR"] = before


class Pieces:
    """Files by name, each with its hash beside it. Safe to use from several threads and processes."""

    def __init__(self, part: str) -> None:
        """Raises BackendError (SPECC-E0407) for a folder that cannot be written."""
        self.folder = folder() / part
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()
        except OSError as error:
            raise BackendError(
                "SPECC-E0407", "the compile cache cannot be written", where=str(self.folder),
                found=error.strerror or str(error), cure="set SPECC_CACHE_DIR to a folder you may write",
            ) from error  # fmt: skip

    def get(self, name: str, make: Callable[[Path], object]) -> Path:
        """The file `name`: as it was kept, or as `make` writes it to the path that it is given."""
        with _being_made(self.folder / name):
            if kept := self._kept(name):
                return kept
            with _made_elsewhere(self.folder / name):
                return self._kept(name) or self._make(name, make)

    def _kept(self, name: str) -> Path | None:
        path = self.folder / name
        seal = path.with_name(name + ".sha256")
        with contextlib.suppress(OSError):
            if seal.read_text() == sha256(path):
                for used in (path, seal):
                    os.utime(used)
                return path
        return None

    def _make(self, name: str, make: Callable[[Path], object]) -> Path:
        path = self.folder / name
        seal = path.with_name(name + ".sha256")
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=_UNFINISHED) as place:
            made = Path(place) / name
            make(made)
            # Equal names have equal contents, so it does not matter whose seal lies beside whose file.
            (Path(place) / seal.name).write_text(sha256(made))
            made.replace(path)
            (Path(place) / seal.name).replace(seal)
        return path


_locks: dict[Path, threading.Lock] = {}


def _being_made(path: Path) -> threading.Lock:
    """Held while a thread of this process makes `path`, so that another waits for it instead of making it twice."""
    return _locks.setdefault(path, threading.Lock())


@contextmanager
def _made_elsewhere(path: Path) -> Iterator[None]:
    """Within this context no other process makes `path`, unless it waited for long or cannot lock files there.

    Two that make the same do no harm, so a lock that is lost or a file of one that was killed is none either.
    """
    from filelock import FileLock

    lock = path.with_name(f"{_UNFINISHED}-lock-{path.name}")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # (a Timeout is one)
            held.enter_context(FileLock(lock, timeout=_PATIENCE, poll_interval=0.1))
            held.callback(lock.unlink, missing_ok=True)
        yield


def inductor_settings() -> list[str]:
    """What the environment tells torch's Inductor, on which generated code depends.

    Where Inductor keeps its own files is no part of that; besides, it sets that variable itself.
    """
    told = {k: v for k, v in os.environ.items() if k.startswith("TORCHINDUCTOR_")}
    told.pop("TORCHINDUCTOR_CACHE_DIR", None)
    return sorted(f"{k}={v}" for k, v in told.items())


def sha256(path: Path) -> str:
    """The hash of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class Entry:
    """A file, or a folder that is kept or dropped as one."""

    path: Path
    bytes: int
    used: float
    """When it was last of use, in seconds since 1970."""


def entries(part: str) -> list[Entry]:
    """What is kept in `part`."""
    found = []
    for path in (folder() / part).glob("*"):
        with contextlib.suppress(FileNotFoundError):  # trimmed by another process meanwhile
            files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
            size = sum(p.stat().st_size for p in files)
            found.append(Entry(path, size, path.stat().st_mtime))
    return found


def trim(most: int) -> int:
    """Delete what was not used for longest until at most `most` bytes are left; returns the bytes that went."""
    every = sorted((e for part in PARTS for e in entries(part)), key=lambda e: e.used)
    excess, gone, now = sum(e.bytes for e in every) - most, 0, time.time()
    for entry in every:
        idle = now - entry.used
        abandoned = entry.path.name.startswith(_UNFINISHED) and idle > 24 * _IN_USE
        if abandoned or (gone < excess and idle > _IN_USE):
            drop(entry.path)
            gone += entry.bytes
    return gone


def drop(path: Path) -> None:
    """Delete an entry at once: nobody finds half of it."""
    aside = path.with_name(f"{_UNFINISHED}-{os.getpid()}-{path.name}")
    with contextlib.suppress(OSError):
        path.rename(aside)
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink()
