"""A model as a library that MLC's engine calls: its functions by their names, over pieces of the program.

The names and types are those that the engine looks up (mlc-ai/mlc-llm, cpp/serve/function_table.cc and model.cc).
Activations are f32 at every border. n is the tokens of a call, b the texts, H the width, V the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from specc.backends.tvm.converter import dtype_of
from specc.backends.tvm.mlc import processors
from specc.backends.tvm.mlc.cache import add_cache
from specc.backends.tvm.mlc.leaf import Heads
from specc.backends.tvm.mlc.writer import LibraryWriter, Limits, tensor
from specc.errors import BackendError
from specc.ir import Role, SpeculativeProgram, StateKind
from specc.ir.graphs import results_of, type_of

LAST = "_to_last_hidden_states"
"""Ends the names of functions that stop before the head."""


@dataclass(frozen=True)
class Library:
    """The module, what `_metadata` says of it, and the names of the weights that `params` holds, in order."""

    module: Any
    metadata: Mapping[str, Any]
    parameters: Sequence[str]
    functions: Sequence[str]


def model_library(program: SpeculativeProgram, limits: Limits, target: Any) -> Library:
    """The library of a program with the pieces of `split-ends`, or of a drafter with some of them.

    Raises BackendError: SPECC-E0441 for what MLC cannot express, by name, E0442 where TVM fails.
    """
    writer = LibraryWriter(program, limits)
    for function in program.functions.values():
        if function.role is not Role.LEAF and function.name != "target":
            writer.piece(function)
    engine_functions(writer)
    caches = [b for b in program.state.values() if b.kind is StateKind.KV_CACHE]
    layers = len(caches) // 2
    kinds = {leaf.heads for leaf in writer.leaves.values() if leaf.heads is not None}
    if len(kinds) > 1:
        raise BackendError(
            "SPECC-E0441", "layers have different heads: MLC's paged cache has one form for all",
            where=program.name, expected="one", found=", ".join(map(str, sorted(kinds, key=str))),
            cure="use --backend tvm",
        )  # fmt: skip
    heads = next(iter(kinds), None)
    if heads is not None:
        add_cache(writer.builder, heads, layers, target)
    metadata = _metadata(writer, heads, layers)
    with writer.builder.function("_metadata", []):
        writer.builder.emit_func_output(tvm.ir.StringImm(json.dumps(metadata)))
    for name, kernel in processors.processors().items():
        writer.builder.update_func(writer.builder.add_func(kernel, name), kernel)
    # (What the cache was made of before its kernels were put in order would make another.)
    module = relax.transform.DeadCodeElimination()(writer.builder.finalize())
    return Library(module, metadata, writer.names, writer.functions)


def engine_functions(w: LibraryWriter) -> None:
    """What the engine looks up for the pieces that are there."""
    known = w.program.functions
    size, vocabulary = w.program.model.hidden_size, vocabulary_of(w.program)
    if "embedding" in known:
        w.public(
            "embed", {"tokens": tensor("int32", tirx.Var("n", "int64"))},
            lambda tokens, params: w.call("embedding", w.cast(tokens, "i64"), params)[0],
        )  # fmt: skip
    if "fuse" in known:
        rows = tirx.Var("n", "int64")
        pair = {n: tensor("float32", rows, size) for n in ("embeddings", "hidden_states")}
        w.public("fuse_embed_hidden_states", pair, lambda e, h, p: w.call("fuse", e, h, p)[0])
    if "hidden" in known:
        for name, form in _FORMS.items():
            if "fuse" not in known:
                form(w, name, size, vocabulary)
            if "fuse" not in known or name != "batch_verify":
                form(w, name + LAST, size, 0)
    for name in ("get_logits", "batch_get_logits"):
        if "logits" in known:
            states = {"hidden_states": tensor("float32", tirx.Var("n", "int64"), size)}
            w.public(name, states, lambda h, p: _one_or_all(w.call("logits", h, p)))
    texts = tirx.Var("b", "int64")
    w.public(
        "softmax_with_temperature",
        {"logits": tensor("float32", texts, 1, vocabulary), "temperature": tensor("float32", texts)},
        lambda x, heat: w.kernel(processors.softmax(vocabulary), "softmax", [x, heat], x.ty.shape[0], 1, vocabulary),
        params=False,
    )  # fmt: skip
    room = relax.ShapeExpr([tirx.IntImm("int64", d) for d in (w.limits.chunk, size)])
    w.public(
        "alloc_embedding_tensor", {},
        lambda: w.builder.emit(relax.op.builtin.alloc_tensor(room, "float32", runtime_device_index=0)),
        params=False,
    )  # fmt: skip


def _one_or_all(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else relax.Tuple(results)


def _text(w: LibraryWriter, name: str, size: int, vocabulary: int) -> None:
    """prefill: [1, n, H] -> logits of the last token [1, 1, V]."""
    n = tirx.Var("n", "int64")

    def body(x: Any, cache: Any, params: Any) -> Any:
        (h,) = w.call("hidden", w.shaped(x, n, size), cache, params)
        if not vocabulary:
            return w.shaped(h, 1, n, size)
        last = w.kernel(processors.last_row(size), "last_row", [h], 1, size)
        return w.shaped(w.call("logits", last, params)[0], 1, 1, vocabulary)

    w.public(name, {"x": tensor("float32", 1, n, size)}, body, cache=True)


def _texts(w: LibraryWriter, name: str, size: int, vocabulary: int) -> None:
    """batch_prefill: [1, n, H], i32[b] -> logits of those b rows [1, b, V]."""
    n, b = tirx.Var("n", "int64"), tirx.Var("b", "int64")
    x = tensor("float32", 1, n, size)
    if not vocabulary:
        _text(w, name, size, 0)
        return

    def body(x: Any, at: Any, cache: Any, params: Any) -> Any:
        (h,) = w.call("hidden", w.shaped(x, n, size), cache, params)
        picked = w.kernel(processors.pick_rows(size), "pick_rows", [h, at], b, size)
        return w.shaped(w.call("logits", picked, params)[0], 1, b, vocabulary)

    w.public(name, {"x": x, "logit_positions": tensor("int32", b)}, body, cache=True)


def _every(
    w: LibraryWriter, name: str, size: int, vocabulary: int, rows: Any, lead: tuple[Any, Any]
) -> None:
    def body(x: Any, cache: Any, params: Any) -> Any:
        (h,) = w.call("hidden", w.shaped(x, rows, size), cache, params)
        if not vocabulary:
            return w.shaped(h, *lead, size)
        return w.shaped(w.call("logits", h, params)[0], *lead, vocabulary)

    w.public(name, {"x": tensor("float32", *lead, size)}, body, cache=True)


def _step(w: LibraryWriter, name: str, size: int, vocabulary: int) -> None:
    """decode: [1, 1, H] -> [1, 1, V]."""
    _every(w, name, size, vocabulary, 1, (1, 1))


def _steps(w: LibraryWriter, name: str, size: int, vocabulary: int) -> None:
    """batch_decode: [b, 1, H] -> [b, 1, V]."""
    b = tirx.Var("b", "int64")
    _every(w, name, size, vocabulary, b, (b, 1))


def _verify(w: LibraryWriter, name: str, size: int, vocabulary: int) -> None:
    """batch_verify: [1, n, H] -> [1, n, V]."""
    n = tirx.Var("n", "int64")
    _every(w, name, size, vocabulary, n, (1, n))


_FORMS: Mapping[str, Callable[[LibraryWriter, str, int, int], None]] = {
    "prefill": _text, "batch_prefill": _texts, "decode": _step, "batch_decode": _steps, "batch_verify": _verify,
}  # fmt: skip


def vocabulary_of(program: SpeculativeProgram) -> int:
    """Rows of the head."""
    found = type_of(results_of(program.functions["logits"].graph)[0]).shape[-1]
    assert isinstance(found, int)
    return found


def _metadata(w: LibraryWriter, heads: Heads | None, layers: int) -> dict[str, Any]:
    """What `_metadata` says."""
    parameters = [
        {
            "name": n, "shape": list(w.program.weights[n].type.at()),
            "dtype": dtype_of(w.program.weights[n].type.dtype), "preprocs": [], "pipeline_stages": [0],
        }
        for n in w.names
    ]  # fmt: skip
    kind = {} if heads is None else {
        "kv_cache": {
            "num_hidden_layers": layers, "num_attention_heads": heads.heads,
            "num_key_value_heads": heads.kv_heads, "head_dim": heads.width,
        },
    }  # fmt: skip
    return {
        "model_type": w.program.model.architecture, "quantization": "q0f32",
        "context_window_size": w.limits.context, "sliding_window_size": -1, "attention_sink_size": -1,
        "prefill_chunk_size": w.limits.chunk, "max_batch_size": w.limits.batch, "tensor_parallel_shards": 1,
        "pipeline_parallel_stages": 1, "disaggregation": False, "model_task": "chat",
        "kv_state_kind": "none" if heads is None else "kv_cache", **kind,
        "params": parameters, "memory_usage": dict.fromkeys(w.functions, 0),
    }  # fmt: skip
