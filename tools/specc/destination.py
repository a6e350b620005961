"""Where an artifact goes: it is there whole, or what was there before still is."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specc.errors import BackendError, UsageError


@contextmanager
def whole_or_nothing(output: Path, force: bool) -> Iterator[Path]:
    """A folder beside `output` that takes its place at the end, and is gone if anything fails.

    An artifact that was there stays until the new one is whole. Raises BackendError (SPECC-E0408) for a full disk.
    """
    parent = output.resolve().parent
    folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=parent))
    aside = folder.with_name(folder.name + ".old")
    try:
        yield folder
        folder.chmod(0o755)
        if output.exists():
            if not force:
                raise UsageError(
                    "SPECC-E0123", f"{output} has appeared meanwhile", cure="add --force, or choose another -o"
                )  # fmt: skip
            output.rename(aside)
        folder.rename(output)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise BackendError(
            "SPECC-E0408", "the disk is full; nothing was left half-written",
            where=str(error.filename or parent), found=f"{shutil.disk_usage(parent).free} bytes free at {parent}",
            cure="free some space (specc cache clear), or choose another -o or SPECC_CACHE_DIR",
        ) from error  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def check_folder(output: Path, mark: str, what: str, *, force: bool) -> None:
    """Raise UsageError if a folder that holds a file `mark`, and is called `what`, could not be put there."""
    if not output.resolve().parent.is_dir():
        raise UsageError(
            "SPECC-E0124", f"there is no folder {output.resolve().parent}", cure="make it, or choose another -o"
        )  # fmt: skip
    if output.is_symlink():
        raise UsageError(
            "SPECC-E0125", f"{output} is a symbolic link, so it is not replaced", cure="name the folder itself"
        )  # fmt: skip
    if not os.access(output.resolve().parent, os.W_OK):
        raise UsageError(
            "SPECC-E0126", f"{output.resolve().parent} cannot be written", cure="choose another -o"
        )
    if not output.exists():
        return
    if not force:
        raise UsageError(
            "SPECC-E0123", f"{output} is there already", cure="add --force, or choose another -o"
        )
    ours = (output / mark).is_file() or (output.is_dir() and not any(output.iterdir()))
    if not ours:
        raise UsageError(
            "SPECC-E0125",
            f"{output} is not {what}, so it is not replaced",
            cure="choose another -o",
        )
