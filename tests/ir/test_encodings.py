"""Encodings of weights: what they store, against the formats that others define; and products with them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from torch import Tensor

from specc.errors import InvalidProgramError
from specc.ir import Encoding, Weight
from specc.ir.dialect import ops
from specc.ir.encodings import ENCODINGS
from specc.runtime import sources

NAMES = [e.name for e in ENCODINGS]
QUANTISED = [e.name for e in ENCODINGS if e.quantised]
N, K = 50, 256


@pytest.fixture
def matrix() -> Tensor:
    return torch.randn(N, K, generator=torch.Generator().manual_seed(1))


def _step(matrix: Tensor, encoding: Encoding) -> Tensor:
    """The distance between neighbouring values that the encoding can store, for each number."""
    groups = matrix.view(N, -1, encoding.group or K)
    span = groups.amax(-1) - groups.amin(-1) if encoding.minimum else groups.abs().amax(-1)
    levels = 15 if encoding.minimum else 127 if encoding.bits == 8 else 8
    return (span / levels)[..., None].expand_as(groups).reshape(N, K)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_decoded_is_near(name: str, matrix: Tensor) -> None:
    encoding = Encoding.parse(name)
    packed = encoding.encode(matrix)
    error = (encoding.decode(packed, N, K) - matrix).abs()
    if name == "f32":
        assert error.max() == 0
    elif name == "bf16":
        assert torch.equal(encoding.decode(packed, N, K), matrix.bfloat16().float())
    else:
        # Half a step, a whole one at the end that symmetric 4 bits lack, and what f16 scales lose.
        share = 1.0 if encoding.bits == 4 and not encoding.minimum else 0.5
        assert (error <= _step(matrix, encoding) * share * 1.02).all()


@pytest.mark.parametrize("name", NAMES)
def test_types_and_sizes(name: str, matrix: Tensor) -> None:
    encoding = Encoding.parse(name)
    weight = Weight.of(matrix).encoded(encoding)
    packed = weight.load()
    assert weight.type == type(weight.type).of(packed)
    assert encoding.bits_per_weight(N, K) == packed.nbytes * 8 / (N * K)
    assert weight.key != Weight.of(matrix).key


@pytest.mark.parametrize(
    ("name", "bits"),
    # llama.cpp's own figures for its blocks; whole rows and larger groups share a scale among more.
    [("q8g32", 8.5), ("q4g32", 4.5), ("q4mg32", 5.0), ("q4g64", 4.25), ("q4g128", 4.125)],
)
def test_bits_per_weight(name: str, bits: float) -> None:
    assert Encoding.parse(name).bits_per_weight(1024, 4096) == bits


@pytest.mark.parametrize(
    ("name", "kind"), [("q8g32", Kind.Q8_0), ("q4g32", Kind.Q4_0), ("q4mg32", Kind.Q4_1)]
)
def test_blocks_of_gguf_are_stored_as_they_are(name: str, kind: Kind, matrix: Tensor) -> None:
    """Block layouts are those of ggml-common.h; the gguf package says what they mean."""
    raw = quantize(matrix.numpy(), kind)
    blocks = torch.from_numpy(raw.reshape(N, K // 32, -1).copy())
    head = 4 if kind is Kind.Q4_1 else 2
    scales = blocks[..., :head].contiguous().view(torch.float16)
    rest = blocks[..., head:]
    halves = torch.cat([rest & 15, rest >> 4], -1)
    q = rest.contiguous().view(torch.int8) if kind is Kind.Q8_0 else halves
    encoding = Encoding.parse(name)
    packed = encoding.from_blocks(
        q.reshape(N, K), scales[..., 0], scales[..., 1] if encoding.minimum else None
    )
    wanted = torch.from_numpy(dequantize(raw, kind).astype(np.float32))
    assert torch.equal(encoding.decode(packed, N, K), wanted.view(N, K))


@pytest.mark.parametrize("name", NAMES)
def test_linear_and_embedding(name: str, matrix: Tensor) -> None:
    encoding = Encoding.parse(name)
    packed, x = encoding.encode(matrix), torch.randn(2, 3, K)
    stored = encoding.decode(packed, N, K)
    bias = torch.randn(N)
    found = ops.linear.default(x, packed, bias, N, name)
    exact = torch.nn.functional.linear(x.double(), stored.double(), bias.double())
    # An activation is off by half a step of its block at most.
    steps = (
        x.view(2, 3, -1, 32).abs().amax(-1) / 127 if encoding.quantised else torch.zeros(2, 3, 8)
    )
    bound = (steps / 2) @ stored.abs().view(N, -1, 32).sum(-1).T + 1e-4
    assert ((found - exact).abs() <= bound).all()
    tokens = torch.tensor([0, N - 1, 17, 17])
    assert torch.equal(ops.embedding.default(tokens, packed, N, K, name), stored[tokens])


@pytest.mark.parametrize("name", QUANTISED)
def test_a_row_is_computed_from_nothing_else(name: str, matrix: Tensor) -> None:
    packed, x = Encoding.parse(name).encode(matrix), torch.randn(6, K)
    clean = ops.linear.default(x, packed, None, N, name)
    x[2, 40], x[4, 7] = torch.nan, torch.inf
    dirty = ops.linear.default(x, packed, None, N, name)
    assert torch.equal(dirty[[0, 1, 3, 5]], clean[[0, 1, 3, 5]])
    assert dirty[[2, 4]].isnan().all()
    assert torch.equal(ops.linear.default(x[3:4], packed, None, N, name), clean[3:4])


def test_what_does_not_fit_is_refused(matrix: Tensor) -> None:
    with pytest.raises(InvalidProgramError, match=r"SPECC-E0305.*\n.*q4mg128\n.*int3"):
        Encoding.parse("int3")
    assert not Encoding.parse("q4g64").fits(16, 96)
    assert Encoding.parse("q4g32").fits(16, 96)
    assert not Encoding.parse("q8").fits(16, 4)
    assert Encoding.parse("bf16").fits(16, 4)
    with pytest.raises(InvalidProgramError, match="SPECC-E0307"):
        Encoding.parse("q4g64").type(16, 96)
    matrix[3, 3] = torch.nan
    with pytest.raises(InvalidProgramError, match="SPECC-E0306"):
        Encoding.parse("q8").encode(matrix)


def test_the_runtime_has_the_same_encodings() -> None:
    text = (sources.CPP / "model/encodings.cpp").read_text()
    rows = re.findall(r'\{"(\w+)", (\d+), (\d+), (true|false)\}', text)
    assert rows == [(e.name, str(e.bits), str(e.group), str(e.minimum).lower()) for e in ENCODINGS]
    assert [Encoding.parse(name).number for name in NAMES] == list(range(len(ENCODINGS)))
