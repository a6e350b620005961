"""Trees that come from outside the graph: whatever their shape and tokens, what comes out is plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.ir import SpeculativeProgram
from specc.ir.evaluate import State, evaluate, fresh_state
from specc.ir.extents import prove_writes
from specc.passes import pipelines
from tests.passes.driver import generate, tree_inputs
from tests.passes.test_pipelines import PROMPT, SHAPE, VOCAB, _imported, _plain, _reference

K = 6
COUNT = 12


@cache
def _program(family: str) -> SpeculativeProgram:
    shape = replace(SHAPE, num_speculative_tokens=(0, 2, K), given_trees=True)
    return pipelines.host("suffix", shape, {})(_imported(family, 3, 16))


@cache
def _text(family: str, heat: float) -> list[int]:
    return [*PROMPT, *_plain(family, tuple(PROMPT), heat, 5)]


@st.composite
def _shapes(draw: st.DrawFn, k: int = K) -> list[int]:
    """For each draft, which node it follows: any that stands before it."""
    return [draw(st.integers(0, j)) for j in range(k)]


class _Script:
    """Trees of a drawn shape, in which each node is right with a drawn chance, given that its parent is.

    Tokens of siblings may be equal: then the first of them counts. `longest` is what the script expects of each round.
    """

    def __init__(self, shape: Sequence[int], right: Sequence[bool], text: Sequence[int]) -> None:
        self.shape, self.right, self.text = shape, right, text
        self.longest: list[int] = []

    def __call__(self, x: Sequence[int], k: int) -> tuple[list[int], list[int]]:
        after, depths, on_path, tokens = self.text[len(x) :], [0], [True], []
        for j, parent in enumerate(self.shape[:k]):
            depth = depths[parent]
            known = after[depth] if depth < len(after) else 0
            good = on_path[parent] and self.right[j] and depth < len(after)
            tokens.append(known if good else (known + 1 + j) % VOCAB)
            depths.append(depth + 1)
            on_path.append(good)
        self.longest.append(len(_walk(tokens, self.shape, lambda node: after[depths[node] :][:1])))
        return tokens, list(self.shape[:k])


def _walk(
    drafts: Sequence[int], follows: Sequence[int], said: Callable[[int], Sequence[int]]
) -> list[int]:
    """The nodes of the path that is what is `said` after each node; of equal children the first goes on."""
    node, nodes = 0, []
    while token := said(node):
        found = (j + 1 for j, t in enumerate(drafts) if follows[j] == node and [t] == [*token])
        if (node := next(found, 0)) == 0:
            break
        nodes.append(node)
    return nodes


@settings(max_examples=7, deadline=None, derandomize=True)
@given(
    shape=_shapes(),
    right=st.lists(st.booleans(), min_size=K, max_size=K),
    heat=st.sampled_from([0.0, 1.0]),
)
def test_any_tree_says_what_plain_decoding_says(
    shape: list[int], right: list[bool], heat: float
) -> None:
    """Rows behind the text hold NaN before each round, so what a dead node wrote would be seen."""
    text = _text("gemma2", heat)
    script = _Script(shape, right, text)
    made, rounds = generate(
        _program("gemma2"), PROMPT, COUNT, [K, 2], heat=heat, seed=5, trees=script
    )
    assert made == text[len(PROMPT) :]
    known = [
        a for a, made in _places(rounds) if made + K < COUNT
    ]  # where the script knows what follows
    assert known == script.longest[: len(known)]


def _places(rounds: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What each round accepted, and the tokens made before it."""
    before = accumulate((a + 1 for _, a in rounds), initial=0)
    return [(a, made) for (_, a), made in zip(rounds, before, strict=False)]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize(
    ("shape", "wrong", "deepest"),
    [([0, 1, 2, 3, 4, 5], 0, 6), ([0] * 6, 5, 1), ([0, 0, 1, 1, 3, 5], 0, 4), ([0, 0, 0, 3, 4, 5], 2, 4)],
)  # fmt: skip
def test_an_oracle_is_believed_to_the_end_and_an_adversary_never(
    family: str, shape: list[int], wrong: int, deepest: int
) -> None:
    """Against transformers: whole paths of right tokens, wherever in the tree they stand, and none at all."""
    text = [*PROMPT, *_reference(family)]
    for right in (True, False):
        script = _Script(shape, [right and j >= wrong for j in range(K)], text)
        made, rounds = generate(_program(family), PROMPT, COUNT, [K], trees=script)
        assert made == text[len(PROMPT) :][:COUNT]
        assert rounds[0][1] == (deepest if right else 0)
        assert right or len(rounds) == COUNT


def _prefilled(program: SpeculativeProgram, tokens: Sequence[int]) -> State:
    state = fresh_state(program)
    for begin in range(0, len(tokens), 8):
        part = torch.tensor(tokens[begin : begin + 8])
        at = torch.arange(begin, begin + len(part))
        evaluate(program, "prefill", [part, at, at], state)
    return state


@settings(max_examples=4, deadline=None, derandomize=True)
@given(shape=_shapes(), right=st.lists(st.booleans(), min_size=K, max_size=K))
def test_pieces_leave_what_the_round_leaves(shape: list[int], right: list[bool]) -> None:
    """verify_K, a path that the host walks by itself, commit_K."""
    program, text = _program("llama"), _text("llama", 0.0)
    n = len(PROMPT) - 1
    drafts, follows = _Script(shape, right, text)(PROMPT, K)
    told = {name: torch.tensor(v) for name, v in tree_inputs(drafts, follows).items()}
    one = {"root": PROMPT[-1], "length": n, "first_row": 0, "seed": 0, "temperature": 0}
    told |= {name: torch.tensor([v]) for name, v in one.items()}
    told["temperature"] = told["temperature"].double()
    whole, pieces = (_prefilled(program, PROMPT[:-1]) for _ in range(2))
    inputs = [told[i.name] for i in program.functions[f"round_{K}"].inputs]
    tokens, accepted = evaluate(program, f"round_{K}", inputs, whole)

    rows = torch.arange(n, n + K + 1)
    block = [torch.tensor([PROMPT[-1], *drafts]), n + told["depths"], rows, told["parents"]]
    (logits,) = evaluate(program, f"verify_{K}", block, pieces)
    best = logits.argmax(-1).tolist()
    nodes = [0, *_walk(drafts, follows, lambda node: [best[node]])]
    chosen = [best[node] for node in nodes]
    assert tokens[: int(accepted) + 1].tolist() == chosen
    path = torch.tensor([*nodes, *range(len(nodes), K + 1)])
    evaluate(program, f"commit_{K}", [rows, path], pieces)
    for name, buffer in whole.items():
        assert torch.equal(buffer, pieces[name]), name
    later = _prefilled(program, [*PROMPT, *chosen[:-1]])
    for name, buffer in later.items():
        kept = buffer[:, : n + len(nodes)]
        torch.testing.assert_close(kept, whole[name][:, : n + len(nodes)], atol=1e-5, rtol=1e-4)


def test_writes_of_all_pieces_are_proved() -> None:
    program = _program("llama")
    assert {f"commit_{k}" for k in (2, K)} <= program.functions.keys()
    assert [r.commit for r in program.rounds] == [None, "commit_2", f"commit_{K}"]
    assert prove_writes(program) > 0
    assert "on the host of any tree" in str(program)
