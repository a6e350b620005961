"""Progress: quiet for what is short, truthful for what is not."""

import io
import json
import re
import time

import pytest

from specc import progress
from specc.progress import JsonProgress, SilentProgress, TerminalProgress, human_bytes


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "WORTH_A_LINE", 0.05)
    monkeypatch.setattr(progress, "WORTH_ANNOUNCING", 0.1)


def test_short_phases_leave_no_line() -> None:
    stream = io.StringIO()
    report = TerminalProgress(stream)
    with report.phase("short"), report.phase("inner"):
        pass
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("quick")
def test_long_phases_tell_time_and_memory() -> None:
    stream = io.StringIO()
    report = TerminalProgress(stream, tick=0.01)
    with report.phase("outer"), report.phase("inner"):
        time.sleep(0.2)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "  inner ..."
    assert re.fullmatch(r"  inner +0\.\d s  peak \d+\.\d [MG]B", lines[1])
    assert re.fullmatch(r"outer +0\.\d s  peak \d+\.\d [MG]B", lines[2])
    assert "\x1b" not in stream.getvalue()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("plain", [False, True])
def test_a_terminal_is_updated_in_place(monkeypatch: pytest.MonkeyPatch, plain: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if plain:
        monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    report = TerminalProgress(stream, live=True, tick=0.01)
    with report.phase("lower"):
        time.sleep(0.2)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.count("\r\x1b[2Klower") > 1
    assert ("\x1b[2m" in text) is not plain


@pytest.mark.usefixtures("quick")
def test_a_phase_that_fails_says_so_and_lets_the_error_through() -> None:
    stream = io.StringIO()
    report = TerminalProgress(stream)
    with pytest.raises(ZeroDivisionError), report.phase("lower"):
        _fail_after(0.06)
    assert stream.getvalue().endswith("failed\n")
    with report.phase("again"):
        pass


def _fail_after(seconds: float) -> None:
    time.sleep(seconds)
    raise ZeroDivisionError


def test_notes() -> None:
    stream = io.StringIO()
    TerminalProgress(stream).note("hello")
    assert stream.getvalue() == "hello\n"


def test_json_lines() -> None:
    stream = io.StringIO()
    report = JsonProgress(stream)
    with report.phase("lower"):
        report.note("x")
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [e["event"] for e in events] == ["phase_begin", "note", "phase_end"]
    assert events[2]["peak_rss_bytes"] > 1e6
    assert all(e["schema"] == 1 for e in events)


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with SilentProgress().phase("x"):
        SilentProgress().note("y")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (134_500_000, "134.5 MB"), (2e12, "2.0 TB")]
)
def test_sizes(count: float, text: str) -> None:
    assert human_bytes(count) == text
