"""Quantised blocks of a GGUF as integers and scales, for weights that are used as the file has them.

A block is 32 neighbours of a row: f16 d, f16 m (Q4_1 alone), then 32 int8, or 16 bytes of which the low halves are
numbers 0 to 15 and the high halves 16 to 31 (ggml-common.h and ggml-quants.c of llama.cpp).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specc.ir.encodings import Encoding
from specc.ir.weights import Blocks

ENCODINGS = {
    "Q8_0": Encoding(8, 32),
    "Q4_0": Encoding(4, 32),
    "Q4_1": Encoding(4, 32, minimum=True),
}
"""Encodings whose values are those of a GGUF type, number by number."""

FLOATS = ("F32", "F16", "BF16")


def blocks_of(data: np.ndarray, kind: str) -> Blocks:
    """The rows u8[N, bytes] of a tensor of type `kind`, as `Encoding.from_blocks` takes them."""
    encoding = ENCODINGS[kind]
    scales = 2 + 2 * encoding.minimum
    raw = torch.from_numpy(np.array(data)).view(len(data), -1, scales + 4 * encoding.bits)
    halves = raw[..., :scales].contiguous().view(torch.float16)  # [N, K/32, 1 or 2]
    stored = raw[..., scales:]
    if encoding.bits == 8:
        q: Tensor = stored.contiguous().view(torch.int8)
    else:
        q = torch.cat([stored & 15, stored >> 4], -1)
    m = halves[..., 1].contiguous() if encoding.minimum else None
    return q.reshape(len(data), -1), halves[..., 0].contiguous(), m
