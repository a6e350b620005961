"""How the target's caches lie on several devices, and what that costs each of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Way(StrEnum):
    """What of a cache [heads, rows, width] a device holds."""

    ROWS = "rows"
    """Consecutive positions of every head: devices attend to their part, and parts are merged (log-sum-exp)."""
    HEADS = "heads"
    """All positions of some heads."""


@dataclass(frozen=True)
class ShardCost:
    """What a way costs each device in a call of one new token, with caches as long as they may be.

    `exchanges`: all-gathers that wait for each other, one for each attention. `bytes_received`: of all of them.
    `cache_bytes`: keys and values that it reads. `multiply_adds`: of its attention. All other work, the weights'
    too, every device does alike. `refused`: why the model cannot be cut so; then the numbers are 0.
    """

    way: Way
    exchanges: int = 0
    bytes_received: int = 0
    cache_bytes: int = 0
    multiply_adds: int = 0
    refused: str = ""

    def link_microseconds(self, gbps: float) -> float:
        """Time on a link of `gbps` gigabits a second, its latency left out."""
        return self.bytes_received * 8 / (gbps * 1e3)


@dataclass(frozen=True)
class Sharding:
    """`count` devices, the chosen way, and the costs of every way."""

    count: int
    way: Way
    costs: tuple[ShardCost, ...]

    @property
    def cost(self) -> ShardCost:
        """Of the chosen way."""
        return next(c for c in self.costs if c.way is self.way)
