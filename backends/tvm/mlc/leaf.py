"""A leaf for MLC's engine: attention goes to the engine's paged cache, which is a handle and no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx
from tvm import ir, relax

from specc.backends.tvm.conversions import _size, rounded
from specc.backends.tvm.converter import CONVERSIONS, Conversion, Converter, arguments
from specc.errors import BackendError
from specc.ir import Function, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import type_of

ATTENTION = "vm.builtin.attention_kv_cache_attention_with_fused_qkv"
"""(cache, layer, scale of scores, q, k and v side by side [T, heads, D], out): writes k and v, then attends."""

_CACHE_OPS = (ops.cache_write.default, ops.cached_attention.default)


@dataclass(frozen=True)
class Heads:
    """What one paged cache is made for: all layers of a model share it."""

    heads: int
    kv_heads: int
    width: int


class PagedLeaf(Converter):
    """A leaf whose caches are a handle: its function takes the inputs `kept`, then the cache and the layer's number.

    Positions come from the engine, rows and caches are its own affair.
    """

    conversions: ClassVar[Mapping[Any, Conversion]] = {
        **CONVERSIONS,
        ops.cache_write.default: lambda c, node: _write(c, node),  # type: ignore[arg-type]
        ops.cached_attention.default: lambda c, node: _attend(c, node),  # type: ignore[arg-type]
    }

    def __init__(self, function: Function, builder: Any, limit: int) -> None:
        super().__init__(function, builder)
        self.limit = limit
        self.cache = relax.Var("cache", relax.AnyType())
        self.layer = relax.Var("layer", ir.PrimType("int64"))
        self.new: dict[fx.Node, fx.Node] = {}
        self.heads: Heads | None = None
        self.kept = [i for i, node in enumerate(function.inputs) if _is_read(node)]
        self.attends = any(n.target is _CACHE_OPS[1] for n in function.graph.nodes)
        inputs = [function.inputs[i] for i in self.kept]
        for node in inputs:
            self.values[node] = relax.Var(node.name, self.type(type_of(node)))
        handles = [self.cache, self.layer] if self.attends else []
        parameters = [*(self.values[n] for n in inputs), *handles]
        self.variable = self.define(function.name.replace(".", "_"), parameters)
        if self.new:
            raise BackendError(
                "SPECC-E0443", "a write to state was lost on the way through TVM", where=function.name,
                expected="keys and values that are attended to", found=f"{len(self.new)} that are not",
                cure="report this as a bug",
            )  # fmt: skip

    def beyond(self, what: str) -> BackendError:
        """The error for attention that the paged cache does not have."""
        return BackendError(
            "SPECC-E0441", f"{what}: MLC's paged attention has none", where=self.refuse(what).where,
            expected="attention of each layer over all of its own keys, as a plain softmax",
            cure="leave out --format (--backend tvm has all of it), or with a window make --max-model-len no longer",
        )  # fmt: skip


def _is_read(node: fx.Node) -> bool:
    """Whether an input is anything but a cache, its rows, or positions that only attention takes."""
    data = {ops.cache_write.default: (1,), ops.cached_attention.default: (0, 9)}
    return any(
        user.target not in data or any(user.args[i] is node for i in data[user.target])
        for user in node.users
    )


def _write(c: PagedLeaf, node: fx.Node) -> Any:
    """Attention writes what it is given, so a write waits for it."""
    cache, x, _ = arguments(node)
    c.new[cache] = x
    return []


def _attend(c: PagedLeaf, node: fx.Node) -> Any:
    q, k, v, _, _, parents, scale, window, softcap, sinks = arguments(node)
    if k not in c.new or v not in c.new:
        raise c.beyond("attention over the keys of another layer")
    new_k, new_v = c.new.pop(k), c.new.pop(v)
    c.heads = Heads(_size(q, 1), _size(new_k, 1), _size(q, 2))
    for what, there in (
        (f"a window of {window} tokens in some layers", 0 < window < c.limit),
        ("a cap on scores", softcap != 0), ("sinks in the softmax", sinks is not None),
        ("token trees of its own", parents is not None),
        ("values of another width than keys", _size(new_v, 2) != c.heads.width),
    ):  # fmt: skip
        if there:
            raise c.beyond(what)
    parts = [c.value(x, "f32") for x in (q, new_k, new_v)]
    qkv = c.emit(relax.op.concat(parts, axis=1))
    type_ = TensorType("f32", (type_of(q).shape[0], c.heads.heads, c.heads.width))
    operands = [c.cache, c.layer, relax.prim_value(float(scale)), qkv]
    found = c.emit(relax.call_dps_packed(ATTENTION, operands, out_ty=c.type(type_)))
    return rounded(c, found, node)
