"""Token trees in whole pipelines: what is drafted is EAGLE-2's choice, and what comes out is plain decoding."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path

import pytest

from specc.ir import DynamicTree, SpeculativeProgram, StaticTree, Tree
from specc.ir.importers.drafters import Target, load_drafter
from specc.ir.importers.huggingface import import_model
from specc.passes import pipelines
from tests.ir.importers.drafters.reference import Raw
from tests.passes import knowing_drafters, reference_tree
from tests.passes.driver import generate
from tests.passes.test_trained_drafters import COUNT, DRAFTERS, PROMPT, SHAPE, target

WIDE = StaticTree.of([
    (0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2, 1), (0, 0, 0), (0, 0, 2), (1, 0, 0), (0, 0, 0, 0), (0, 0, 2, 1),
])  # fmt: skip
GROWN = DynamicTree(7, 3)
TREES: dict[str, tuple[str, Tree]] = {
    "medusa, places": ("medusa", WIDE),
    "medusa, grown": ("medusa-shared", GROWN),
    "eagle3": ("eagle3-fc-norm-recycled-norm", GROWN),
    "mtp": ("mtp", GROWN),
    "dflash, places": ("dflash-window", WIDE),
    "dspark, recurrent": ("dspark-rnn", GROWN),
    "dspark, few tokens": ("dspark-few-tokens", GROWN),
    "dspark, places": ("dflash-anchor-first", WIDE),
}


@pytest.fixture(scope="module", params=TREES)
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SpeculativeProgram:
    maker, tree = TREES[request.param]
    model, imported = target()
    folder = DRAFTERS[maker](tmp_path_factory.mktemp("drafter"), model)
    checkpoint = load_drafter(folder, Target.of(imported))
    return pipelines.trained(replace(SHAPE, tree=tree), checkpoint.spec.kind, checkpoint)(imported)


@cache
def _plain(heat: float) -> list[int]:
    program = pipelines.host("none", SHAPE, {})(target()[1])
    return generate(program, PROMPT, COUNT, [0], heat=heat, seed=5)[0]


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_tokens_are_those_of_no_drafter(program: SpeculativeProgram, heat: float) -> None:
    plain = _plain(heat)
    for ks in ([4], [2, 0, 4]):
        assert generate(program, PROMPT, COUNT, ks, heat=heat, seed=5)[0] == plain


@pytest.mark.parametrize(
    ("maker", "tree"), [("medusa", WIDE), ("medusa-shared", GROWN), ("eagle-bias", GROWN), ("eagle3-safeailab", GROWN)]
)  # fmt: skip
def test_nodes_are_those_of_the_papers(maker: str, tree: Tree, tmp_path: Path) -> None:
    model, imported = target()
    folder = DRAFTERS[maker](tmp_path / "drafter", model)
    checkpoint = load_drafter(folder, Target.of(imported))
    shape = replace(SHAPE, tree=tree)
    built = pipelines.trained(shape, checkpoint.spec.kind, checkpoint)(imported)
    drafted: list[tuple[list[int], list[tuple[int, ...]]]] = []
    generate(built, PROMPT, 6, (4, 0, 2), chunk=3, drafted=drafted)
    assert len(drafted) >= 3
    for (text, nodes), k in zip(drafted, cycle((4, 2)), strict=False):
        if isinstance(tree, StaticTree):
            rows = reference_tree.medusa(Raw.read(folder), model, text, k)
            want = reference_tree.places(rows, tree.nodes(k)[1:])
        else:
            want = reference_tree.drafted(folder, model, text, k, tree.width, tree.most)
        assert len(nodes) == len(set(nodes)) == tree.size(k)
        assert set(nodes) == want, len(text)


WRONG, SECOND = {11, 20, 26}, {9, 14, 22, 30}
"""What a drafter does not think of, and what it likes second best."""

BOTH = StaticTree.of([
    *([(a,) for a in (0, 1)]), *((a, b) for a in (0, 1) for b in (0, 1)),
    *((a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)), (0, 0, 0, 0), (0, 1, 0, 0),
])  # fmt: skip


def circle(start: int, count: int) -> list[int]:
    """What the knowing drafters' target says."""
    text = [start]
    while len(text) < count:
        text.append(knowing_drafters.NEXT[text[-1]])
    return text


@pytest.mark.parametrize(
    ("method", "tree"),
    [("medusa", BOTH), ("medusa", DynamicTree(30, 8)), ("eagle3", DynamicTree(30, 8)), ("dspark", DynamicTree(30, 8))],
)  # fmt: skip
def test_the_longest_path_of_the_tree_is_accepted(method: str, tree: Tree, tmp_path: Path) -> None:
    """Accepted lengths are scripted: right tokens are first or second choices of a drafter, or none at all."""
    model = knowing_drafters.target()
    imported = import_model(model, "circle")
    folder = knowing_drafters.MAKERS[method](tmp_path / method, WRONG, SECOND)
    checkpoint = load_drafter(folder, Target.of(imported), method)
    shape = replace(SHAPE, tree=tree, max_model_len=64)
    built = pipelines.trained(shape, checkpoint.spec.kind, checkpoint)(imported)
    text = circle(7, 40)
    for ks, chunk in (((4,), 8), ((2, 0, 4, 0, 0, 2), 3)):
        tokens, rounds = generate(built, text[:5], 24, ks, chunk=chunk)
        assert tokens == text[5:29]
        place, seconds = 5, 0
        for k, accepted in rounds:
            after = text[place : place + k]
            if isinstance(tree, StaticTree):
                ranks = tuple(9 if t in WRONG else int(t in SECOND) for t in after)
                right = [ranks[: d + 1] in tree.paths for d in range(k)]
            else:
                right = [t not in WRONG for t in after]
            assert accepted == [*right, False].index(False), (k, after)
            seconds += len(SECOND.intersection(after[:accepted]))
            place += accepted + 1
        assert seconds > 0, "no path but the first was ever accepted"
