"""`python -m bench drafters`, as its README says it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[2] / "tools"


def _bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "drafters", *map(str, arguments)]
    return subprocess.run(command, cwd=TOOLS, capture_output=True, text=True, check=False)


def test_every_arm_of_every_drafter_is_told(tiny_artifact: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    done = _bench(
        f"one={tiny_artifact}", f"two={tiny_artifact}", "--kinds", "copy", "--new-tokens", 8,
        "--repeats", 1, "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    arms = ["K=2", "K=4", "adaptive"]
    assert [(r["drafter"], r["arm"]) for r in rows] == [
        (n, a) for n in ("one", "two") for a in arms
    ]
    assert all(r["kind"] == "copy" and r["ratio"] > 0 for r in rows)
    # The same artifact twice: what was kept of fixed K is counted, not measured.
    kept = [r["tokens_per_draft"] for r in rows if r["arm"] != "adaptive"]
    assert kept[:2] == kept[2:]
    assert len(done.stdout.splitlines()) == 1 + len(rows)


def test_questions_are_asked_in_the_models_own_words(tiny_artifact: Path, tmp_path: Path) -> None:
    """Each kind and all together: rounds that made as many tokens as there are."""
    out = tmp_path / "rows.json"
    done = _bench(
        f"one={tiny_artifact}", "--kinds", "questions", "--new-tokens", 6, "--repeats", 1, "--out", out
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [r["kind"] for r in rows[::3]] == ["chat", "code", "summary", "all"]
    assert all(1 <= r["tokens_per_round"] <= 6 for r in rows)
    assert done.stdout.count("\n") == 1 + len(rows)


def test_what_is_no_artifact_is_refused() -> None:
    for wrong in (("artifact",), (), ("a=x", "--kinds", "prose")):
        done = _bench(*wrong)
        assert done.returncode == 2, done.stdout
        assert "SPECC-E0103" in done.stderr


def test_backends_are_compared_row_by_row(tiny_artifact: Path) -> None:
    """K = 0, 2 and 4: so many rows and one; the first is what the other is measured by."""
    arguments = ("backends", f"one={tiny_artifact}", f"two={tiny_artifact}", "--seconds", 0)
    command = [sys.executable, "-m", "bench", *map(str, arguments)]
    done = subprocess.run(command, cwd=TOOLS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [line[:2] for line in lines] == [[r, n] for r in "135" for n in ("one", "two")]
    assert [line[3] for line in lines if line[1] == "one"] == ["1.00"] * 3
