"""Whole artifacts that are kept: asking for the same again copies one, without importing torch.

An artifact is found by everything that it depends on: the content of the model's files, what was asked for, and the
versions of all that took part. It is a copy (sharing blocks where the file system can), never a link, so that nothing
done to one artifact shows in another; and it is compared with its hashes on the way.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import specc
from specc import cache
from specc.destination import whole_or_nothing
from specc.locate import files_of, locate
from specc.method_table import AUTO
from specc.progress import NotingProgress, Progress, human_bytes, peak_rss
from specc.request import CompileReport, CompileRequest, backend_of, isa_of, provenance_of

_PART = "artifacts"
_REPORT = "report.json"
_MANIFEST = "manifest.json"
_BACKENDS = ("inductor", "reference")
"""Those whose sources are specc's own; what another package generates may change without a new version."""

_PACKAGES = ("gguf", "numpy", "safetensors", "tokenizers", "torch", "transformers")

_BLOCK = 1 << 22
_FICLONE = 0x40049409
"""The ioctl that makes a file share another's blocks (linux/fs.h)."""


def compile_kept(request: CompileRequest, progress: Progress) -> CompileReport:
    """`specc.driver.compile_model`, unless the same was compiled before. Raises what that raises."""
    began = time.monotonic()
    key = None
    # (A method that was measured depends on the machine and on what else it did then: measure again.)
    if backend_of(request) in _BACKENDS and request.method != AUTO:
        with progress.phase("look for the same artifact"):
            key = key_of(request)
            known = _fetch(key, request)
        if known is not None:
            progress.note(
                "the same was compiled before: copied from the cache (--no-cache compiles anew)"
            )
            for note in known.notes:  # true of the copy as well
                progress.note(note)
            seconds = round(time.monotonic() - began, 1)
            return replace(known, path=request.output, seconds=seconds, peak_rss_bytes=peak_rss())
    from specc.driver import compile_model  # imports torch

    noting = NotingProgress(progress)
    report = replace(compile_model(request, noting), notes=tuple(noting.notes))
    if key is not None and _fits(report, progress) and key == key_of(request):
        _keep(key, report, progress)  # (a model that changed meanwhile was hashed as it is no more)
    return report


def key_of(request: CompileRequest) -> str:
    """A hash over everything that an artifact depends on. Raises ModelError for a model that is not there."""
    wanted = asdict(request)
    for outside in ("output", "force", "model", "drafter", "calibration"):
        del wanted[outside]
    compiler = shutil.which(os.environ.get("CXX", "g++")) or ""
    facts = [
        wanted, isa_of(request), _model(request.model), request.drafter and _model(request.drafter),
        request.calibration and cache.sha256(request.calibration), _source(), sys.version,
        [f"{name} {version(name)}" for name in _PACKAGES],
        compiler, compiler and _first_line([compiler, "--version"]),
        cache.inductor_settings(),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _model(spec: str) -> list[str]:
    """The name and the content of a model."""
    path = locate(spec).resolve()
    return [path.name, *(f"{p.name} {cache.sha256(p)}" for p in files_of(path))]


@lru_cache
def _source() -> str:
    """Everything in the package: passes, importers, templates, the runtime's sources."""
    digest = hashlib.sha256()
    for folder, inside, files in os.walk(Path(specc.__file__).parent, followlinks=True):
        inside.sort()
        for name in sorted(files):
            if not name.endswith(".pyc"):
                digest.update(f"{name} {cache.sha256(Path(folder, name))}\n".encode())
    return digest.hexdigest()


def _first_line(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return (result.stdout.splitlines() or [""])[0]


def _fetch(key: str, request: CompileRequest) -> CompileReport | None:
    """Copy the artifact `key` to `request.output`, if it is kept and undamaged."""
    entry = cache.folder() / _PART / key
    if not entry.is_dir():
        return None
    try:
        kept = json.loads((entry / _REPORT).read_text())
        os.utime(entry)
        with whole_or_nothing(request.output, request.force) as folder:
            _copy(entry / _MANIFEST, folder / _MANIFEST, kept.pop("manifest"))
            manifest = json.loads((folder / _MANIFEST).read_text())
            for name, file in manifest["files"].items():
                _copy(entry / name, folder / name, file["sha256"])
            manifest["provenance"].update(provenance_of(request))
            (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        lines = {name: tuple(kept[name]) for name in ("why", "notes")}
        return CompileReport(request.output, **{**kept, **lines})
    except OSError:
        return None  # trimmed meanwhile, or no room for a copy, which compiling will say better
    except (ValueError, KeyError, TypeError):
        cache.drop(entry)
        return None


def _fits(report: CompileReport, progress: Progress) -> bool:
    limit = cache.limit()
    if report.bytes <= limit // 2:
        return True
    progress.note(
        f"not kept in the cache: {human_bytes(report.bytes)} is over half of its {human_bytes(limit)} "
        "(SPECC_CACHE_LIMIT)"
    )
    return False


def _keep(key: str, report: CompileReport, progress: Progress) -> None:
    """Put a copy into the cache: nothing depends on it."""
    part = cache.folder() / _PART
    place = None
    try:
        part.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=part, prefix="tmp"))
        manifest = json.loads((report.path / _MANIFEST).read_text())
        for name, file in manifest["files"].items():
            _copy(report.path / name, place / name, file["sha256"])
        shutil.copyfile(report.path / _MANIFEST, place / _MANIFEST)
        kept: dict[str, Any] = asdict(report)
        del kept["path"]
        kept["manifest"] = cache.sha256(place / _MANIFEST)
        (place / _REPORT).write_text(json.dumps(kept))
        cache.drop(part / key)  # what was there could not be used
        place.rename(part / key)
        cache.trim(cache.limit())
    except (OSError, ValueError) as error:
        progress.note(f"not kept in the cache: {error}")
    finally:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)


def _copy(source: Path, target: Path, expected: str) -> None:
    """Copy a file whose hash is known. Raises ValueError if it is another, and OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as old, target.open("wb") as new:
        shared = _share(old.fileno(), new.fileno())
        for block in _blocks(old):
            digest.update(block)
            if not shared:
                new.write(block)
    shutil.copymode(source, target)
    if digest.hexdigest() != expected:
        raise ValueError(f"{source} is damaged")


def _share(old: int, new: int) -> bool:
    """Make the empty file `new` share the blocks of `old`, on file systems that can."""
    try:
        fcntl.ioctl(new, _FICLONE, old)
    except OSError:
        return False
    return True


def _blocks(file: Any) -> Iterable[bytes]:
    return iter(lambda: file.read(_BLOCK), b"")
