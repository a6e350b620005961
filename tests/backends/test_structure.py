"""mtp:structure, compiled: drafts come from where the model was in a like state, and the text is plain decoding's."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specc.errors import ArtifactError
from specc.runtime import Artifact, Session
from tests.conftest import compiled
from tests.passes import knowing_drafters
from tests.passes.knowing_drafters import NEXT
from tests.passes.test_trees import circle
from tests.runtime.test_batch import played

TEXT = circle(7, 64)
COUNT = 24
AMBIGUOUS = [*TEXT[:9], *TEXT[2:4], 0, 0, *TEXT[2:4], 1, 1, *TEXT[2:4]]
"""TEXT[2:4] went on in three ways, of which the earliest is right."""
TOLD_APART = [1, *TEXT[2:9], 0, TEXT[3], 0, 0, 9, TEXT[3], 1, 1, *TEXT[2:4]]
"""TEXT[3] went on in three ways; after TEXT[2] it did so in the first alone."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The knowing drafters' target, whose layers add nothing: a key and a value tell the token and nothing else."""
    folder = tmp_path_factory.mktemp("structure")
    knowing_drafters.target().save_pretrained(folder / "model")
    letters = [chr(ord("A") + i) for i in range(knowing_drafters.VOCAB)]
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "model/tokenizer.json"))
    (folder / "text").write_text("".join(letters[t] for t in [*TEXT, *reversed(TEXT)] * 3))
    return folder / "model"


def _compiled(model: Path, backend: str) -> Path:
    return compiled(
        model, model.parent / f"{backend}.specc", "mtp:structure", calibration=model.parent / "text",
        num_speculative_tokens=(0, 2, 8), prefill_chunk=4, max_model_len=64, max_num_seqs=4, backend=backend,
    )  # fmt: skip


@pytest.fixture(scope="module")
def artifact(model: Path) -> Path:
    """By Inductor."""
    return _compiled(model, "inductor")


@pytest.fixture(scope="module")
def by_tvm(model: Path) -> Path:
    """By TVM, with the same options."""
    return _compiled(model, "tvm")


TOLD_BY = 9, 20
"""Tokens before a token that goes on as the model says, from the first on, and as it does not, from the second on."""


@pytest.fixture(scope="module")
def with_head(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, whose vectors are alike where the token before is; layers learn of which kind that is."""
    folder = tmp_path_factory.mktemp("head")
    draw = random.Random(1)
    ids = []
    for _ in range(300):
        token, kind = draw.randrange(3), draw.randrange(2)
        wrong = [t for t in range(3, 9) if t != NEXT[token]]
        follows = draw.choice(wrong) if kind else NEXT[token]
        ids += [draw.randrange(TOLD_BY[kind], TOLD_BY[kind] + 11), token, follows]
    (folder / "text").write_text("".join(chr(ord("A") + t) for t in ids))
    return compiled(
        model, folder / "head.specc", "mtp:structure", calibration=folder / "text",
        num_speculative_tokens=(0, 2, 8), prefill_chunk=4, max_model_len=64, structure_head=True,
    )  # fmt: skip


def _started(engine: Artifact, prompt: list[int], k: int, **options: Any) -> Session:
    session = engine.session()
    session.configure(ignore_eos=True, max_tokens=COUNT, num_speculative_tokens=k, **options)
    session.append(prompt)
    return session


def _step(session: Session) -> tuple[int, float, float]:
    """A token, and drafts and kept ones so far."""
    return session.next(), session.stat("draft_tokens"), session.stat("accepted_tokens")


@pytest.mark.parametrize("prompt", [AMBIGUOUS, TOLD_APART])
@pytest.mark.parametrize("options", [{}, {"logprobs": 1}, {"temperature": 1.3, "seed": 2}])
def test_text_is_that_of_plain_decoding(
    artifact: Path, prompt: list[int], options: dict[str, Any]
) -> None:
    with Artifact.load(artifact) as engine:
        texts, kept = set(), 0.0
        for k in (0, 2, 8, -1):
            with _started(engine, prompt, k, **options) as session:
                texts.add(tuple(session.next() for _ in range(COUNT)))
                kept += session.stat("accepted_tokens")
        assert len(texts) == 1
        if "temperature" not in options:
            assert texts == {tuple(TEXT[4 : 4 + COUNT])}
            assert kept > 0


@pytest.mark.parametrize("backend", ["artifact", "by_tvm"])
def test_the_place_that_is_like_now_is_believed(
    backend: str, request: pytest.FixtureRequest
) -> None:
    """Not the latest with the same token, but that in the same state; where all are alike, a tree has them all."""
    with Artifact.load(request.getfixturevalue(backend)) as engine:
        for prompt, k, want in ((TOLD_APART, 2, 2), (AMBIGUOUS, 2, 0), (AMBIGUOUS, 8, 2)):
            with _started(engine, prompt, k) as session:
                token, drafted, kept = _step(session)
                assert (token, drafted, kept) == (TEXT[4], k, want)
                assert [session.next() for _ in range(COUNT - 1)] == TEXT[5 : 4 + COUNT]


def test_trained_layers_know_better_places(artifact: Path, with_head: Path) -> None:
    """The last token went on as the model does after one of the first kind, and otherwise after one of the second.

    The token before it is of the first kind, but is neither of them, so that no vector there was is now's.
    """
    good, bad = TOLD_BY
    way = circle(1, COUNT + 1)
    kept = []
    for path in (artifact, with_head):
        total = 0.0
        with Artifact.load(path) as engine:
            for now in range(11):
                right = [good + (now + 3) % 11, *way[:4]]
                wrong = [bad + (now + 5) % 11, 1, 4, 5]
                with _started(engine, [*right, 31, *wrong, 31, good + now, 1], 2) as session:
                    steps = [_step(session) for _ in range(COUNT)]
                assert [token for token, *_ in steps] == way[1:]
                total += steps[0][2]
        kept.append(total)
    # Who cannot tell two places apart drafts a token of each, and one of them is right.
    assert kept[1] > max(11, kept[0])


def test_trees_do_not_depend_on_other_texts(artifact: Path) -> None:
    """The same prompt alone and among four whose rounds alternate: the same drafts, the same kept, after each token."""
    prompts = [AMBIGUOUS, TOLD_APART, AMBIGUOUS[:-3], [*TEXT[5:20], *TEXT[5:8]]]
    with Artifact.load(artifact) as engine:
        alone = []
        for prompt in prompts:
            with _started(engine, prompt, 8) as session:
                alone.append([_step(session) for _ in range(COUNT)])
        together = [_started(engine, prompt, 8) for prompt in prompts]
        steps = [[_step(session) for session in together] for _ in range(COUNT)]
        for session in together:
            session.close()
        assert [list(trace) for trace in zip(*steps, strict=True)] == alone


def test_several_texts_in_one_pass(artifact: Path) -> None:
    """States of the text at hand alone are compared, wherever in the caches it lies."""
    prompts = [AMBIGUOUS, TOLD_APART, AMBIGUOUS[:-3], [*TEXT[5:20], *TEXT[5:8]]]
    options = [{"num_speculative_tokens": k, "max_tokens": COUNT} for k in (8, 2, -1, 8)]
    with Artifact.load(artifact) as engine:
        with engine.batch() as batch:
            got, stats = played(batch, prompts, options)
        assert got == [circle(prompt[-1], COUNT + 1)[1:] for prompt in prompts]
        for prompt, asked, seen in zip(prompts, options, stats, strict=True):
            if asked["num_speculative_tokens"] > 0:  # (an adaptive K follows the clock)
                said = engine.generate(prompt, ignore_eos=True, **asked).stats
                assert seen.by_position == said.by_position
                assert seen.accepted_tokens > 0


def test_a_text_that_was_taken_back_is_looked_at_no_more(artifact: Path) -> None:
    with Artifact.load(artifact) as engine, _started(engine, TOLD_APART, 8) as session:
        for _ in range(9):
            session.next()
        session.rewind(len(AMBIGUOUS) // 2)
        session.rewind(0)
        session.append(AMBIGUOUS)
        again = [_step(session)[0] for _ in range(COUNT)]
        assert again == TEXT[4 : 4 + COUNT]


def test_damaged_manifests_are_refused(artifact: Path, tmp_path: Path) -> None:
    """The engine would read what is not there."""
    broken = shutil.copytree(artifact, tmp_path / "broken.specc")
    manifest = json.loads((broken / "manifest.json").read_text())
    for buffer in manifest["state"]:
        if buffer["name"] == "structure":
            buffer["dtype"] = "i32"
    (broken / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="SPECC-E0502"):
        Artifact.load(broken).session()
