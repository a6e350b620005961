"""Whole pipelines on real architectures: rounds say what the model says on its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from specc.ir import SpeculativeProgram, Weight
from specc.ir.importers.huggingface import import_model
from specc.passes import pipelines
from specc.passes.attach_adapter import Adapter
from specc.passes.pipelines import Shape
from tests.passes.driver import generate

VOCAB, COUNT, KS = 32, 12, (0, 2, 3)
SHAPE = Shape(KS, 48, 8, max_num_seqs=2)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
METHODS = ["ngram", "layerskip", "draft_model", "eagle:adaptive"]
ROUNDS = [
    (m, k, d)
    for m in METHODS
    for k in KS
    for d in ((1, 2) if m == "eagle:adaptive" and k else (0,))
]


def _model(family: str, layers: int, width: int = 16) -> Any:
    """A random model."""
    sizes = {
        "vocab_size": VOCAB, "hidden_size": width, "intermediate_size": 24, "head_dim": 8,
        "num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 64, "initializer_range": 0.3, "attn_implementation": "eager",
        "tie_word_embeddings": False,
    }  # fmt: skip
    torch.manual_seed(layers)
    if family == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes))
    else:  # windows of 4 in every other layer, softcaps, norms after the branches
        softcaps = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}
        model = Gemma2ForCausalLM(Gemma2Config(**sizes, **softcaps, sliding_window=4))
    return model.eval()


@cache
def _imported(family: str, layers: int, width: int) -> SpeculativeProgram:
    return import_model(_model(family, layers, width), family)


def _silenced(program: SpeculativeProgram, layers: tuple[int, ...]) -> SpeculativeProgram:
    """The same, but `layers` add nothing to the stream."""
    last = tuple(
        f"layers.{j}.{m}.weight" for j in layers for m in ("self_attn.o_proj", "mlp.down_proj")
    )
    zeros = {
        name: Weight.of(torch.zeros(weight.type.at()))
        for name, weight in program.weights.items()
        if name.endswith(last)
    }
    assert len(zeros) == len(last)
    return replace(program, weights=program.weights.replaced(zeros))


@cache
def _programs(family: str, oracle: bool = False) -> Mapping[str, SpeculativeProgram]:
    """One target, compiled for every method.

    With `oracle`, every drafter says what the target says: what it leaves out adds nothing.
    """
    target = _imported(family, 3, 16)
    target = _silenced(target, (0, 1)) if oracle else target
    drafter = target if oracle else _imported("llama", 1, 8)
    draw = torch.Generator().manual_seed(9)
    width, scale = 16, 0.0 if oracle else 0.3

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw) * scale

    adapters = {
        depth: Adapter(torch.eye(width) + matrix(width, width), matrix(width, width), matrix(width))
        for depth in (1, 2)
    }
    compiled = [
        pipelines.host("ngram", SHAPE, {}),
        pipelines.layerskip(SHAPE, (0, 2)),
        pipelines.draft_model(SHAPE, pipelines.drafter_model(SHAPE)(drafter)),
        pipelines.eagle_adaptive(SHAPE, 3, adapters),
    ]
    return {p.name: p(target) for p in compiled}


@cache
def _plain(family: str, prompt: tuple[int, ...], heat: float, seed: int) -> list[int]:
    """The same tokens without drafts."""
    program = _programs(family)["ngram"]
    return generate(program, prompt, COUNT, [0], heat=heat, seed=seed)[0]


@cache
def _reference(family: str) -> list[int]:
    """What transformers generates."""
    output = _model(family, 3).generate(
        torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
        max_new_tokens=COUNT + 4, do_sample=False, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    tokens: list[int] = output[0, len(PROMPT) :].tolist()
    return tokens


FAMILIES = pytest.mark.parametrize("family", ["llama", "gemma2"])


@FAMILIES
@pytest.mark.parametrize(("method", "k", "depth"), ROUNDS)
def test_greedy_is_what_transformers_generates(
    family: str, method: str, k: int, depth: int
) -> None:
    tokens, _ = generate(_programs(family)[method], PROMPT, COUNT, [k], depth=depth)
    assert tokens == _reference(family)[:COUNT]
    assert len(set(tokens)) > 3, "too dull a text to prove anything"


@FAMILIES
@pytest.mark.parametrize(("method", "k", "depth"), [r for r in ROUNDS if r[0] != "ngram" and r[1]])
def test_a_drafter_that_knows_is_always_believed(
    family: str, method: str, k: int, depth: int
) -> None:
    for heat in (0.0, 1.0):
        program = _programs(family, oracle=True)[method]
        tokens, rounds = generate(program, PROMPT, COUNT, [k], depth=depth, heat=heat)
        assert rounds == [(k, k)] * len(rounds)
        assert tokens == generate(program, PROMPT, COUNT, [0], heat=heat)[0]


@FAMILIES
def test_planted_errors_end_a_block_exactly_there(family: str) -> None:
    want, begin = _reference(family), len(PROMPT)
    script = [0, 1, 2, 3, 3, 0, 2, 1]
    rounds_done = [0]

    def drafts(x: list[int], k: int) -> list[int]:
        """The truth for as many tokens as the script says, then what is certainly wrong."""
        right = script[rounds_done[0] % len(script)]
        rounds_done[0] += 1
        truth = want[len(x) - begin :][:k]
        return [t if i < right else (t + 1) % VOCAB for i, t in enumerate(truth)]

    tokens, rounds = generate(_programs(family)["ngram"], PROMPT, COUNT, [3], drafts=drafts)
    assert tokens == want[:COUNT]
    assert [a for _, a in rounds] == script[: len(rounds)]


@FAMILIES
def test_a_drafter_that_is_always_wrong_costs_only_time(family: str) -> None:
    want, begin = _reference(family), len(PROMPT)
    tokens, rounds = generate(
        _programs(family)["ngram"], PROMPT, COUNT, [2, 3],
        drafts=lambda x, k: [(t + 1) % VOCAB for t in want[len(x) - begin :][:k]],
    )  # fmt: skip
    assert tokens == want[:COUNT]
    assert len(rounds) == COUNT


@FAMILIES
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ks", [(0, 2, 3), (3, 0, 0, 2)])
def test_k_may_change_every_round(family: str, method: str, ks: tuple[int, ...]) -> None:
    depth = 2 if method == "eagle:adaptive" else 0
    for heat in (0.0, 0.9):
        tokens, rounds = generate(
            _programs(family)[method], PROMPT, COUNT, ks, depth=depth, heat=heat, seed=3
        )
        assert tokens == _plain(family, tuple(PROMPT), heat, 3)
        assert {k for k, _ in rounds} == set(ks)


def test_changing_k_does_not_confuse_a_draft_model() -> None:
    """Among K > 0: its cache has no holes, so one that knows is still always believed."""
    program = _programs("llama", oracle=True)["draft_model"]
    _, rounds = generate(program, PROMPT, COUNT, [2, 3, 3, 2])
    assert all(k == a for k, a in rounds)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_chunks_of_the_prompt_do_not_matter(method: str, chunk: int) -> None:
    depth = 1 if method == "eagle:adaptive" else 0
    program = _programs("gemma2")[method]
    outcome = generate(program, PROMPT, COUNT, [2], depth=depth, chunk=chunk)
    assert outcome == generate(program, PROMPT, COUNT, [2], depth=depth)


@FAMILIES
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1]])
def test_a_second_text_lies_in_the_same_caches(family: str, method: str, prompt: list[int]) -> None:
    depth = 1 if method == "eagle:adaptive" else 0
    program = _programs(family)[method]
    outcome = generate(program, prompt, COUNT, [2, 3], depth=depth, first_row=48)
    assert outcome == generate(program, prompt, COUNT, [2, 3], depth=depth)


@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_of_one_token(method: str) -> None:
    depth = 1 if method == "eagle:adaptive" else 0
    tokens, _ = generate(_programs("llama")[method], [7], COUNT, [3, 2], depth=depth)
    assert tokens == _plain("llama", (7,), 0.0, 0)


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    family=st.sampled_from(["llama", "gemma2"]),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=14).map(tuple),
    rounds=st.sampled_from(ROUNDS),
    ks=st.lists(st.sampled_from(KS), min_size=1, max_size=3),
    heat=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    seed=st.integers(0, 2**63 - 1),
    drafts=st.lists(st.integers(0, VOCAB - 1), min_size=3, max_size=3),
)
def test_tokens_depend_on_nothing_but_prompt_temperature_and_seed(
    family: str, prompt: tuple[int, ...], rounds: tuple[str, int, int], ks: list[int], heat: float,
    seed: int, drafts: list[int],
) -> None:  # fmt: skip
    method, _, depth = rounds
    depth = 1 if method == "eagle:adaptive" else depth
    tokens, _ = generate(
        _programs(family)[method], prompt, COUNT, ks, depth=depth, heat=heat, seed=seed,
        drafts=lambda x, k: drafts[:k],
    )  # fmt: skip
    assert tokens == _plain(family, prompt, heat, seed)


def test_seeds_differ() -> None:
    texts = {tuple(_plain("llama", tuple(PROMPT), 1.0, seed)) for seed in range(4)}
    assert len(texts) == 4


def test_until_ends_after_the_pass() -> None:
    pipeline = pipelines.host("none", SHAPE, {})
    assert [p.name for p in pipeline.until("make-stateful").passes] == [
        "canonicalise", "fuse-linears", "tabulate-positions", "make-stateful",
    ]  # fmt: skip
