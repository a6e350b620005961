"""Weights as MLC reads them: tensor-cache.json and shards of raw bytes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import tvm
from tvm.contrib import tvmjs

from specc.backends.tvm.converter import dtype_of
from specc.ir import WeightStore


def write_params(weights: WeightStore, names: Sequence[str], folder: Path) -> int:
    """Write the weights `names` as they are, one after the other, into `folder`; returns their bytes."""
    with contextlib.redirect_stdout(io.StringIO()):  # (it prints what it does)
        tvmjs.dump_tensor_cache(
            _tensors(weights, names), str(folder), encode_format="raw",
            meta_data={"ParamSize": len(names)}, show_progress=False,
        )  # fmt: skip
    return sum(path.stat().st_size for path in folder.glob("params_shard_*.bin"))


def _tensors(weights: WeightStore, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        loaded = weights[name].load().detach().contiguous()
        made = tvm.runtime.empty(tuple(loaded.shape), dtype_of(weights[name].type.dtype))
        # (NumPy has no bf16: TVM takes its bits.)
        made.copyfrom(
            (loaded.view(torch.uint16) if loaded.dtype is torch.bfloat16 else loaded).numpy()
        )
        yield name, made
