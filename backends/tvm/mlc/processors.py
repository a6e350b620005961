"""Small kernels that MLC's engine calls by name, on rows of logits, probabilities and hidden states.

Indices are i32, as the engine has them; `n` numbers of the same kind share one name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812 (TVM's own name for it)

from specc.backends.tvm.templates import (
    argument,
    bound,
    i64,
    kernel,
    local,
    loop,
    require,
    store,
)

_LOWEST = -3.4028234663852886e38
_COLD = 1e-5
"""Temperatures below this are 0."""


def sizes(*names: str) -> tuple[Any, ...]:
    """Sizes that calls bring along. With names of their own a kernel always has the same text, which caches go by."""
    return tuple(tirx.Var(name, "int64") for name in names)


def processors() -> dict[str, Any]:
    """Each kernel by the name that the engine looks for."""
    made: dict[str, Callable[[], Any]] = {
        "apply_logit_bias_inplace": _bias, "apply_penalty_inplace": _penalty, "apply_bitmask_inplace": _mask,
        "gather_probs": _gather, "gather_hidden_states": _gather,
        "scatter_probs": _scatter, "scatter_hidden_states": _scatter,
    }  # fmt: skip
    return {name: build().with_attr("global_symbol", name) for name, build in made.items()}


def pick_rows(width: int) -> Any:
    """(x f32[n, width], at i32[m]) -> those rows, f32[m, width]. Fails for a row that is not there."""
    with kernel() as made:
        n, m = sizes("n", "m")
        x = argument("x", (n, i64(width)))
        at = argument("at", (m,), "int32")
        y = argument("y", (m, i64(width)))
        with loop(m) as i:
            inside = T.And(at[i] >= T.int32(0), T.cast(at[i], "int64") < n)
            require(inside, "a row of logits is not in the call")
        with loop(m) as i, loop(i64(width)) as c:
            store(y, x[T.cast(at[i], "int64"), c], i, c)
    return made.get()


def last_row(width: int) -> Any:
    """(x f32[n, width]) -> its last row, f32[1, width]."""
    with kernel() as made:
        (n,) = sizes("n")
        x = argument("x", (n, i64(width)))
        y = argument("y", (i64(1), i64(width)))
        with loop(i64(width)) as c:
            store(y, x[n - i64(1), c], i64(0), c)
    return made.get()


def softmax(vocabulary: int) -> Any:
    """(logits f32[b, 1, V], temperature f32[b]) -> probabilities f32[b, 1, V]; of 0, equal ones for the greatest."""
    size = i64(vocabulary)
    with kernel() as made:
        (b,) = sizes("b")
        logits = argument("logits", (b, i64(1), size))
        temperature = argument("temperature", (b,))
        y = argument("y", (b, i64(1), size))
        top, total = local(1), local(1)
        with loop(b) as i:
            store(top, logits[i, i64(0), i64(0)], i64(0))
            store(total, T.float32(0), i64(0))
            with loop(size) as c:
                store(top, T.max(top[i64(0)], logits[i, i64(0), c]), i64(0))
            cold = bound(temperature[i] < T.float32(_COLD))
            heat = bound(T.max(temperature[i], T.float32(_COLD)))
            with loop(size) as c:
                below = bound(logits[i, i64(0), c] - top[i64(0)])
                alike = T.Select(below == T.float32(0), T.float32(1), T.float32(0))
                store(y, T.Select(cold, alike, T.exp(below / heat)), i, i64(0), c)
                store(total, total[i64(0)] + y[i, i64(0), c], i64(0))
            with loop(size) as c:
                store(y, y[i, i64(0), c] / total[i64(0)], i, i64(0), c)
    return made.get()


def _bias() -> Any:
    """logits[row[i], token[i]] += bias[i]."""
    with kernel() as made:
        b, v, n = sizes("b", "v", "n")
        logits = argument("logits", (b, v))
        row, token = (argument(name, (n,), "int32") for name in ("row", "token"))
        bias = argument("bias", (n,))
        with loop(n) as i:
            store(logits, logits[row[i], token[i]] + bias[i], row[i], token[i])
    return made.get()


def _penalty() -> Any:
    """Of tokens that were said `count` times: presence, frequency and repetition, as OpenAI and CTRL define them."""
    with kernel() as made:
        b, v, s, n = sizes("b", "v", "s", "n")
        logits = argument("logits", (b, v))
        rows = argument("rows", (s,), "int32")
        which, token, count = (
            argument(name, (n,), "int32") for name in ("which", "token", "count")
        )
        by = argument("penalties", (s, i64(3)))
        with loop(n) as i:
            said = T.cast(count[i], "float32")
            taken = by[which[i], i64(0)] + said * by[which[i], i64(1)]
            store(logits, logits[rows[which[i]], token[i]] - taken, rows[which[i]], token[i])
            value, factor = logits[rows[which[i]], token[i]], by[which[i], i64(2)]
            punished = T.Select(value < T.float32(0), value * factor, value / factor)
            store(logits, punished, rows[which[i]], token[i])
    return made.get()


def _mask() -> Any:
    """Rows of logits whose bit of a token is 0 have the lowest number there."""
    with kernel() as made:
        b, v, s = sizes("b", "v", "s")
        logits = argument("logits", (b, v))
        rows = argument("rows", (s,), "int32")
        bits = argument("bits", (b, (v + i64(31)) // i64(32)), "int32")
        with loop(s) as i, loop(v) as t:
            word = bits[rows[i], t // i64(32)]
            allowed = (word >> T.cast(t % i64(32), "int32")) & T.int32(1)
            kept = T.Select(allowed == T.int32(1), logits[rows[i], t], T.float32(_LOWEST))
            store(logits, kept, rows[i], t)
    return made.get()


def _gather() -> Any:
    """(source [m, n], at i32[b], target [b, n]): target[i] = source[at[i]]."""
    with kernel() as made:
        m, n, b = sizes("m", "n", "b")
        source = argument("source", (m, n))
        at = argument("at", (b,), "int32")
        target = argument("target", (b, n))
        with loop(b) as i, loop(n) as c:
            store(target, source[at[i], c], i, c)
    return made.get()


def _scatter() -> Any:
    """(source [b, n], at i32[b], target [m, n]): target[at[i]] = source[i]."""
    with kernel() as made:
        m, n, b = sizes("m", "n", "b")
        source = argument("source", (b, n))
        at = argument("at", (b,), "int32")
        target = argument("target", (m, n))
        with loop(b) as i, loop(n) as c:
            store(target, source[i, c], at[i], c)
    return made.get()
