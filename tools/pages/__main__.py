"""`python -m pages`: write the pages of docs/ that are made from the code. `--check` says which are not up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from pages import checkpoints, errors, support

ROOT = Path(__file__).parents[2]
PAGES = {"errors.md": errors.page, "checkpoints.md": checkpoints.page, "support.md": support.page}
NOTE = "<!-- Made from the code by `python -m pages`: change that, not this. -->\n\n"


def main(root: Path = ROOT, *, check: bool = False) -> int:
    """Write what is not up to date, or with `check` only name it. Returns the exit code."""
    old = 0
    for name, page in PAGES.items():
        path = root / "docs" / name
        text = NOTE + page(root).rstrip() + "\n"
        if path.is_file() and path.read_text() == text:
            continue
        old += 1
        print(
            f"{path.relative_to(root)} {'is not up to date: python -m pages' if check else 'written'}"
        )
        if not check:
            path.write_text(text)
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
