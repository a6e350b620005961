"""`python -m bench advisor`: what a choice is worth, and the whole of it on a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import advisor
from tests.tools.test_measurement import made_up

TOOLS = Path(__file__).parents[2] / "tools"


def test_a_choice_is_judged_by_the_fastest() -> None:
    """Of 12 tokens a second, 11 are nearly all, and 10 are not; a slow turn slows all that is in it."""
    found = {
        "ngram": made_up({"plain": [8, 4, 8], "adaptive": [11, 5.5, 11]}),
        "suffix": made_up({"plain": [8, 4, 8], "adaptive": [12, 6, 12]}),
    }
    near, far = (advisor.row("copy", chosen, found) for chosen in ("ngram", "none"))
    assert near.speeds == pytest.approx({"none": 1.0, "ngram": 11 / 8, "suffix": 12 / 8})
    assert (near.fastest, near.share, near.close) == ("suffix", pytest.approx(11 / 12), True)
    assert (far.share, far.close) == (pytest.approx(8 / 12), False)
    assert "TOO SLOW" in advisor.line(far)
    assert advisor.verdict([near, far, near]).startswith("2 of 3 ")


def test_there_are_ten_sets() -> None:
    sets = advisor.sets()
    assert len(sets) == 10
    assert all(len(each) == 2 and all(p.text for p in each) for each in sets.values())


def test_the_command(tiny_model: Path, tiny_artifact: Path, tmp_path: Path) -> None:
    """Which choice is near enough depends on the machine: what is told of it must agree with itself."""
    (tmp_path / "ngram.specc").symlink_to(tiny_artifact)
    out = tmp_path / "rows.json"
    command = [
        sys.executable, "-m", "bench", "advisor", str(tiny_model), "--into", str(tmp_path), "--methods", "ngram",
        "--kinds", "chat,copy", "--short", "4", "--new-tokens", "6", "--repeats", "1", "--threads", "1",
        "--processor-time", "--out", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=TOOLS, capture_output=True, text=True, env=os.environ)
    assert done.returncode in (0, 1), done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [r["kind"] for r in rows] == ["chat", "copy"]
    assert {r["chosen"] for r in rows} <= {"none", "ngram"}
    for row in rows:
        assert row["share"] == row["speeds"][row["chosen"]] / max(row["speeds"].values())
    close = sum(r["share"] >= 0.9 for r in rows)
    assert done.stdout.splitlines()[-1].startswith(f"{close} of 2 ")
    assert done.returncode == (0 if close == 2 else 1)
