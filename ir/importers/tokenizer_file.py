"""The container of `tokenizer.bin`: little-endian sections, tables for use in place.

The layout is described in `runtime/cpp/tokenizer/README.md`.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable
from typing import Any

MAGIC = b"SPECCTOK"
VERSION = 1
NONE = 0xFFFFFFFF


class Section:
    """One section under construction: numbers, strings and aligned arrays, in order."""

    def __init__(self) -> None:
        self.data = bytearray()

    def u32(self, *values: int) -> None:
        self.data += struct.pack(f"<{len(values)}I", *values)

    def f64(self, value: float) -> None:
        self._align(8)
        self.data += struct.pack("<d", value)

    def text(self, value: str) -> None:
        self.blob(value.encode("utf-8", "surrogatepass"))

    def blob(self, value: bytes) -> None:
        self.u32(len(value))
        self.data += value
        self._align(4)

    def array(self, kind: str, values: Iterable[Any]) -> None:
        """Count, then the values (`B` u8, `I` u32, `d` f64) on an 8-byte boundary."""
        items: array[Any] = array(kind, values)
        if sys.byteorder == "big":
            items.byteswap()
        self.u32(len(items))
        self._align(8)
        self.data += items.tobytes()
        self._align(8)

    def _align(self, size: int) -> None:
        self.data += bytes(-len(self.data) % size)


def assemble(sections: dict[str, Section]) -> bytes:
    """Header, table of sections, sections; the checksum covers all that follows it."""
    table = bytearray()
    body = bytearray()
    start = 32 + 24 * len(sections)
    for name, section in sections.items():
        body += bytes(-len(body) % 8)
        table += struct.pack("<4sIQQ", name.encode(), 0, start + len(body), len(section.data))
        body += section.data
    body += bytes(-len(body) % 8)
    rest = struct.pack("<QII", start + len(body), len(sections), 0) + table + body
    return MAGIC + struct.pack("<II", VERSION, zlib.crc32(rest)) + rest


def mix(value: int) -> int:
    """Finalizer of MurmurHash3 over 64 bits: the hash of the runtime's tables."""
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & 0xFFFFFFFFFFFFFFFF
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & 0xFFFFFFFFFFFFFFFF
    return value ^ value >> 33


def hash_bytes(data: bytes) -> int:
    """FNV-1a over 64 bits, then `mix`."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return mix(value)


def place(hashes: Iterable[int], count: int) -> tuple[list[int], int, int]:
    """Open addressing: slots (the index of a hash, or `NONE`), capacity, longest probe."""
    capacity = count + count // 2 + 1
    slots = [NONE] * capacity
    longest = 0
    for index, value in enumerate(hashes):
        slot = (value >> 32) * capacity >> 32
        probe = 1
        while slots[slot] != NONE:
            slot = slot + 1 if slot + 1 < capacity else 0
            probe += 1
        slots[slot] = index
        longest = max(longest, probe)
    return slots, capacity, longest


def write_trie(section: Section, words: dict[bytes, int]) -> None:
    """A trie, breadth first: the children of node i are first[i] .. first[i + 1] - 1."""
    keys = sorted(words)
    labels = bytearray(1)
    values = array("I", [NONE])
    first = array("I")
    level = [(0, len(keys), 0)]
    while level:
        below = []
        for low, high, depth in level:
            node = len(first)
            first.append(len(labels))
            if low < high and len(keys[low]) == depth:
                values[node] = words[keys[low]]
                low += 1
            while low < high:
                label = keys[low][depth]
                end = low + 1
                while end < high and keys[end][depth] == label:
                    end += 1
                labels.append(label)
                values.append(NONE)
                below.append((low, end, depth + 1))
                low = end
        level = below
    first.append(len(labels))
    section.array("B", bytes(labels))
    section.array("I", values)
    section.array("I", first)
