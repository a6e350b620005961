"""MLC's paged cache on CPUs: TVM's kernels around the engine's pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax.frontend.nn.llm.kv_cache import RopeMode, TIRPagedKVCache

from specc.backends.tvm.mlc.leaf import Heads
from specc.backends.tvm.templates import OWN
from specc.errors import BackendError

CREATE = "create_tir_paged_kv_cache"
_SIZES = (
    "max_batch_size", "max_total_seq_len", "prefill_chunk_size", "page_size", "support_sliding_window",
)  # fmt: skip
_PAGED = "tir_attention_prefill_with_tree_mask_with_paged_kv_cache"
_RAGGED = "tir_attention_prefill_with_tree_mask"


def add_cache(builder: Any, heads: Heads, layers: int, target: Any) -> None:
    """Add `create_tir_paged_kv_cache`, which takes five shapes of one number each, to the module.

    Keys come rotated by the model's own operations, so the cache rotates nothing.
    """
    numbers = [tirx.Var(name, "int64") for name in _SIZES]
    taken = [relax.Var(f"{n}_", relax.ShapeType([v])) for n, v in zip(_SIZES, numbers, strict=True)]
    batch, total, chunk, page, sliding = numbers
    known = set(builder.get().functions)
    with target, builder.function(CREATE, taken):
        made = TIRPagedKVCache(
            attn_kind="mha", max_batch_size=batch, max_total_seq_len=total, prefill_chunk_size=chunk,
            page_size=page, support_sliding_window=sliding, layer_partition=relax.ShapeExpr([0, layers]),
            num_hidden_layers=layers, num_attention_heads=heads.heads, num_key_value_heads=heads.kv_heads,
            qk_head_dim=heads.width, v_head_dim=heads.width, mla_original_qk_head_dim=0,
            mla_original_v_head_dim=0, rope_mode=RopeMode.NONE, rope_scale=1, rope_theta=10000, rope_scaling={},
            rope_ext_factors=relax.prim_value(0), rotary_dim=heads.width, enable_disaggregation=False,
            dtype="float32", target=target,
        )  # fmt: skip
        builder.emit_func_output(_ordered(builder, made._expr))
    for name, function in builder.get().functions.items():
        if name not in known and isinstance(function, tirx.PrimFunc):
            builder.update_func(name, function.with_attr(OWN, True))  # (scheduled as it is)


def _ordered(builder: Any, made: Any) -> Any:
    """The call that makes the cache, with the kernels of token trees where the runtime looks for them.

    The runtime takes first the kernel for trees over pages, then that for trees without (apache/tvm,
    src/runtime/vm/paged_kv_cache.cc); for CPUs TVM 0.27 passes them the other way round, and then every tree but a
    chain fails. What their names say is what counts, so that a TVM without this mistake is left alone.
    """
    call = made if isinstance(made, relax.Call) else builder.lookup_binding(made)
    args = list(call.args)
    names = [_kernel_name(builder, a) for a in args]
    places = [i for i, name in enumerate(names) if name.startswith(_RAGGED)]
    found = [names[i] for i in places]
    if len(places) != 2 or not any(n.startswith(_PAGED) for n in found):
        raise BackendError(
            "SPECC-E0442", "TVM cannot compile the paged cache", where=CREATE,
            expected="a kernel for token trees over pages and one without", found=", ".join(found),
            cure="pip install 'specc-compiler[tvm]'",
        )  # fmt: skip
    first, second = places
    if not found[0].startswith(_PAGED):
        args[first], args[second] = args[second], args[first]
    return builder.emit(relax.Call(call.op, args, call.attrs, call.ty_args))


def _kernel_name(builder: Any, value: Any) -> str:
    """The kernel in a pair of a word and a kernel; nothing for all else."""
    if isinstance(value, relax.Var):
        bound = builder.lookup_binding(value)
        value = value if bound is None else bound
    fields: Sequence[Any] = value.fields if isinstance(value, relax.Tuple) else ()
    known = len(fields) == 2 and isinstance(fields[1], ir.GlobalVar)
    return str(fields[1].name_hint) if known else ""
