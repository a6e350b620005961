"""What tests of several backends' files share."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from tests.backends.cuda.playing import build_double


@pytest.fixture(scope="session")
def libcuda(shared_folder: Path) -> Path:
    """The double of NVIDIA's driver."""
    made = shared_folder / "null/libcuda.so.1"
    with FileLock(str(shared_folder / "null.lock")):
        if not made.exists():
            made.parent.mkdir()
            build_double(made)
    return made
