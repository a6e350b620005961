"""The page of public drafters: `data/drafters.json` as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_INTRO = """\
# Public drafters

Checkpoints that were trained as drafters for one target each, as specc knows them. The list is a help, not a limit:
`--drafter` takes any folder or hub id of a format that specc reads. `specc compile MODEL --method eagle3` without
`--drafter` names those for MODEL. That a checkpoint is listed says that it is public, not that it was measured here.
"""


def page(root: Path) -> str:
    """docs/checkpoints.md for the list at `root`."""
    known: Mapping[str, Any] = json.loads((root / "tools/specc/data/drafters.json").read_text())
    lines = [_INTRO, f"Source: {known['source']}.\n"]
    facts = {"model", "architecture", "hidden_size", "layers"}
    for method, trainer in known["train"].items():
        rows = [t for t in known["targets"] if method in t]
        lines += [f"## {method}\n", f"To train one: {trainer}.\n"]
        if rows:
            lines += ["| target | architecture | drafters |", "|---|---|---|"]
            lines += [
                f"| {t['model']} | {t['architecture']} | {', '.join(t[method])} |" for t in rows
            ]
            lines.append("")
    unknown = {k for t in known["targets"] for k in t} - facts - set(known["train"])
    assert not unknown, unknown
    return "\n".join(lines)
