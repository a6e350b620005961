"""Cores that others want are given up, slowly taken back; and what others want is read right."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from specc.core_controller import CoreController, Load, Meter
from specc.errors import RequestError
from specc.runtime import Artifact
from tests.faults.helpers import plain


def told(controller: CoreController, *loads: tuple[float, float]) -> list[int]:
    return [controller.look(Load(*load)) for load in loads]


def test_alone_it_has_them_all() -> None:
    assert told(CoreController(4, 1, 0.95), (4, 0), (4, 0.2), (0, 0)) == [4, 4, 4]


def test_it_gives_way_while_all_are_busy() -> None:
    """Others with two threads on four cores, of which it leaves them first one and then the other."""
    controller = CoreController(4, 1, 0.95)
    assert told(controller, (2.7, 1.3), (2.2, 1.8), (2, 2), (2, 2)) == [3, 2, 2, 2]


def test_not_while_there_is_room() -> None:
    """What others take is no reason, until they take whole cores."""
    assert told(CoreController(4, 1, 0.95), (1, 0.9), (0, 0.94)) == [4, 4]
    assert told(CoreController(4, 1, 0.95), (1, 1.0)) == [3]


@pytest.mark.parametrize(("least", "left"), [(1, 1), (3, 3), (4, 4)])
def test_it_keeps_its_least(least: int, left: int) -> None:
    assert told(CoreController(4, least, 0.95), *[(1.0, 3.0)] * 6)[-1] == left


def test_the_threshold() -> None:
    busy = [(2.0, 1.0)] * 3  # three of four cores' time
    assert told(CoreController(4, 1, 0.7), *busy)[-1] == 3
    assert told(CoreController(4, 1, 1.0), (2.0, 0.9), (2.0, 0.9)) == [4, 4]


def test_it_takes_them_back_slowly() -> None:
    controller = CoreController(4, 1, 0.95)
    told(controller, (1, 3), (1, 3))
    assert told(controller, *[(1, 0)] * 10) == [2, 2, 2, 2, 3, 3, 3, 3, 3, 4]
    told(controller, (1, 3))
    assert told(controller, *[(1, 0)] * 4, (1, 3), *[(1, 0)] * 5) == [3, 3, 3, 3, 2, 2, 2, 2, 2, 3]


def test_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: two CPUs of three, ten seconds each, of which 15 s at work, 4 of them this process's."""
    tick, stat = os.sysconf("SC_CLK_TCK"), tmp_path / "stat"

    def write(*rows: str) -> None:
        named = [f"cpu{n} {row}" for n, row in enumerate(rows)]
        stat.write_text("\n".join(["cpu 1 2 3 4 5 6 7 8 0 0", *named, "intr 5 6", "ctxt 7"]))

    write(*["0 0 0 0 0 0 0 0 0 0"] * 3)
    spent = iter([os.times_result((1.0, 1.0, 0, 0, 0)), os.times_result((4.0, 2.0, 0, 0, 0))])
    monkeypatch.setattr(os, "times", lambda: next(spent))
    meter = Meter({0, 2}, stat)
    write(
        f"{3 * tick} {tick} {2 * tick} {2 * tick} {tick} 0 {tick} 0 9 9",
        f"0 0 0 {10 * tick} 0 0 0 0 0 0",
        f"{8 * tick} 0 0 {2 * tick} 0 0 0 0 0 0",
    )
    load = meter.read()
    assert load.ours == pytest.approx(0.4)
    assert load.others == pytest.approx(1.1)


def test_this_machine() -> None:
    """A process that spins for a while took about that."""
    meter = Meter(os.sched_getaffinity(0))
    until = time.process_time() + 0.3
    begun = time.monotonic()
    while time.process_time() < until:
        pass
    time.sleep(0.1)  # (the kernel counts in ticks)
    wall = time.monotonic() - begun
    assert meter.read().ours == pytest.approx(0.3 / wall, rel=0.3)


def test_fewer_threads_say_the_same(tiny_artifact: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_artifact, tmp_path / "a.specc")  # whose threads nobody else chooses
    with Artifact.load(tmp_path / "a.specc", 2) as opened:
        prompt = list(range(7, 60))
        wanted = plain(opened, prompt, 40)
        with opened.session() as session:
            session.configure(max_tokens=40, ignore_eos=True)
            session.append(prompt)
            said = [session.next()]
            before = session.stat("thread_syncs")
            opened.use_threads(1)
            said += list(session.iterate())
            assert tuple(said) == wanted
            assert session.stat("thread_syncs") == before
        opened.use_threads(2)
        assert plain(opened, prompt, 40) == wanted
        for count in (0, 3, -1):
            with pytest.raises(RequestError, match="SPECC-E0601"):
                opened.use_threads(count)
