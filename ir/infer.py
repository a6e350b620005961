"""Types by evaluation: run a graph on fake tensors for two row counts, and call what differs T.

This avoids symbolic integers in programs: a dimension is a number or T, and anything else (2*T,
T+1) is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from specc.errors import InvalidProgramError
from specc.ir.types import DTYPES, TensorType, dtype_name

_ROWS = (5, 7)
"""T in the two runs: a size that is 5 in the first and 7 in the second is T."""
_POSITIONS = (11, 13)
"""S in the two runs, where a state buffer's length is still open."""
_MOST_MADE = 20_000
"""Operations that are remembered; a model has hundreds."""


def infer_types(graph: fx.Graph, where: str = "") -> None:
    """Set `meta["type"]` of every `call_function` node from those of inputs and references.

    Raises InvalidProgramError for an operation that cannot run on these types, or whose size is no
    plain T.
    """
    runs = [_shapes(graph, *dims, where) for dims in zip(_ROWS, _POSITIONS, strict=True)]
    for node in graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            node.meta["type"] = _unify(node, runs[0][node], runs[1][node], where)
    for node in graph.nodes:
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            node.meta["type"] = node.args[0].meta["type"][node.args[1]]


_mode = FakeTensorMode(allow_non_fake_inputs=True)
_made: dict[Any, Any] = {}
"""By operation and types. Layers are alike, and so are the graphs of one pass and the next: each is evaluated once."""


def _shapes(graph: fx.Graph, rows: int, positions: int, where: str) -> dict[fx.Node, Any]:
    values: dict[fx.Node, Any] = {}
    if len(_made) > _MOST_MADE:
        _made.clear()
    with _mode:
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                type_: TensorType = node.meta["type"]
                shape = type_.at(T=rows, S=positions)
                values[node] = torch.empty(shape, dtype=DTYPES[type_.dtype])
            elif node.op == "call_function":
                target: Callable[..., Any] = node.target
                args = fx.map_arg(node.args, values.__getitem__)
                kwargs = fx.map_arg(node.kwargs, values.__getitem__)
                key = (target, _key(args), _key(kwargs))
                try:
                    if key not in _made:
                        _made[key] = target(*args, **kwargs)
                    values[node] = _made[key]
                except Exception as error:
                    raise InvalidProgramError(
                        "SPECC-E0301",
                        f"{node.target} cannot run on {rows} rows: {str(error).splitlines()[0]}",
                        where=_place(node, where),
                        cure="report the model's architecture and configuration",
                    ) from error
    return values


def _key(value: Any) -> Any:
    """What the type of a result depends on; numbers with their types, since 1, 1.0 and True are equal."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in value.items())
    if isinstance(value, slice):
        return slice, _key((value.start, value.stop, value.step))
    return type(value), value


def _unify(node: fx.Node, small: Any, large: Any, where: str) -> Any:
    if isinstance(small, torch.Tensor):
        if small.ndim != large.ndim:
            raise _open_size(node, small, large, where)
        dims: list[int | str] = []
        for a, b in zip(small.shape, large.shape, strict=True):
            if a == b:
                dims.append(int(a))
            elif (a, b) in (_ROWS, _POSITIONS):
                dims.append("T" if (a, b) == _ROWS else "S")
            else:
                raise _open_size(node, small, large, where)
        if (dtype := dtype_name(small.dtype)) not in DTYPES:
            raise InvalidProgramError(
                "SPECC-E0301", f"{node.target} gives a dtype that programs do not have", where=_place(node, where),
                expected=", ".join(DTYPES), found=dtype,
                cure="this layer cannot be compiled; choose another architecture",
            )  # fmt: skip
        return TensorType(dtype, tuple(dims))
    if isinstance(small, (tuple, list)):
        pairs = zip(small, large, strict=True)
        return tuple(_unify(node, a, b, where) for a, b in pairs)
    return None


def _open_size(node: fx.Node, small: torch.Tensor, large: torch.Tensor, where: str) -> Exception:
    return InvalidProgramError(
        "SPECC-E0302",
        f"the size of {node.target} depends on the rows in a way that is not T itself",
        where=_place(node, where),
        expected="every dimension a number or T",
        found=f"{tuple(small.shape)} for T={_ROWS[0]}, {tuple(large.shape)} for T={_ROWS[1]}",
        cure="this layer cannot be compiled; choose another architecture",
    )


def _place(node: fx.Node, where: str) -> str:
    return str(node.meta.get("origin") or where or node.name)
