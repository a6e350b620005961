"""Compiled rounds of token trees: accepted paths are the scripted ones, and nodes have the bits of plain decoding."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from specc.errors import RequestError
from specc.runtime import Artifact
from tests.conftest import compiled
from tests.passes import knowing_drafters
from tests.passes.test_trees import BOTH, SECOND, WRONG, circle


@pytest.fixture(
    scope="module",
    params=[("medusa", "inductor"), ("eagle3", "inductor"), ("eagle3", "tvm")],
    ids="-".join,
)
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Medusa with places, of which two of every rank are there three deep; EAGLE-3 with what it grows."""
    method, backend = request.param
    folder = tmp_path_factory.mktemp(method)
    knowing_drafters.target().save_pretrained(folder / "model")
    drafter = knowing_drafters.MAKERS[method](folder / "drafter", WRONG, SECOND)
    tree = {"medusa": BOTH.paths, "eagle3": 30}[method]
    return compiled(
        folder / "model", folder / "tree.specc", method, drafter=str(drafter), prefill_chunk=4, tree=tree,
        backend=backend,
    )  # fmt: skip


def _right(artifact: Path, after: list[int]) -> int:
    """Drafts of the path that is right: both choices are in the tree, but of Medusa's fourth head the first alone."""
    if "eagle3" in str(artifact):
        right = [t not in WRONG for t in after]
    else:
        ranks = tuple(9 if t in WRONG else int(t in SECOND) for t in after)
        right = [ranks[: d + 1] in BOTH.paths for d in range(len(after))]
    return [*right, False].index(False)


def test_paths_are_accepted_as_far_as_the_tree_knows(artifact: Path) -> None:
    text, seconds = circle(7, 64), 0
    with Artifact.load(artifact) as engine, engine.session() as session:
        nodes = {r.k: r.nodes for r in engine.manifest.rounds}
        assert nodes == ({0: 0, 2: 6, 4: 16} if "medusa" in str(artifact) else {0: 0, 2: 30, 4: 30})
        assert engine.manifest.capabilities == ()
        with pytest.raises(RequestError, match="SPECC-E0601"):
            session.configure(logprobs=1)
        session.configure(ignore_eos=True, max_tokens=100)
        session.append(text[:6])
        made, k_of = 6, cycle([4, 0, 0, 2, 4, 4, 0, 0, 2])
        while (
            made + nodes[4] + 8 <= 64
        ):  # further on, a round may not find the room that it asked for
            k = next(k_of)
            session.set("num_speculative_tokens", k)
            length = _right(artifact, text[made : made + k]) + 1
            before = session.stat("accepted_tokens")
            assert [session.next() for _ in range(length)] == text[made : made + length]
            assert session.stat("accepted_tokens") - before == length - 1
            seconds += len(SECOND.intersection(text[made : made + length - 1]))
            made += length
        assert seconds > 0, "no path but the first was ever accepted"
        for k in (4, -1):
            session.set("num_speculative_tokens", k)
            rest = [session.next() for _ in range(4)]
            assert rest == text[made : made + 4]
            made += 4
        assert [session.next() for _ in range(64 - made)] == text[made:], "up to where no tree fits"


def test_sampled_tokens_do_not_depend_on_trees(artifact: Path) -> None:
    with Artifact.load(artifact) as engine:
        for seed in (3, 4):
            texts = {
                engine.generate(
                    [1, 2, 3], max_tokens=24, num_speculative_tokens=k, temperature=1.5, seed=seed, ignore_eos=True
                ).token_ids
                for k in (0, 2, 4, -1)
            }  # fmt: skip
            assert len(texts) == 1


def test_a_node_has_the_bits_of_plain_decoding(artifact: Path) -> None:
    """Every path of a tree, decoded one by one in a session of its own."""
    parents = [-1, 0, 0, 1, 1, 2, 5]
    tokens = [5, 9, 14, 3, 8, 30, 2]
    prompt = [7, 10, 25]
    with Artifact.load(artifact) as engine:
        rows = {r.k: r.nodes + 1 for r in engine.manifest.rounds}[2]
        more = rows - len(parents)
        parents, tokens = [*parents, *[0] * more], [*tokens, *range(more)]
        depths = [0]
        for parent in parents[1:]:
            depths.append(depths[parent] + 1)
        inputs = {
            "tokens": tokens, "parents": parents, "positions": [3 + d for d in depths],
            "rows": [3 + i for i in range(rows)],
        }  # fmt: skip
        with engine.session() as session:
            session.append([*prompt, 0])
            block = bytes(session.run("verify_2", inputs))
        size = len(block) // rows
        for node in (3, 4, 6):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            with engine.session() as session:
                session.append([*prompt, 0])
                for place, each in enumerate(path):
                    at = [3 + place]
                    alone = session.run(
                        "verify_0", {"tokens": [tokens[each]], "positions": at, "rows": at}
                    )
                    assert bytes(alone) == block[each * size : (each + 1) * size]
