"""How many cores a draft service works on, where others want them too."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

LOOK_S = 1.0
_GROW_AFTER = 5
"""Looks in a row that find more room before a core is taken back: what was given up is soon asked for again."""
_NOISE = 0.25
"""Of a core: what a system does beside."""


@dataclass(frozen=True)
class Load:
    """Of the chosen cores since the look before, in cores' worth of time: what this process took, and others."""

    ours: float
    others: float


class CoreController:
    """Gives cores up one by one while all of them are busy and others want some; `least` are kept.

    Busy is more than `threshold` of the cores' time. What others take is their share, rounded up: where two processes
    want one core, each sees the other one.
    """

    def __init__(self, most: int, least: int, threshold: float) -> None:
        self._most, self._least, self._threshold = most, least, threshold
        self._more = 0
        self.cores = most

    def look(self, load: Load) -> int:
        """Cores to work on from now on."""
        taken = int(load.others / self._threshold)
        if load.ours + load.others > self._threshold * self._most:
            taken = max(taken, math.ceil(load.others - _NOISE))
        wanted = min(max(self._most - taken, self._least), self._most)
        self._more = self._more + 1 if wanted > self.cores else 0
        if wanted < self.cores:
            self.cores -= 1
        elif self._more >= _GROW_AFTER:
            self.cores, self._more = self.cores + 1, 0
        return self.cores


class Meter:
    """Reads what the chosen CPUs did, from Linux' /proc/stat, and what of it was this process."""

    def __init__(self, cpus: Collection[int], stat: Path = Path("/proc/stat")) -> None:
        self._names, self._stat = {f"cpu{n}" for n in cpus}, stat
        self._before = self._now()

    def read(self) -> Load:
        """Since it was read last."""
        before, self._before = self._before, self._now()
        spent, busy, ours = (b - a for a, b in zip(before, self._before, strict=True))
        if spent <= 0:
            return Load(0.0, 0.0)
        each = len(self._names) / spent
        return Load(ours * each, max(0.0, busy - ours) * each)

    def _now(self) -> tuple[float, float, float]:
        """Seconds so far: of the CPUs together, of them at work, and of this process."""
        tick = os.sysconf("SC_CLK_TCK")
        lines = [line.split() for line in self._stat.read_text().splitlines()]
        # user nice system idle iowait irq softirq steal (proc_stat(5)); the guests' are in user
        times = [list(map(int, line[1:9])) for line in lines if line and line[0] in self._names]
        spent = sum(map(sum, times)) / tick
        idle = sum(each[3] + each[4] for each in times) / tick
        own = os.times()
        return spent, spent - idle, own.user + own.system


def follow(controller: CoreController, meter: Meter, use: Callable[[int], None]) -> None:
    """Look every second, in a thread of its own, for as long as the process lives."""

    def work() -> None:
        cores = controller.cores
        while True:
            time.sleep(LOOK_S)
            if (now := controller.look(meter.read())) != cores:
                use(now)
                cores = now

    threading.Thread(target=work, name="specc-cores", daemon=True).start()
