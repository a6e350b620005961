"""`python -m bench gallery`: pages of real runs, and an index whose links lead to them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]


def _links(index: Path) -> list[Path]:
    return [index.parent / link for link in re.findall(r"\]\(([^)]+)\)", index.read_text())]


def test_pages_and_index(tiny_artifact: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "bench", "gallery", f"one={tiny_artifact}", f"two={tiny_artifact}", "--docs",
        str(tmp_path), "--about", "A machine.", "--max-tokens", "4", "--repeats", "1",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT / "tools", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    index = tmp_path / "gallery.md"
    assert done.stdout.strip() == str(index)
    pages = _links(index)
    assert [p.name for p in pages] == ["one.html", "two.html"]
    for page in pages:
        body = ElementTree.fromstring(page.read_text().removeprefix("<!DOCTYPE html>"))
        verdict = body.findtext("body/p")
        assert verdict is not None
        assert verdict in index.read_text()


def test_an_artifact_that_is_none_is_refused(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "bench", "gallery", "one=nowhere", "--docs", str(tmp_path), "--about", "x"
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT / "tools", capture_output=True, text=True, check=False)
    assert (done.returncode, "SPECC-E0501" in done.stderr) == (1, True)
    assert not (tmp_path / "gallery.md").exists()


def test_the_gallery_of_the_site_is_whole_and_small() -> None:
    pages = _links(ROOT / "docs/gallery.md")
    assert {p.name for p in pages} == {p.name for p in (ROOT / "docs/gallery").iterdir()}
    assert sum(p.stat().st_size for p in pages) < 100_000
