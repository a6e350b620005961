"""A tensor that begins empty and is filled slice by slice is a concatenation.

DeepSeek's keys are written so. As a cat they need no size of the empty tensor, which depends on the number of tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_EMPTY = {aten.new_empty.default, aten.empty.memory_format}


def filled(node: fx.Node) -> tuple[list[fx.Node], int] | None:
    """What `node`, the last slice_scatter of an exported graph's chain, is a cat of, and along which dimension.

    None if parts of it stay empty, are written twice or have another shape or dtype than their place.
    """
    size, dims = 0, set[int]()
    parts: dict[int, tuple[int, fx.Node]] = {}
    at: Any = node
    while isinstance(at, fx.Node) and at.target is aten.slice_scatter.default:
        whole = at.meta["val"].shape
        arguments: Any = (*at.args, *(0, None, None, 1)[len(at.args) - 2 :])
        base, part, dim, start, end, step = arguments
        dims.add(int(dim) % len(whole))
        size = whole[dim]
        if not isinstance(size, int) or step != 1 or (source := _written(part)) is None:
            return None
        begin, stop = (slice(start, end).indices(size))[:2]
        if begin in parts:
            return None
        parts[begin] = stop, source
        at = base
    if not isinstance(at, fx.Node) or at.target not in _EMPTY or len(dims) != 1:
        return None
    ordered, reached = [], 0
    for begin, (stop, source) in sorted(parts.items(), key=lambda part: part[0]):
        if begin != reached:
            return None
        ordered.append(source)
        reached = stop
    return (ordered, dims.pop()) if reached == size else None


def _written(part: Any) -> fx.Node | None:
    """What a slice is overwritten with, if as it is."""
    if not isinstance(part, fx.Node):
        return None
    if part.target is not aten.copy.default:
        return part
    source: Any = part.args[1]
    before, after = source.meta["val"], part.meta["val"]
    return source if (before.shape, before.dtype) == (after.shape, after.dtype) else None
