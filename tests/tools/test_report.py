"""The page of `specc bench --report`: well formed, self-contained, and its plots are to scale."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specc import cli
from specc.report import page
from specc.runtime.stats import LengthStats, PositionStats
from tests.runtime.manifests import document, parse
from tests.tools.test_measurement import Measurements, made_up, run

PHASES = {"draft_s": 1.0, "verify_s": 3.0, "other_s": 0.0}
SPEEDS = {"plain": [10.0, 10.0], "K=2": [20.0, 24.0], "K=4": [5.0, 5.0], "adaptive": [19.0, 19.0]}


def drawn(text: str) -> tuple[ElementTree.Element, dict[str, ElementTree.Element]]:
    """The page, and its plots by how their captions begin."""
    body = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    captions = [
        (re.split(r": (?:of|what) ", f.findtext("figcaption", ""))[0], f)
        for f in body.iter("figure")
    ]
    assert len(dict(captions)) == len(captions)
    return body, dict(captions)


def widths(figure: ElementTree.Element) -> list[float]:
    return [float(rect.get("width", "")) for rect in figure.iter("rect")]


def test_bars_are_to_scale_and_stand_beside_plain() -> None:
    _, figures = drawn(page(parse(document()), made_up(SPEEDS), PHASES, "", semantic=True))
    figure = figures["Tokens a second"]
    plain, *others = widths(figure)
    assert [w / plain for w in others] == pytest.approx([2.2, 0.5, 1.9], rel=1e-3)
    texts = [t.text for t in figure.iter("text")]
    assert texts[::2] == ["plain", "K=2", "K=4", "adaptive"]
    assert texts[3] == "22.0 (2.20 of plain)"
    (whisker,) = (p.get("d", "") for p in figure.iter("path"))
    start, end = map(float, re.findall(r"M(\S+) .*H(\S+)", whisker)[0])
    left = float(next(figure.iter("rect")).get("x", ""))
    assert ((start - left) / plain, (end - left) / plain) == pytest.approx((2.0, 2.4), rel=1e-3)
    draft, verify, other = widths(figures["Seconds, of the widest K"])
    assert (verify / draft, other) == pytest.approx((3, 0), rel=1e-3)


def test_acceptance_and_round_costs() -> None:
    positions = (PositionStats(40, 30), PositionStats(30, 15))
    runs = [
        run("plain", 0, 100, 1.0, per_k=(LengthStats(0, 100, 1.0, 100),)),
        run("K=2", 0, 100, 1.0, by_position=positions, per_k=(LengthStats(2, 50, 1.0, 120),)),
        *(run(arm, 0, 100, 1.0) for arm in ("K=4", "adaptive")),
    ]
    _, figures = drawn(page(parse(document()), Measurements(runs), PHASES, "", semantic=True))
    acceptance = figures["Acceptance by position"]
    heights = {
        text.text: float(text.get("y", "")) - 4 for text in acceptance.iter("text") if "%" in (text.text or "")
    }  # fmt: skip
    assert set(heights) == {"0%", "25%", "50%", "75%", "100%"}
    dots = [float(dot.get("cy", "")) for dot in acceptance.iter("circle")]
    assert dots == pytest.approx([heights["75%"], heights["50%"]])
    costs, gives = widths(figures["A round"])
    assert gives / costs == pytest.approx(2.4 / 2.0, rel=1e-3)


def test_names_cannot_break_out_and_nothing_is_fetched() -> None:
    hostile = document()
    hostile["name"] = "</title><script>alert(1)</script>&"
    text = page(parse(hostile), made_up(SPEEDS), PHASES, "a < b", semantic=False)
    body, _ = drawn(text)
    assert body.findtext("body/h1") == hostile["name"]
    assert "script" not in {e.tag for e in body.iter()}
    assert "NOT SEMANTIC" in text
    assert not re.search(r"https?:|src=|href=|url\(|@import", text)


def test_the_verb_writes_it(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    arguments = ["bench", str(tiny_artifact), "--max-tokens", "6", "--repeats", "1", "--report"]
    assert cli.main([*arguments, str(file)]) == 0
    body, figures = drawn(file.read_text())
    assert {f"Tokens a second: {kind}" for kind in ("chat", "code", "copy")} <= {
        f.findtext("figcaption") for f in body.iter("figure")
    }
    assert len(widths(figures["Tokens a second"])) == 4
    assert body.findtext("body/p") in capsys.readouterr().out
    assert cli.main([*arguments, str(tmp_path / "none" / "r.html")]) == 2
