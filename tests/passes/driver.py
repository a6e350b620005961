"""The engine's loop in twenty lines: prefill, then rounds; commit by adding to the length."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import torch

from specc.ir import SpeculativeProgram, StateBuffer, StateKind
from specc.ir.evaluate import State, evaluate, fresh_state, text_inputs
from specc.ir.sharding import Way
from specc.ir.weights import Weight, WeightStore

Drafts = Callable[[Sequence[int], int], Sequence[int]]
"""Host drafter: the tokens so far and K -> K tokens."""

Trees = Callable[[Sequence[int], int], tuple[Sequence[int], Sequence[int]]]
"""The same of a tree: K tokens, and the node that each follows, 0 the root and j + 1 the j-th of them."""

Run = Callable[[SpeculativeProgram, str, Sequence[torch.Tensor], State], list[torch.Tensor]]
"""Runs a function, as `ir.evaluate` does."""


def generate(
    program: SpeculativeProgram, prompt: Sequence[int], count: int, ks: Iterable[int], *,
    depth: int = 0, heat: float = 0.0, seed: int = 0, drafts: Drafts = lambda x, k: [0] * k, trees: Trees | None = None,
    chunk: int = 0, first_row: int = 0, drafted: list[tuple[list[int], list[Any]]] | None = None,
    foretold: dict[int, list[float]] | None = None, poison: float = torch.nan, run: Run = evaluate,
) -> tuple[list[int], list[tuple[int, int]]]:  # fmt: skip
    """`count` new tokens, and (K, accepted) of every round. `ks` is K of each round, repeated.

    The text lies in the caches from `first_row` on. State is `poison` where nothing was written, and every
    cache row that is not right (another text's, at or beyond the length, or what a drafter has not been
    extended over) is that again before each round. The text before each round with drafts, and the
    drafts, or the paths of a tree of them, are added to `drafted`; confidences to `foretold`, by the
    text's length.
    """
    read = {name: Weight.of(weight.load()) for name, weight in program.weights.items()}
    program = replace(program, weights=WeightStore(read))  # once, not for each function that runs
    state = fresh_state(program)
    for buffer in state.values():
        buffer.fill_(poison)
    x, n = list(prompt), len(prompt) - 1
    tap, step = 0, chunk or program.prefill_chunk
    for begin in range(0, n, step):
        part = x[begin : min(begin + step, n)]
        at = torch.arange(begin, begin + len(part))
        inputs = text_inputs(program, "prefill", torch.tensor(part), at, first_row)
        run(program, "prefill", inputs, state)
        tap = len(part) - 1
    rounds, k_of, paired = [], cycle(ks), 0
    while len(x) < len(prompt) + count:
        k = next(k_of) if n >= program.contract.min_length else 0
        if n + program.contract.draft_rows > program.max_model_len:
            k = 0
        for buffer in program.state.values():
            lags = program.contract.extend and buffer.name.startswith("drafter.")
            if buffer.kind is not StateKind.HIDDEN_STATES:
                rows = _rows_of(program, buffer)
                right = (rows >= first_row) & (rows < first_row + (paired if lags else n))
                state[buffer.name][:, ~right] = poison
        if k and program.contract.extend:
            while n - paired > step:
                pairs = _pairs(x, paired, paired + step, first_row)
                run(program, program.contract.extend, list(pairs.values()), state)
                paired += step
            paired = min(paired, n - 1)
        name = f"round_{k}_d{depth}" if depth and k else f"round_{k}"
        values = {
            "root": [x[-1]], "length": [n], "seed": [seed], "previous": [x[max(n - 1, 0)]],
            "tap_row": [tap], "first_row": [first_row], "drafts": list(drafts(x, k)),
        }  # fmt: skip
        values |= tree_inputs(*trees(x, k)) if trees is not None and k else {}
        inputs = {key: torch.tensor(value) for key, value in values.items()}
        inputs |= _pairs(x, paired, n, first_row)
        inputs["temperature"] = torch.tensor([heat], dtype=torch.float64)
        if k and drafted is not None:
            propose = program.functions[f"propose_{k}"]
            copies = {key: value.clone() for key, value in state.items()}
            args = [inputs[i.name] for i in propose.inputs]
            told = dict(zip(propose.outputs, run(program, propose.name, args, copies), strict=True))
            tree = "parents" in told
            found = paths(told["tokens"], told["parents"]) if tree else told["drafts"].tolist()
            drafted.append((list(x), found))
            for what, result in told.items():
                if foretold is not None and what.startswith("confidence"):
                    foretold.setdefault(len(x), []).append(result.item())
        function = program.functions[name]
        tokens, accepted = run(program, name, [inputs[i.name] for i in function.inputs], state)
        a = int(accepted)
        assert a >= 0, "a logit that counts is NaN"
        rounds.append((k, a))
        paired = n if k else paired
        x += tokens[: a + 1].tolist()
        n, tap = n + a + 1, a
    return x[len(prompt) : len(prompt) + count], rounds


def _rows_of(program: SpeculativeProgram, buffer: StateBuffer) -> torch.Tensor:
    """Which cache rows the buffer holds: all of them, but for a shard."""
    held, shard = int(buffer.type.shape[1]), re.search(r"\.shard_(\d+)", buffer.name)
    by_rows = shard and program.sharding is not None and program.sharding.way is Way.ROWS
    return torch.arange(held) + (int(shard[1]) * held if shard and by_rows else 0)


def tree_inputs(drafts: Sequence[int], follows: Sequence[int]) -> dict[str, list[int]]:
    """What a round is told of a tree that comes from outside."""
    depths = [0]
    for parent in follows:
        depths.append(depths[parent] + 1)
    return {"drafts": list(drafts), "parents": [-1, *follows], "depths": depths}


def paths(tokens: torch.Tensor, parents: torch.Tensor) -> list[tuple[int, ...]]:
    """The path of tokens to each node but the root."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in list(zip(tokens.tolist(), parents.tolist(), strict=True))[1:]:
        found.append((*found[parent], token))
    return found[1:]


def _pairs(x: Sequence[int], begin: int, end: int, first_row: int) -> dict[str, torch.Tensor]:
    """Positions begin to end - 1, and the token after each."""
    at = torch.arange(begin, end)
    return {
        "next_tokens": torch.tensor(x[begin + 1 : end + 1]),
        "positions": at,
        "rows": at + first_row,
    }
