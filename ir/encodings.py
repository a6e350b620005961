"""How matrices are stored: the encodings of weights, and how a packed weight is laid out.

A matrix [N, K] is stored in tiles of 16 rows (output features), zero rows at the end. A kernel then reads one
sequential stream, broadcasts activations and needs no horizontal sums; an output depends on nothing else in the call.

- `f32`, `bf16`: [tiles, K, 16], tiles transposed inside.
- quantised: u8[tiles, bytes of a tile], segment after segment: a cache line of f16 scales [2, 16], then the integers
  that they scale. The line holds the scales of two groups (of one, if no other is left), or a group's scales and
  minima. Integers of 8 bits: [K/4, 16, 4] of w + 128. Of 4 bits: [K/8, 16, 4], where byte i of column c holds
  k = 8 j + i in its low half and 8 j + 4 + i in its high half.

A value is d * w (w in -128..127, or q - 8 with q in 0..15), or d * q + m. A group is so many neighbours of a row that
share d and m, or the whole row. GGUF's blocks have the same meaning (ggml-common.h of llama.cpp): Q8_0 is `q8g32`, Q4_0
`q4g32`, Q4_1 `q4mg32`; `from_blocks` stores them as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from specc.errors import InvalidProgramError
from specc.ir.types import TensorType, itemsize

TILE = 16
"""Rows of a tile."""

BLOCK = 32
"""Activations that share a scale; what K must divide by for quantised weights."""

_LINE = 64
"""Bytes of a cache line."""

_FLOATS = {32: "f32", 16: "bf16"}


@dataclass(frozen=True)
class Encoding:
    """A way to store a matrix: `bits` of a number, neighbours in a `group` (0: the whole row), with a `minimum` or not.

    Of 32 and 16 bits these are f32 and bf16, else integers with f16 scales.
    """

    bits: int
    group: int = 0
    minimum: bool = False

    @property
    def name(self) -> str:
        """As in `f32`, `q8`, `q4g32`, `q4mg64`."""
        if self.bits in _FLOATS:
            return _FLOATS[self.bits]
        return f"q{self.bits}{'m' * self.minimum}{f'g{self.group}' if self.group else ''}"

    def __str__(self) -> str:
        return self.name

    @classmethod
    def parse(cls, name: str) -> Encoding:
        """The encoding called `name`; raises InvalidProgramError (SPECC-E0305) for one that is not in ENCODINGS."""
        for encoding in ENCODINGS:
            if encoding.name == name:
                return encoding
        raise InvalidProgramError(
            "SPECC-E0305", "there is no such weight encoding", expected=", ".join(map(str, ENCODINGS)),
            found=name, cure="choose one of these",
        )  # fmt: skip

    @property
    def number(self) -> int:
        """What stands for the name in a plan's attributes: the place in ENCODINGS."""
        return ENCODINGS.index(self)

    @property
    def quantised(self) -> bool:
        """Whether values are integers with scales."""
        return self.bits not in _FLOATS

    def fits(self, n: int, k: int) -> bool:
        """Whether a matrix [n, k] can be stored so: quantised, K must divide by 32 and by the group."""
        return n > 0 and k > 0 and (not self.quantised or k % max(BLOCK, self.group) == 0)

    def type(self, n: int, k: int) -> TensorType:
        """The type of the packed tensor of a matrix [n, k]."""
        self._require(n, k)
        if not self.quantised:
            return TensorType(self.name, (-(-n // TILE), k, TILE))
        return TensorType(
            "u8", (-(-n // TILE), self._segments(k) * _LINE + k * TILE * self.bits // 8)
        )

    def bits_per_weight(self, n: int, k: int) -> float:
        """Bits stored for each number of a matrix [n, k], scales and filling included."""
        type_ = self.type(n, k)
        return 8 * itemsize(type_.dtype) * math.prod(type_.at()) / (n * k)

    def encode(self, matrix: Tensor) -> Tensor:
        """Pack f32[N, K], rounding to nearest; quantised, by the largest magnitude (and least value) of each group.

        Raises InvalidProgramError (SPECC-E0306) for values that are not finite or whose scale exceeds f16.
        """
        n, k = matrix.shape
        self._require(n, k)
        if not self.quantised:
            return _tiles(matrix.to(torch.bfloat16 if self.bits == 16 else torch.float32))
        groups = matrix.float().reshape(n, -1, self.group or k)
        most, least = groups.amax(-1), groups.amin(-1)
        if self.minimum:
            d, m = ((most - least) / 15).half(), least.half()
            q = torch.round((groups - m.float()[..., None]) / _divisor(d)).clamp(0, 15)
            return self.from_blocks(q.to(torch.uint8).view(n, k), d, m)
        extreme = torch.where(most > -least, most, least)
        if self.bits == 8:
            d = (extreme.abs() / 127).half()
            q = torch.round(groups / _divisor(d)).clamp(-127, 127).to(torch.int8)
        else:  # the value of largest magnitude is -8 exactly, since there is no +8
            d = (extreme / -8).half()
            q = (torch.round(groups / _divisor(d)) + 8).clamp(0, 15).to(torch.uint8)
        return self.from_blocks(q.view(n, k), d)

    def from_blocks(self, q: Tensor, d: Tensor, m: Tensor | None = None) -> Tensor:
        """Pack integers and scales as they are: the value is d * q, d * (q - 8) for 4 bits, or d * q + m.

        q [N, K] i8 for 8 bits, u8 below 16 for 4; d, m f16[N, K / group].
        """
        n, k = q.shape
        self._require(n, k)
        scales = d[:, :, None] if m is None else torch.stack([d, m], -1)
        assert scales.dtype == torch.float16
        assert scales.shape[1:] == (k // (self.group or k), 1 + self.minimum)
        if not bool(scales.isfinite().all()):
            raise InvalidProgramError(
                "SPECC-E0306", f"a matrix cannot be stored as {self}: values are not finite, or too large",
                expected="numbers up to 65504 times the largest integer", cure="keep this matrix in float32",
            )  # fmt: skip
        scales, segments = scales.reshape(n, -1), self._segments(k)
        scales = functional.pad(scales, (0, scales.shape[1] % 2, 0, -n % TILE))
        lines = scales.view(-1, TILE, segments, 2).permute(0, 2, 3, 1).contiguous()
        lines = lines.view(torch.uint8).view(-1, segments, _LINE)
        stored = q.view(torch.uint8) ^ 128 if self.bits == 8 else q
        stored = functional.pad(stored, (0, 0, 0, -n % TILE)).view(-1, TILE, k // 4, 4)
        stored = stored.transpose(1, 2)  # [tiles, K/4, 16, 4]
        if self.bits == 4:
            stored = stored[:, 0::2] | stored[:, 1::2] << 4
        stored = stored.reshape(len(lines), -1)
        missing = segments * self._segment_bytes(k) - stored.shape[1]
        stored = functional.pad(stored, (0, missing)).view(len(lines), segments, -1)
        packed = torch.cat([lines, stored], 2).view(len(lines), -1)
        return packed[:, : packed.shape[1] - missing].contiguous()

    def blocks(self, packed: Tensor, n: int, k: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The inverse of `from_blocks`, with all as f32, and 8 taken off where there is no minimum."""
        tiles, segments = len(packed), self._segments(k)
        missing = segments * (_LINE + self._segment_bytes(k)) - packed.shape[1]
        parts = functional.pad(packed, (0, missing)).view(tiles, segments, -1)
        lines = parts[..., :_LINE].contiguous().view(torch.float16).float()
        scales = lines.view(tiles, segments, 2, TILE).permute(0, 3, 1, 2).reshape(-1, 2 * segments)
        stored = parts[..., _LINE:].reshape(tiles, -1)[:, : k * TILE * self.bits // 8]
        if self.bits == 4:
            stored = stored.view(tiles, k // 8, 1, -1)
            stored = torch.cat([stored & 15, stored >> 4], 2)
        q = stored.reshape(-1, k // 4, TILE, 4).transpose(1, 2).reshape(-1, k)[:n].float()
        if self.minimum:
            return q, scales[:n, 0::2], scales[:n, 1::2]
        return q - (1 << self.bits - 1), scales[:n, : k // (self.group or k)], None

    def decode(self, packed: Tensor, n: int, k: int) -> Tensor:
        """The matrix f32[n, k] that `packed` stands for."""
        if not self.quantised:
            return packed.transpose(1, 2).reshape(-1, k)[:n].float()
        q, d, m = self.blocks(packed, n, k)
        groups = q.view(n, -1, self.group or k) * d[..., None]  # exact: 11 bits times 8
        return (groups if m is None else groups + m[..., None]).view(n, k)

    def _segments(self, k: int) -> int:
        """Lines of scales in a tile."""
        return -(-(k // (self.group or k)) * (1 + self.minimum) // 2)

    def _segment_bytes(self, k: int) -> int:
        """Bytes of the integers behind a whole line of scales."""
        columns = self.group * (1 if self.minimum else 2) if self.group else k
        return columns * TILE * self.bits // 8

    def _require(self, n: int, k: int) -> None:
        if not self.fits(n, k):
            raise InvalidProgramError(
                "SPECC-E0307", f"a matrix cannot be stored as {self}",
                expected=f"a row length that divides by {max(BLOCK, self.group)}", found=f"[{n}, {k}]",
                cure="keep this matrix in float32",
            )  # fmt: skip


def _tiles(matrix: Tensor) -> Tensor:
    """[N, K] -> [ceil(N/16), K, 16]."""
    padded = functional.pad(matrix, (0, 0, 0, -len(matrix) % TILE))
    return padded.view(-1, TILE, matrix.shape[1]).transpose(1, 2).contiguous()


def _divisor(d: Tensor) -> Tensor:
    """Scales [N, groups] to divide by: nothing is divided by zero, which stands for a group of zeros."""
    return torch.where(d == 0, 1, d.float())[..., None]


F32, BF16 = Encoding(32), Encoding(16)

ENCODINGS = (
    F32, BF16, Encoding(8), Encoding(8, 32), *(Encoding(4, g) for g in (32, 64, 128)),
    *(Encoding(4, g, minimum=True) for g in (32, 64, 128)),
)  # fmt: skip
"""All there are, in the order of their numbers (runtime/cpp/model/encodings.cpp has the same)."""


@dataclass(frozen=True)
class Packing:
    """What a packed weight stands for: a matrix of so many rows (output features) and columns."""

    encoding: Encoding
    rows: int
    columns: int
