"""`python -m pages.quick_start`: follow docs/quick-start.md to the letter, as a newcomer would, and end with text.

In a fresh clone of what is committed here, with a home folder and an environment of its own. It installs, downloads
and compiles a real model, which takes minutes, so it is no part of the tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = "docs/quick-start.md"
KEPT = ("PIP_", "SSL_CERT_", "http_proxy", "https_proxy", "no_proxy", "CXX")
"""Beginnings of the names of variables that stay: where packages come from, and the compiler."""


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of the code on a page, in its order; languages are sh and python."""
    return re.findall(r"^```(sh|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def script(found: Sequence[tuple[str, str]], mark: str) -> str:
    """One shell's script, since a page's later lines live by what earlier ones set. `mark` N is printed before block N.

    The first line that fails ends it.
    """
    parts = ["set -e"]
    for number, (language, text) in enumerate(found):
        whole = text if language == "sh" else f"python - <<'END OF PROGRAM'\n{text}END OF PROGRAM\n"
        parts.append(f"echo; echo '{mark} {number}'\n{whole}")
    return "\n".join(parts)


def environment(home: Path) -> dict[str, str]:
    """Of somebody who has just logged in."""
    kept = {n: v for n, v in os.environ.items() if n.startswith(KEPT)}
    return {
        **kept, "HOME": str(home), "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(home),
    }  # fmt: skip


def follow(page: str, clone: Path, home: Path) -> list[str]:
    """What each block of `page` printed. Raises CalledProcessError if a line failed."""
    found, mark = blocks(page), "-- block of the page:"
    path = home / "quick-start.sh"
    path.write_text(script(found, mark))
    done = subprocess.run(
        ["bash", str(path)], cwd=clone, env=environment(home), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    done.check_returncode()
    return re.split(rf"^{mark} \d+\n", done.stdout, flags=re.MULTILINE)[1:]


def main() -> int:
    """The exit code: 0 if every line worked and the last one printed text."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        clone, home = Path(folder) / "specc", Path(folder) / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        try:
            printed = follow((clone / PAGE).read_text(), clone, home)
        except subprocess.CalledProcessError as error:
            print(f"{PAGE}: a line failed with exit code {error.returncode}", file=sys.stderr)
            return 1
    spoken = printed[-1].strip()
    print(
        f"{PAGE}: {len(printed)} blocks in {time.monotonic() - begun:.0f} s; the last said: {spoken!r}"
    )
    return 0 if spoken else 1


if __name__ == "__main__":
    sys.exit(main())
