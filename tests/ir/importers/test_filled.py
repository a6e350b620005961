"""Tensors that begin empty, written slice by slice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specc.ir.importers.filled import filled

aten = torch.ops.aten


class _Writes(torch.nn.Module):
    def __init__(self, write: Callable[[Tensor, Tensor, Tensor], None], zeros: bool) -> None:
        super().__init__()
        self.write, self.zeros = write, zeros

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        size = (a.shape[0], 3, 8)
        whole = a.new_zeros(*size) if self.zeros else a.new_empty(*size)
        self.write(whole, a, b)
        return whole


def _in_order(whole: Tensor, a: Tensor, b: Tensor) -> None:
    whole[..., :5].copy_(a)
    whole[..., 5:].copy_(b)


def _back_to_front(whole: Tensor, a: Tensor, b: Tensor) -> None:
    whole[..., 5:].copy_(b)
    whole[..., :5].copy_(a)


def _half(whole: Tensor, a: Tensor, b: Tensor) -> None:
    whole[..., :5].copy_(a)


def _overlapping(whole: Tensor, a: Tensor, b: Tensor) -> None:
    whole[..., 4:].copy_(b.repeat(1, 1, 2)[..., :4])
    whole[..., :5].copy_(a)


def _broadcast(whole: Tensor, a: Tensor, b: Tensor) -> None:
    whole[..., :5].copy_(a)
    whole[..., 5:].copy_(b[:, :1])


def _strided(whole: Tensor, a: Tensor, b: Tensor) -> None:
    whole[..., ::2].copy_(a[..., :4])
    whole[..., 1::2].copy_(a[..., :4])


def _of(write: Callable[[Tensor, Tensor, Tensor], None], *, zeros: bool = False) -> object:
    example = torch.ones(4, 3, 5), torch.ones(4, 3, 3)
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(
        _Writes(write, zeros), example, dynamic_shapes=({0: rows}, {0: rows})
    ).run_decompositions({})
    (last,) = next(n for n in program.graph.nodes if n.op == "output").args[0]
    assert last.target is aten.slice_scatter.default
    found = filled(last)
    return found and ([part.name for part in found[0]], found[1])


@pytest.mark.parametrize("write", [_in_order, _back_to_front])
def test_a_full_one_is_a_cat(write: Callable[[Tensor, Tensor, Tensor], None]) -> None:
    assert _of(write) == (["a", "b"], 2)


@pytest.mark.parametrize("write", [_half, _overlapping, _broadcast, _strided])
def test_others_are_not(write: Callable[[Tensor, Tensor, Tensor], None]) -> None:
    assert _of(write) is None


def test_nor_is_one_that_begins_with_numbers() -> None:
    assert _of(_in_order, zeros=True) is None
