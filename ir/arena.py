"""Where state buffers lie: one allocation, with zones for the target, the drafter and taps, and guards between them.

    page | canary k.0 canary v.0 canary ... canary | page | canary ... canary | page
         '------------- zone target ---------------'      '-- zone drafter --'

Pages between zones cannot be read or written: who goes there is stopped by the machine. A canary is a few bytes of a
known pattern between two buffers: who wrote past one of them is found out when it is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PAGE = 4096
"""Bytes of a guard between zones; zones begin and end on its multiples."""

CANARY = 128
"""Bytes of a guard between buffers. Buffers begin on its multiples."""

NPU_CANARY = 512
"""The same on an NPU, which reads fastest what begins on so many bytes (CANN 8.5, "Using 512-Byte Alignment for the GM
Address"). What aclrtMalloc's page asks of parts of one allocation holds then too: 64 bytes, and 32 free behind each."""

LONG_CONTEXT = 7200
"""Tokens up to which a text has the plan for short ones."""

ZONES = ("target", "drafter", "taps")


@dataclass(frozen=True)
class Zone:
    """`bytes` from `offset` of the arena on; `buffers` lie at these of its offsets, and end where the zone ends."""

    name: str
    offset: int
    bytes: int
    used: int
    buffers: Mapping[str, int]


@dataclass(frozen=True)
class Plan:
    """A layout for texts of up to `rows` positions."""

    rows: int
    bytes: int
    zones: tuple[Zone, ...]


@dataclass(frozen=True)
class Arena:
    """`plans`, the shortest texts first. `split`: as asked for; `writes` were proved to stay in their buffers.

    `canary`: bytes of a guard between buffers.
    """

    split: str
    plans: tuple[Plan, ...]
    writes: int
    canary: int = CANARY


def needed(sizes: Mapping[str, int], canary: int = CANARY) -> int:
    """Bytes of a zone that holds buffers of these sizes and their canaries, in whole pages."""
    return up(_used(sizes, canary), PAGE)


def lay_out(
    zones: Sequence[tuple[str, Mapping[str, int], int]], rows: int, canary: int = CANARY
) -> Plan:
    """Zones one after the other: name, bytes of each buffer, bytes in all.

    What a zone holds lies at its end, where the guard page follows.
    """
    laid, at = [], PAGE
    for name, sizes, size in zones:
        used, offsets = _used(sizes, canary), {}
        place = at + size - used + canary
        for buffer, held in sizes.items():
            offsets[buffer] = place
            place += up(held, canary) + canary
        laid.append(Zone(name, at, size, used, offsets))
        at += size + PAGE
    return Plan(rows, at, tuple(laid))


def up(count: int, unit: int) -> int:
    """The least multiple of `unit` that is no less than `count`."""
    return -(-count // unit) * unit


def _used(sizes: Mapping[str, int], canary: int) -> int:
    return sum(up(held, canary) + canary for held in sizes.values()) + canary
