"""Trained drafters in whole pipelines: what they draft is what eager code on the raw checkpoint drafts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specc.ir import SpeculativeProgram
from specc.ir.importers.drafters import Target, load_drafter, load_native
from specc.ir.importers.huggingface import import_model
from specc.passes import pipelines
from specc.passes.pipelines import Shape
from tests.ir.importers.drafters import reference, reference_block, synthetic, synthetic_mtp
from tests.passes import knowing_drafters
from tests.passes.driver import generate
from tests.passes.knowing_drafters import NEXT

SHAPE = Shape((0, 2, 4), 48, 8)
PROMPT = [7, 21, 40, 7, 21, 90, 50, 7, 21, 33, 34]
COUNT = 8

TAPS = [0, 3, 6]
WINDOW = {
    "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6, "use_sliding_window": True,
}  # fmt: skip

Make = Callable[[Path, PreTrainedModel], Path]


def made(function: Any, *positional: Any, **keys: Any) -> Make:
    return lambda folder, model: function(folder, model, *positional, **keys)


DRAFTERS: dict[str, Make] = {
    "eagle": made(synthetic.eagle1),
    "eagle-bias": made(synthetic.eagle1, bias=True),
    "medusa": made(synthetic.medusa, heads=4, blocks=2),
    "medusa-shared": made(synthetic.medusa, heads=4, shared=True),
    "dflash": made(synthetic.zlab_dflash, taps=TAPS),
    "dflash-window": made(synthetic.zlab_dflash, taps=TAPS, **WINDOW),
    "dflash-window-at-root": made(
        synthetic.speculators_block, TAPS, window=4, sliding_window_non_causal=True
    ),
    "dflash-anchor-first": made(synthetic.deepspec_dspark, TAPS, markov=""),
    "dspark": made(synthetic.deepspec_dspark, TAPS),
    "dspark-gated": made(synthetic.deepspec_dspark, TAPS, markov="gated"),
    "dspark-rnn": made(synthetic.deepspec_dspark, TAPS, markov="rnn"),
    "dspark-few-tokens": made(synthetic.speculators_block, TAPS, "dspark", sample_from_anchor=True),
    "mtp": made(synthetic_mtp.speculators),
    "eagle3-safeailab": made(synthetic.eagle3),
    "eagle3-fc-norm-recycled-norm": made(synthetic.specforge_eagle3, fc_norm=True, norm_output=True),
    "eagle3-parallel-specforge": made(synthetic.specforge_peagle),
    "eagle3-parallel-speculators": made(synthetic.speculators_peagle, layers=3),
    "eagle3-deepseek": made(synthetic.deepseek_eagle3),
    "eagle3-deepspec": made(synthetic.deepspec_eagle3, [0, 2, 3, 5, 6]),
    "eagle3-norm-before": made(
        synthetic.speculators_eagle3, norm_before_fc=True, norm_before_residual=True
    ),
}  # fmt: skip


@cache
def target() -> tuple[PreTrainedModel, SpeculativeProgram]:
    model = synthetic.target()
    return model, import_model(model, "tiny")


@pytest.fixture(scope="module", params=DRAFTERS)
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random weights in the true layout."""
    return DRAFTERS[request.param](tmp_path_factory.mktemp("drafter"), target()[0])


@pytest.fixture(scope="module")
def program(drafter: Path) -> SpeculativeProgram:
    imported = target()[1]
    checkpoint = load_drafter(drafter, Target.of(imported))
    return pipelines.trained(SHAPE, checkpoint.spec.kind, checkpoint)(imported)


@pytest.mark.parametrize(("ks", "chunk"), [((4,), 8), ((2, 4, 0, 0, 4), 3)])
def test_drafts_are_those_of_eager_code(
    drafter: Path, program: SpeculativeProgram, ks: tuple[int, ...], chunk: int
) -> None:
    drafted: list[tuple[list[int], list[int]]] = []
    generate(program, PROMPT, COUNT, ks, chunk=chunk, drafted=drafted)
    assert len(drafted) >= 3
    for text, drafts in drafted:
        assert drafts == reference.draft(drafter, target()[0], text, len(drafts)), len(text)


LAYERS: dict[str, Make] = {
    "deepseek-v3": made(synthetic_mtp.deepseek, yarn=True),
    "glm4": made(synthetic_mtp.glm),
    "qwen3-next": made(synthetic_mtp.qwen),
}
"""MTP layers of targets, with experts, and DeepSeek's with latent attention; all else is as in DRAFTERS' mtp."""


@pytest.mark.parametrize("name", LAYERS)
def test_drafts_of_layers_of_targets(name: str, tmp_path: Path) -> None:
    model, imported = target()
    folder = LAYERS[name](tmp_path / "model", model)
    checkpoint = load_native(folder, Target.of(imported))
    program = pipelines.trained(SHAPE, checkpoint.spec.kind, checkpoint)(imported)
    drafted: list[tuple[list[int], list[int]]] = []
    generate(program, PROMPT, 6, (2, 4, 0, 0, 4), chunk=3, drafted=drafted)
    assert len(drafted) >= 3
    for text, drafts in drafted:
        assert drafts == reference.draft(folder, model, text, len(drafts)), len(text)


def test_confidences_are_those_of_eager_code(drafter: Path, program: SpeculativeProgram) -> None:
    drafted: list[tuple[list[int], list[int]]] = []
    foretold: dict[int, list[float]] = {}
    generate(program, PROMPT, 4, (4,), drafted=drafted, foretold=foretold)
    raw = reference.Raw.read(drafter)
    if not any("confidence_head" in name for name in raw.tensors):
        assert not foretold
        return
    for text, drafts in drafted:
        with torch.no_grad():
            want = reference_block.draft(raw, target()[0], text, 0)[1]
        assert foretold[len(text)] == pytest.approx(want[: len(drafts)], rel=1e-4)


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_tokens_are_those_of_no_drafter(program: SpeculativeProgram, heat: float) -> None:
    plain = generate(program, PROMPT, COUNT, [0], heat=heat, seed=5)[0]
    assert plain == generate(_without(), PROMPT, COUNT, [0], heat=heat, seed=5)[0]
    for ks in ([2], [4, 0, 2]):
        assert generate(program, PROMPT, COUNT, ks, heat=heat, seed=5)[0] == plain
    one = generate(program, [9], COUNT, [0], heat=heat)[0]
    assert generate(program, [9], COUNT, [4], heat=heat)[0] == one


@cache
def _without() -> SpeculativeProgram:
    return pipelines.host("none", SHAPE, {})(target()[1])


def _knowing(method: str, errors: Collection[int], folder: Path) -> tuple[SpeculativeProgram, Path]:
    model = knowing_drafters.target()
    imported = import_model(model, "circle")
    folder = knowing_drafters.MAKERS[method](folder / method, errors)
    checkpoint = load_drafter(folder, Target.of(imported), method)
    return pipelines.trained(SHAPE, checkpoint.spec.kind, checkpoint)(imported), folder


def _circle(start: int, count: int) -> list[int]:
    tokens = [start]
    while len(tokens) <= count:
        tokens.append(NEXT[tokens[-1]])
    return tokens[1:]


ERRORS = {
    "never wrong": frozenset[int](),
    "sometimes wrong": frozenset({3, 4, 11, 20, 21, 26, 30}),
    "always wrong": frozenset(range(knowing_drafters.VOCAB)),
}


@pytest.mark.parametrize("errors", ERRORS)
@pytest.mark.parametrize("method", knowing_drafters.MAKERS)
def test_exactly_what_the_drafter_knows_is_accepted(
    method: str, errors: str, tmp_path: Path
) -> None:
    """Accepted lengths are scripted by the drafter's errors: any shift of rows or tokens would end them at once."""
    wrong = ERRORS[errors]
    program, folder = _knowing(method, wrong, tmp_path)
    model, count = knowing_drafters.target(), 24
    text = _circle(PROMPT[0] % 32, 8 + count)
    prompt, want = text[:8], text[8:]
    for ks, chunk in (((4,), 8), ((2, 0, 4, 0, 0, 2), 3)):
        drafted: list[tuple[list[int], list[int]]] = []
        tokens, rounds = generate(program, prompt, count, ks, chunk=chunk, drafted=drafted)
        assert tokens == want[:count]
        made = 0
        for k, accepted in rounds:
            right = [t not in wrong or t == 0 for t in _circle(text[7 + made], k) if k]
            assert accepted == [*right, False].index(False), (made, k)
            made += accepted + 1
        for x, drafts in drafted:
            assert drafts == reference.draft(folder, model, x, len(drafts))


def test_noise_of_a_place_is_the_drafters_too(tmp_path: Path) -> None:
    """EAGLE-1 knows the target's logits: with the same noise it also foretells what is sampled."""
    program, _ = _knowing("eagle", (), tmp_path)
    for seed in range(3):
        tokens, rounds = generate(program, [1, 2, 3], 20, [4], heat=2.0, seed=seed)
        assert tokens != _circle(3, 20)
        assert rounds == [(4, 4)] * len(rounds)
