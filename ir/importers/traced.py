"""Graphs of models that were traced before in this process: models that differ in weights alone have one graph.

Tracing is most of what importing costs, and one process often imports one model again: a drafter beside its target, a
model compiled for another method.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from specc.ir.program import Function
from specc.ir.weights import Weight

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Traced = tuple[Function, dict[str, Weight]]
"""The function `target`, and its constants: the model's parameters and buffers by their names, and what code makes."""

_KEPT = 16
_known: OrderedDict[object, Traced] = OrderedDict()


def traced(model: PreTrainedModel, trace: Callable[[], Traced]) -> Traced:
    """What `trace` gives for `model`, or gave for another with the same code and sizes, with this one's tensors."""
    key, own = _identity(model), dict(_tensors(model))
    if key in _known:
        _known.move_to_end(key)
        function, constants = _known[key]
        return function, {n: Weight.of(own[n]) if n in own else w for n, w in constants.items()}
    found = trace()
    # Weights of this model would be held for as long as the graph is: their types are enough.
    _known[key] = (
        found[0],
        {n: Weight(w.type, _gone) if n in own else w for n, w in found[1].items()},
    )
    if len(_known) > _KEPT:
        _known.popitem(last=False)
    return found


def _gone() -> Any:
    raise AssertionError("a weight of a model that was traced before")


def _identity(model: PreTrainedModel) -> object:
    """All that a trace can depend on: configuration, code, plain attributes, and sizes and ties of tensors."""
    first: dict[int, str] = {}
    tensors = tuple(
        (name, first.setdefault(id(x), name), tuple(x.shape), x.dtype)
        for name, x in _tensors(model)
    )
    modules = tuple((path, type(m), *_attributes(m)) for path, m in model.named_modules())
    return json.dumps(model.config.to_dict(), sort_keys=True, default=str), modules, tensors


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _attributes(module: nn.Module) -> Iterator[tuple[str, object]]:
    for name, value in module.__dict__.items():
        if value is None or isinstance(value, (bool, int, float, str)):
            yield name, (type(value), value)
        elif isinstance(value, (tuple, list)):
            yield name, repr(value)
        elif isinstance(value, (FunctionType, MethodType)):
            yield name, getattr(value, "__func__", value)
