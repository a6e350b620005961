from pathlib import Path

import pytest
import torch

from specc.ir import TensorType, Weight, WeightStore
from specc.ir.types import DTYPES
from specc.ir.weights import content_hash

A = torch.arange(6.0).reshape(2, 3)


def _store(**tensors: torch.Tensor) -> WeightStore:
    return WeightStore({n: Weight.of(t) for n, t in tensors.items()})


def test_equal_content_has_one_key() -> None:
    store = _store(b=A, a=A.clone(), c=A + 1, d=A.reshape(3, 2), e=A.double())
    assert store.canonical_names() == {"a": "a", "b": "a", "c": "c", "d": "d", "e": "e"}


def test_the_hash_is_of_the_content() -> None:
    assert content_hash(A.t()) == content_hash(A.t().contiguous()) != content_hash(A)
    assert content_hash(A[:1]) == content_hash(A[:1].clone())
    assert content_hash(torch.tensor(1.0)) != content_hash(torch.tensor([1.0]))
    assert len({content_hash(torch.zeros(2, dtype=d)) for d in DTYPES.values()}) == len(DTYPES)


def test_weights_are_compared_by_identity() -> None:
    assert Weight.of(A) != Weight.of(A + 1)
    assert len({Weight.of(A), Weight.of(A)}) == 2


def test_derived_keys_need_no_derived_content() -> None:
    def never(tensor: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    source, type_ = Weight.of(A), TensorType("f32", (3, 2))
    lazy = source.derive("transpose", type_, never)
    assert lazy.key == Weight.of(A.clone()).derive("transpose", type_, torch.t).key
    others = [
        source.derive("transpose 2", type_, torch.t),
        Weight.of(A + 1).derive("transpose", type_, torch.t),
    ]
    assert len({source.key, lazy.key, *(o.key for o in others)}) == 4
    assert torch.equal(others[0].load(), A.t())


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_saved_and_opened(tmp_path: Path, dtype: torch.dtype) -> None:
    path, wide = tmp_path / "w.safetensors", torch.arange(12).reshape(3, 4).to(dtype)
    store = _store(wide=wide, tied=wide.clone(), transposed=wide.t(), part=wide[:2])
    store.save(path, {"made": "here"})
    opened = WeightStore.open(path)
    assert sorted(opened) == ["part", "tied", "transposed"]
    for name, first in store.canonical_names().items():
        assert opened[first].type == store[name].type
        assert torch.equal(opened[first].load(), store[name].load())
        assert opened[first].key == store[name].key


def test_replaced_and_only() -> None:
    store = _store(a=A)
    more = store.replaced({"b": Weight.of(A + 1)})
    assert (list(store), list(more), list(more.only({"b", "z"}))) == (["a"], ["a", "b"], ["b"])
