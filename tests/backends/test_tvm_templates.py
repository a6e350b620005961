"""Kernels in TIR against the dialect's plain implementations, and one row against many, bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import tvm

from specc.backends.tvm import templates
from specc.backends.tvm.attention import Attention, attention, seen
from specc.backends.tvm.kernels import target
from specc.ir.dialect import ops
from specc.ir.encodings import Encoding
from tests.backends.tvm_player import ISA

TVM = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def _built(**kernels: Any) -> Any:
    module = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in kernels.items()})
    return tvm.tirx.build(module, target=target(ISA))


def _call(kernel: Any, *args: torch.Tensor) -> None:
    kernel(*(tvm.runtime.from_dlpack(a) for a in args))


@pytest.mark.parametrize(
    ("n", "k", "bias", "encoding"),
    [
        (1, 8, False, "f32"), (16, 64, True, "f32"), (40, 65, True, "f32"), (48, 130, False, "bf16"),
        (520, 576, False, "f32"),
    ],
)  # fmt: skip
def test_linear(n: int, k: int, bias: bool, encoding: str) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(n, k)
    packed = Encoding.parse(encoding).encode(matrix)
    stored = Encoding.parse(encoding).decode(packed, n, k)
    b = torch.randn(n) if bias else None
    kernel = _built(linear=templates.linear(n, k, TVM[packed.dtype], bias))["linear"]
    x = torch.randn(100, k)
    bits = None
    for rows in (100, 97, 32, 13, 9, 6, 5, 2, 1):
        y = torch.empty(rows, n)
        _call(kernel, x[:rows].clone(), packed, *([b] if b is not None else []), y)
        wanted = x[:rows].double() @ stored.T.double() + (0 if b is None else b.double())
        torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-4)
        bits = y if bits is None else bits
        assert torch.equal(y, bits[:rows]), f"{rows} rows"


@pytest.mark.parametrize("encoding", ["f32", "bf16"])
def test_packed_embedding(encoding: str) -> None:
    matrix = torch.randn(21, 10)
    packed = Encoding.parse(encoding).encode(matrix)
    kernel = _built(embedding=templates.embedding(21, 10, TVM[packed.dtype], packed=True))[
        "embedding"
    ]
    tokens, y = torch.tensor([20, 0, 16, 15]), torch.empty(4, 10)
    _call(kernel, tokens, packed, y)
    assert torch.equal(y, ops.embedding(tokens, packed, 21, 10, encoding))
    with pytest.raises(RuntimeError, match="a token is not in the table"):
        _call(kernel, torch.tensor([0, 21, 1, 1]), packed, y)


@pytest.mark.parametrize("cache", [torch.float32, torch.float16, torch.bfloat16])
def test_cache_write_rounds_to_nearest_even(cache: torch.dtype) -> None:
    kernel = _built(w=templates.cache_write(2, 9, 5, TVM[cache], "float32"))["w"]
    x = torch.randn(3, 2, 5)
    x[0, 0, :2] = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11])  # halfway between two f16
    ours, wanted = torch.zeros(2, 9, 5, dtype=cache), torch.zeros(2, 9, 5, dtype=cache)
    _call(kernel, ours, x, torch.tensor([8, 0, 4]))
    ops.cache_write(wanted, x, torch.tensor([8, 0, 4]))
    assert torch.equal(ours, wanted)
    with pytest.raises(RuntimeError, match="a row is not in the cache"):
        _call(kernel, ours, x, torch.tensor([9, 0, 4]))


CASES = [
    # heads, kv heads, width, value width, window, softcap, sinks, parents, cache
    (9, 3, 64, 64, 0, 0.0, False, False, torch.float32),
    (4, 2, 16, 16, 0, 0.0, False, True, torch.float32),
    (4, 1, 12, 6, 7, 5.0, True, True, torch.float32),
    (8, 8, 8, 8, 300, 0.0, False, False, torch.float16),
    (10, 2, 40, 40, 300, 0.0, True, False, torch.bfloat16),
]


@pytest.mark.parametrize("case", CASES)
def test_attention(case: tuple[Any, ...]) -> None:
    """Rows that are not seen hold NaN; a tree's rows have the bits of the same rows as chains."""
    heads, kv_heads, width, value_width, window, softcap, sinks, parents, cache = case
    torch.manual_seed(0)
    capacity, count, begin = 600, 5, 520
    scale = width**-0.5
    shape = Attention(
        heads,
        kv_heads,
        capacity,
        width,
        value_width,
        TVM[cache],
        scale,
        window,
        softcap,
        sinks,
        parents,
    )
    built = _built(seen=seen(capacity, parents), attention=attention(shape))
    q = torch.randn(count, heads, width)
    k = torch.full((kv_heads, capacity, width), float("nan")).to(cache)
    v = torch.full((kv_heads, capacity, value_width), float("nan")).to(cache)
    positions, rows = (
        torch.arange(begin, begin + count),
        torch.arange(begin + 10, begin + 10 + count),
    )
    above = torch.tensor([-1, 0, 0, 1, 3]) if parents else None
    k[:, 10 : begin + 15], v[:, 10 : begin + 15] = (
        torch.randn(kv_heads, begin + 5, w).to(cache) for w in (width, value_width)
    )
    sink = torch.randn(heads) if sinks else None

    def ours(
        q: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, above: Any
    ) -> torch.Tensor:
        places = [torch.zeros(len(q), dtype=torch.int64) for _ in range(3 if parents else 2)]
        places += [torch.zeros(len(q), len(q), dtype=torch.int64)] if parents else []
        _call(built["seen"], positions, rows, *([above] if parents else []), *places)
        out = torch.empty(len(q), heads, value_width)
        _call(built["attention"], q, k, v, *places, *([sink] if sink is not None else []), out)
        return out

    found = ours(q, positions, rows, above)
    wanted = ops.cached_attention(q, k, v, positions, rows, above, scale, window, softcap, sink)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    if not parents:
        for t in range(count):
            assert torch.equal(
                ours(
                    q[t : t + 1].clone(),
                    positions[t : t + 1].clone(),
                    rows[t : t + 1].clone(),
                    None,
                )[0],
                found[t],
            )
        return
    # The path 0 - 1 - 3 - 4 moved to consecutive rows, and the last of it alone.
    for cached in (k, v):
        cached[:, begin + 10 : begin + 14] = cached[
            :, [begin + 10, begin + 11, begin + 13, begin + 14]
        ].clone()
    last = torch.tensor([begin + 3])
    assert torch.equal(ours(q[4:].clone(), last, last + 10, torch.tensor([-1]))[0], found[4])


def test_rows_and_parents_are_checked() -> None:
    kernel = _built(seen=seen(8, parents=True))["seen"]
    places = [torch.zeros(2, dtype=torch.int64) for _ in range(3)] + [
        torch.zeros(2, 2, dtype=torch.int64)
    ]
    good = ([0, 1], [0, 1], [-1, 0])
    _call(kernel, *map(torch.tensor, good), *places)
    for bad in (([0, 9], [0, 9], [-1, 0]), ([0, 3], [0, 2], [-1, 0]), ([-1, 1], [0, 1], [-1, 0])):
        with pytest.raises(RuntimeError, match="a position or a row is not in the cache"):
            _call(kernel, *map(torch.tensor, bad), *places)
    for parents in ([-1, 1], [-2, 0]):
        with pytest.raises(RuntimeError, match="a parent is no earlier row"):
            _call(kernel, *map(torch.tensor, (*good[:2], parents)), *places)


def test_nan_is_not_lost_in_attention() -> None:
    shape = Attention(2, 1, 300, 8, 8, "float32", 1.0, 0, 0.0, False, False)
    kernel = _built(a=attention(shape))["a"]
    for place in (0, 130, 259):
        k, v = torch.randn(1, 300, 8), torch.randn(1, 300, 8)
        k[0, place, 3] = float("nan")
        out = torch.empty(1, 2, 8)
        _call(kernel, torch.randn(1, 2, 8), k, v, torch.tensor([0]), torch.tensor([260]), out)
        assert out.isnan().all()


def test_topk() -> None:
    built = _built(topk=templates.topk(7, 3), pick=templates.pick(7, 3))
    x = torch.tensor([[3.0, 1, 4, 1, 5, 9, 2], [0.0, -1, 0, -5, 0, -2, -3]])
    values, places = torch.empty(2, 3), torch.empty(2, 3, dtype=torch.int64)
    _call(built["topk"], x, places)
    _call(built["pick"], x, places, values)
    assert torch.equal(values, x.topk(3).values)
    assert places.tolist() == [[5, 4, 2], [0, 2, 4]]


def test_the_exponential_is_torchs_to_a_few_bits() -> None:
    """Through attention of one key, whose weight is e^(score - sink) / (1 + e^(score - sink))."""
    shape = Attention(1, 1, 1, 8, 8, "float32", 1.0, 0, 0.0, True, False)
    kernel = _built(a=attention(shape))["a"]
    for score, sink in itertools.product((-80.0, -20.0, -3.25, 0.0, 5.5, 60.0), (-10.0, 0.0, 33.0)):
        q, k = torch.zeros(1, 1, 8), torch.ones(1, 1, 8)
        q[0, 0, 0] = score
        out = torch.empty(1, 1, 8)
        _call(
            kernel,
            q,
            k,
            torch.ones(1, 1, 8),
            torch.tensor([0]),
            torch.tensor([1]),
            torch.tensor([sink]),
            out,
        )
        wanted = torch.sigmoid(torch.tensor(score - sink, dtype=torch.float64)).float()
        torch.testing.assert_close(out[0, 0], wanted.expand(8), rtol=1e-6, atol=1e-37)
