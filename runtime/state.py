"""What a session allocates: state buffers, and the arena that they lie in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import mul

from specc.runtime.fields import DTYPE_BYTES, Field, damaged

MOST_BYTES = 1 << 46
"""Of state; the engine draws the same line."""


@dataclass(frozen=True)
class StateBuffer:
    """A tensor of a session."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    owner: str
    zone: str
    bytes: int


@dataclass(frozen=True)
class Zone:
    """`bytes` of the arena from `offset` on, of which buffers and guards take `used`; `buffers`: where each begins."""

    name: str
    offset: int
    bytes: int
    used: int
    buffers: Mapping[str, int]


@dataclass(frozen=True)
class Plan:
    """A layout for texts of up to `rows` positions. A page before each zone and after the last cannot be touched."""

    rows: int
    bytes: int
    zones: tuple[Zone, ...]


@dataclass(frozen=True)
class Arena:
    """One allocation. `split`: as it was asked for; `plans`: the shortest texts first, all of them last.

    `page` and `canary`: bytes of the guards between zones and between buffers. `writes`: how many were proved to stay
    in their buffers.
    """

    split: str
    page: int
    canary: int
    writes: int
    plans: tuple[Plan, ...]


def read_state(at: Field) -> StateBuffer:
    """One buffer of the manifest; raises ArtifactError (SPECC-E0502)."""
    dtype, shape = at["dtype"].dtype(), at["shape"].integers(0)
    size = at["bytes"].integer(0)
    needed = reduce(mul, shape, DTYPE_BYTES[dtype])
    if size != needed:
        raise damaged(f"{at.path}.bytes", f"{needed}, by dtype and shape", str(size))
    return StateBuffer(
        at["name"].string(), dtype, shape,
        at.get("owner").string(default=""), at.get("zone").string(default=""), size,
    )  # fmt: skip


def read_arena(at: Field, state: tuple[StateBuffer, ...], context: int) -> Arena | None:
    """The arena of a manifest whose texts have `context` positions, None in those of before.

    Raises ArtifactError (SPECC-E0502) for a plan that does not hold every buffer once.
    """
    if at.value is None:
        return None
    guard = at["guard"]
    plans = []
    for item in at["plans"].items():
        zones = tuple(_zone(zone) for zone in item["zones"].items())
        placed = [name for zone in zones for name in zone.buffers]
        if sorted(placed) != sorted(b.name for b in state):
            raise damaged(f"{item.path}.zones", "every buffer once", str(placed))
        plans.append(Plan(item["rows"].integer(1), item["bytes"].integer(1, MOST_BYTES), zones))
    rows = [plan.rows for plan in plans]
    if not plans or rows != sorted(set(rows)) or rows[-1] != context:
        raise damaged(f"{at.path}.plans[].rows", f"ascending rows that end in {context}", str(rows))
    return Arena(
        at["split"].string(), guard["page"].integer(1), guard["canary"].integer(1),
        at["writes"].integer(0), tuple(plans),
    )  # fmt: skip


def _zone(at: Field) -> Zone:
    places = {name: offset.integer(0, MOST_BYTES) for name, offset in at["buffers"].entries()}
    return Zone(
        at["name"].string(), at["offset"].integer(1, MOST_BYTES), at["bytes"].integer(1, MOST_BYTES),
        at["used"].integer(1, MOST_BYTES), places,
    )  # fmt: skip
