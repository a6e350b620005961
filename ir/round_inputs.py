"""What the engine feeds to prefill and rounds: the one list, by name.

Texts are tokens x[0..n], of which x[n] is the root, and lie in cache rows first_row to
first_row + S - 1. A function declares those that it reads. `runtime/cpp/core/engine/inputs.cpp` has
the same table; a test compares them.
"""

from __future__ import annotations

from specc.ir.types import TensorType

PREFILL_INPUTS = {
    "tokens": TensorType("i64", ("T",)),
    "positions": TensorType("i64", ("T",)),
    "rows": TensorType("i64", ("T",)),
}
"""T prompt tokens, their positions in the text, and where in the caches they go."""

EXTEND_INPUTS = {
    "next_tokens": TensorType("i64", ("T",)),
    "positions": TensorType("i64", ("T",)),
    "rows": TensorType("i64", ("T",)),
}
"""T committed positions that a drafter is extended over, the last that before the root: the token after each, the
positions, and where in the caches they go. A round with drafts may declare these too."""

_ONE = TensorType("i64", (1,))
_ROUND = {
    "root": _ONE,  # x[n]
    "previous": _ONE,  # x[n-1], or x[0] when n = 0
    "length": _ONE,  # n
    "first_row": _ONE,  # the cache row of x[0]
    "tap_row": _ONE,  # which row of the last verify or prefill chunk was position n-1
    "temperature": TensorType("f64", (1,)),
    "seed": _ONE,
}


def verify_inputs(k: int) -> dict[str, TensorType]:
    """Inputs of verify_K: the root and `k` drafts, their positions, and where in the caches they go.

    Where drafts may be a tree, `parents` too: for each, which of them it follows, -1 the root.
    """
    block = TensorType("i64", (k + 1,))
    return dict.fromkeys((*PREFILL_INPUTS, "parents"), block)


def commit_inputs(k: int) -> dict[str, TensorType]:
    """Inputs of commit_K: the `rows` that verify_K was given, and the `nodes` of the accepted path.

    These are as accept_tree gives them; their rows move to the first of `rows`.
    """
    return dict.fromkeys(("rows", "nodes"), TensorType("i64", (k + 1,)))


def round_inputs(k: int) -> dict[str, TensorType]:
    """Inputs that a round of `k` drafts may declare; `drafts` where the drafter is on the host.

    Where these may be a tree, `parents` and `depths` of the root and the drafts too. A function that proposes drafts
    has the others to choose from.
    """
    block = TensorType("i64", (k + 1,))
    given = {"drafts": TensorType("i64", (k,)), "parents": block, "depths": block}
    return _ROUND | (given if k else {})
