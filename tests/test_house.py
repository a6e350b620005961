"""The tools that keep the house in order, as part of the one test command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["importlinter.cli"],
    ],
    ids=["lint", "format", "types", "imports"],
)
def test_in_order(command: list[str]) -> None:
    if command == ["importlinter.cli"]:
        code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
        arguments = [sys.executable, "-c", code]
    else:
        arguments = [sys.executable, "-m", *command]
    result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
