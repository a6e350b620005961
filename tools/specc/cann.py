"""Where Huawei's CANN is, and which. Reads files alone: for `doctor`, and for who runs its compiler, atc."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
"""What CANN's set_env.sh sets, from 8.5 on and before."""

_RUNTIME = "libascendcl.so"
_OPERATORS = "opp/built-in/op_impl/ai_core/tbe/config"
"""Has a folder for each family of chips whose ops package is installed, as in ascend910b."""

_VERSIONS = (
    "compiler/version.info",
    "version.info",
    "toolkit/version.info",
    "ascend_toolkit_install.info",
)


@dataclass(frozen=True)
class Cann:
    """An installed toolkit. `version` is empty where no file says it."""

    atc: Path
    home: Path | None
    version: str

    def lacks_operators(self, soc: str) -> str:
        """Which families of chips have operators here, if that of `soc` has none; empty if it has, or nobody can know.

        From CANN 8.5 on they come in packages of their own, which stand beside the toolkit.
        """
        folder = self.home / _OPERATORS if self.home else None
        if folder is None or not folder.is_dir():
            return ""
        families = sorted(f.name for f in folder.iterdir() if f.is_dir())
        return (
            ""
            if any(soc.lower().startswith(f) for f in families)
            else ", ".join(families) or "none"
        )

    def __str__(self) -> str:
        return f"CANN {self.version or 'of unknown version'}, {self.atc}"


def find_cann(environment: Mapping[str, str] | None = None) -> Cann | None:
    """The toolkit that this environment points to: by its own variables, else by `atc` on PATH."""
    env = os.environ if environment is None else environment
    for name in _HOMES:
        if home := env.get(name):
            atc = Path(home) / "bin" / "atc"
            if os.access(atc, os.X_OK):
                return Cann(atc, Path(home), _version(Path(home)))
    if found := shutil.which("atc", path=env.get("PATH", "")):
        home_of = Path(found).resolve().parent.parent
        return Cann(Path(found), home_of, _version(home_of))
    return None


def find_runtime(environment: Mapping[str, str] | None = None) -> Path | None:
    """libascendcl, which runs models: in CANN's folder, or where the dynamic linker is told to look."""
    env = os.environ if environment is None else environment
    folders = [Path(env[name]) / "lib64" for name in _HOMES if env.get(name)]
    folders += [Path(f) for f in env.get("LD_LIBRARY_PATH", "").split(":") if f]
    return next((f / _RUNTIME for f in folders if (f / _RUNTIME).is_file()), None)


def _version(home: Path) -> str:
    for name in _VERSIONS:
        try:
            text = (home / name).read_text(errors="replace")
        except OSError:
            continue
        if found := re.search(r"^\s*version\s*=\s*([\w.+-]+)", text, re.IGNORECASE | re.MULTILINE):
            return found[1]
    return ""
