"""The `gguf` package's reader, without making an array of every string.

A vocabulary is a hundred thousand strings that nobody here looks at (transformers reads the tokenizer), and the library
makes two arrays of each: seconds for a file whose other fields take milliseconds. Arrays of strings are stepped over;
arrays of numbers become one array.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType


class QuickReader(GGUFReader):
    """A reader whose fields hold no strings out of arrays: `contents()` of such a field is empty."""

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
            return super()._get_field_parts(orig_offs, raw_type)
        data: Any = self.data
        element, count = struct.unpack_from("<IQ", data, orig_offs)
        kind, begin = GGUFValueType(element), orig_offs + 12
        if kind is GGUFValueType.STRING:
            end = _after_strings(memoryview(data), begin, count)
            return end - orig_offs, [], [], [GGUFValueType.ARRAY, kind]
        dtype = self.gguf_scalar_to_np.get(kind)
        if dtype is None:
            return super()._get_field_parts(orig_offs, raw_type)
        values = np.frombuffer(data, dtype, count, begin)
        return 12 + values.nbytes, [values], [0], [GGUFValueType.ARRAY, kind]


def _after_strings(data: memoryview, place: int, count: int) -> int:
    """Where `count` strings, each a length u64 and its bytes, end. Raises struct.error beyond the file."""
    length = struct.Struct("<Q")
    for _ in range(count):
        place += 8 + length.unpack_from(data, place)[0]
    return place
