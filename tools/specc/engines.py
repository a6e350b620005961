"""Opens an artifact with the engine that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specc.errors import ArtifactError
from specc.runtime import Artifact, Manifest

if TYPE_CHECKING:
    from specc.backends.reference.engine import ReferenceEngine


def open_any(path: Path, threads: int = 0) -> Artifact | ReferenceEngine:
    """Libspecc for compiled artifacts, plain torch for reference ones."""
    if Manifest.read(path).backend == "reference":
        from specc.backends.reference.engine import ReferenceEngine

        return ReferenceEngine(path)
    return Artifact.load(path, threads)


def open_compiled(path: Path, threads: int = 0) -> Artifact:
    """An artifact with sessions; raises ArtifactError (SPECC-E0412) for a reference one."""
    if Manifest.read(path).backend == "reference":
        raise ArtifactError(
            "SPECC-E0412", "a reference artifact only runs", where=str(path),
            expected="an artifact of --backend inductor", cure="use `specc run`, or compile with --backend inductor",
        )  # fmt: skip
    return Artifact.load(path, threads)
