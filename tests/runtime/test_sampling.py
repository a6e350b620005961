"""The sampler's processors against transformers', its choices against the kernel's and the documented noise."""

import itertools
import math

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from tests.runtime import noise
from tests.runtime.sampling.driver import Params, Round, SamplerError

V = 300
PROMPT, OUTPUT = (7, 3, 250, 7), (9, 3, 9)
TEXT = torch.tensor([[*PROMPT, *OUTPUT]])


def logits_of(rng, rows=1, size=V):
    """No two alike: what becomes of equals is each library's own matter."""
    return (rng.permuted(np.tile(np.arange(size), (rows, 1)), axis=1) / size * 9 - 4).astype("f4")


def processed_by(processors, row):
    scores = torch.from_numpy(row.copy())[None]
    for processor in processors:
        scores = processor(TEXT, scores)
    return scores[0].numpy()


def law_of(sampler, params, row, **more):
    """f64 [V]: of the token that follows the text."""
    around = Round(PROMPT, OUTPUT, row[None], draft_logits=row[None], law="processed", **more)
    return sampler.draft_law(params, around, 0)


CHANGES = [
    (Params(repetition=1.3), [hf.RepetitionPenaltyLogitsProcessor(1.3)]),
    (Params(repetition=0.8), [hf.RepetitionPenaltyLogitsProcessor(0.8)]),
    (Params(banned=(4, 299)), [hf.SuppressTokensLogitsProcessor([4, 299])]),
    (Params(min_tokens=4, eos=(2, 5)), [hf.MinNewTokensLengthLogitsProcessor(4, 4, [2, 5])]),
    (Params(min_tokens=3, eos=(2, 5)), [hf.MinNewTokensLengthLogitsProcessor(4, 3, [2, 5])]),
    (
        Params(bias=((6, -2.5), (9, 1.25))),
        [hf.SequenceBiasLogitsProcessor([[[6], -2.5], [[9], 1.25]])],
    ),
    (
        Params(banned=(4,), bias=((9, 1.25),), repetition=1.3),  # vLLM's order
        [
            hf.SuppressTokensLogitsProcessor([4]),
            hf.SequenceBiasLogitsProcessor([[[9], 1.25]]),
            hf.RepetitionPenaltyLogitsProcessor(1.3),
        ],
    ),
]


@pytest.mark.parametrize(("params", "processors"), CHANGES)
def test_processors_that_change_logits_are_those_of_transformers(sampler, rng, params, processors):
    for _ in range(5):
        row = logits_of(rng)[0]
        got = sampler.processed(params, Round(PROMPT, OUTPUT, row[None]))
        np.testing.assert_array_equal(got, processed_by(processors, row))


FILTERS = [
    (Params(temperature=0.7), [hf.TemperatureLogitsWarper(0.7)]),
    (Params(temperature=1.0, top_k=1), [hf.TopKLogitsWarper(1)]),
    (Params(temperature=1.0, top_k=40), [hf.TopKLogitsWarper(40)]),
    (Params(temperature=1.0, top_k=V + 7), []),
    (Params(temperature=1.0, top_p=0.9), [hf.TopPLogitsWarper(0.9)]),
    (Params(temperature=1.0, top_p=0.01), [hf.TopPLogitsWarper(0.01)]),
    (Params(temperature=1.0, min_p=0.06), [hf.MinPLogitsWarper(0.06)]),
    (
        Params(temperature=1.4, min_p=0.02, top_k=50, top_p=0.8),  # vLLM's order
        [
            hf.TemperatureLogitsWarper(1.4),
            hf.MinPLogitsWarper(0.02),
            hf.TopKLogitsWarper(50),
            hf.TopPLogitsWarper(0.8),
        ],
    ),
]


@pytest.mark.parametrize(("params", "processors"), FILTERS)
def test_laws_are_those_of_transformers(sampler, rng, params, processors):
    for _ in range(5):
        row = logits_of(rng)[0]
        scores = processed_by(processors, row).astype(float)
        want = np.exp(scores - scores.max())
        got = law_of(sampler, Params(**{**vars(params), "rule": "rejection"}), row)
        np.testing.assert_array_equal(got > 0, want > 0)
        np.testing.assert_allclose(got, want / want.sum(), rtol=1e-5, atol=0)


def test_frequency_and_presence_count_the_output_alone(sampler, rng):
    """mu - c frequency - (c > 0) presence, as OpenAI documents it."""
    row = logits_of(rng)[0]
    got = sampler.processed(Params(frequency=0.5, presence=0.25), Round(PROMPT, OUTPUT, row[None]))
    want = row.copy()
    want[9] -= np.float32(2 * 0.5 + 0.25)
    want[3] -= np.float32(0.5 + 0.25)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert got[7] == row[7]  # in the prompt


def test_equals_of_the_kth_are_kept_and_of_top_p_s_last_the_lowest(sampler):
    row = np.full(V, -9, np.float32)
    row[[5, 80, 200, 201]] = 2, 1, 1, 1
    for rule in ("rejection", "block"):
        top_k = law_of(sampler, Params(temperature=1, top_k=2, rule=rule), row)
        assert np.flatnonzero(top_k).tolist() == [5, 80, 200, 201]
        top_p = law_of(sampler, Params(temperature=1, top_p=0.6, rule=rule), row)
        assert np.flatnonzero(top_p).tolist() == [5, 80]


@pytest.mark.parametrize("top_k", [3, 1024, 1025, 20000])
def test_large_vocabularies_are_filtered_alike(sampler, rng, top_k):
    row = logits_of(rng, size=50000)[0]
    params = Params(temperature=0.05, top_k=top_k, top_p=0.999)
    scores = processed_by(
        [
            hf.TemperatureLogitsWarper(0.05),
            hf.TopKLogitsWarper(top_k),
            hf.TopPLogitsWarper(0.999),
        ],
        row.astype(float),  # thousands of terms near the border are too much for f32
    )
    np.testing.assert_array_equal(sampler.law_of_row(params, row) > 0, scores > -np.inf)


def test_penalties_at_a_row_count_the_drafts_before_it(sampler, rng):
    """A round with drafts chooses as rounds without do, each with the text that it would then have."""
    for trial in range(20):
        params = Params(
            temperature=(0, 0.8)[trial % 2], repetition=1.4, frequency=0.7, presence=0.3, seed=trial
        )
        table = logits_of(rng, V)  # a model: logits given the last token
        text = [*OUTPUT]
        for _ in range(4):
            one = Round(PROMPT, tuple(text), table[text[-1]][None])
            text += sampler.choose(params, one).tokens
        drafts = tuple(text[len(OUTPUT) : -1])
        around = Round(PROMPT, OUTPUT, table[[OUTPUT[-1], *drafts]], drafts)
        assert sampler.choose(params, around).tokens == text[len(OUTPUT) :]


def test_masks_hold_row_by_row(sampler, rng):
    logits = logits_of(rng, 3)
    allowed = rng.random((3, V)) < 0.1
    allowed[:, -1] = True
    masked = np.where(allowed, logits, -np.inf)
    best = masked.argmax(1).tolist()
    around = Round(PROMPT, OUTPUT, logits, tuple(best[:2]), allowed=allowed)
    assert sampler.choose(Params(), around).tokens == best
    for seed in range(20):
        token = sampler.choose(Params(temperature=2.0, seed=seed), around).tokens[0]
        assert token == noise.choose(masked[0], 2.0, seed, len(PROMPT) + len(OUTPUT))


# choices


def test_plain_choices_are_those_of_the_kernel(sampler, models, rng):
    """With a temperature alone: the same tokens as specc.accept inside a round, bit for bit."""
    model = next(iter(models.values()))
    model.use_threads(1)
    size = 49152
    for trial in range(12):
        temperature = [0.0, 0.7, 1.5, 1e-3][trial % 4]
        logits = rng.standard_normal((4, size), dtype=np.float32) * 3
        logits[:, 40::7] = logits[:, 40:41]  # ties
        params = Params(temperature=temperature, seed=int(rng.integers(-(2**63), 2**63 - 1)))
        drafts = []
        for _ in range(3):  # right ones, but for the last in some trials
            around = Round(PROMPT, OUTPUT, logits[: len(drafts) + 1], tuple(drafts))
            drafts = sampler.choose(params, around).tokens
        drafts[trial % 3] += trial % 2
        got = sampler.choose(params, Round(PROMPT, OUTPUT, logits, tuple(drafts)))
        tokens, accepted = model.run(
            "specc.accept",
            np.array([OUTPUT[-1], *drafts]),
            logits,
            np.array([len(PROMPT) + len(OUTPUT) - 1]),
            np.array([temperature]),
            np.array([params.seed]),
            outputs=2,
            attrs=[size],
        )
        assert got.accepted == accepted.item()
        assert got.tokens == tokens[: got.accepted + 1].tolist()


def test_filtered_choices_are_the_best_of_what_is_left(sampler, rng):
    for seed in range(30):
        row = logits_of(rng)[0]
        params = Params(temperature=0.9, top_k=30, top_p=0.9, seed=seed)
        left = processed_by(
            [hf.TemperatureLogitsWarper(0.9), hf.TopKLogitsWarper(30), hf.TopPLogitsWarper(0.9)],
            row,
        )
        want = noise.choose(np.where(left > -np.inf, row, -np.inf), 0.9, seed, 7)
        assert sampler.choose(params, Round(PROMPT, OUTPUT, row[None])).tokens == [want]


def test_chance_is_the_documented_noise(sampler, rng):
    for _ in range(50):
        seed, root, j = int(rng.integers(-(2**63), 2**63 - 1)), *map(int, rng.integers(0, 99, 2))
        u = noise.own_uniform(seed, noise.ACCEPT, root, j)
        assert not sampler.keyed_happens(seed, root, u, j)  # u < probability, exactly
        assert sampler.keyed_happens(seed, root, math.nextafter(u, 2), j)
        mass = rng.random(6) * (rng.random(6) < 0.7) + [0, 0, 0, 0, 0, 1e-3]
        for purpose in (noise.DRAFT, noise.RESIDUAL):
            u = noise.own_uniform(seed, purpose, root, j)
            want = int(np.searchsorted(np.cumsum(mass), u * mass.sum(), side="right"))
            assert sampler.keyed_pick(seed, root, mass, purpose, j) == want
        row = rng.standard_normal(50).astype("f4")
        assert sampler.keyed_choose(seed, row, 0.8, root) == noise.choose(row, 0.8, seed, root)


def test_a_grid_of_noise_picks_each_token_as_often_as_its_law_says(sampler):
    mass = np.array([3, 0, 1, 0, 0, 4, 0]) / 8
    picked = [sampler.draw_at(mass, (i + 0.5) / 800) for i in range(800)]
    assert np.bincount(picked, minlength=7).tolist() == (mass * 800).tolist()


def test_no_noise_is_used_twice():
    """Not for two purposes, not for two drafts, and not for the same position in two rounds."""
    grid = itertools.product(
        (0, 1, -1), (noise.DRAFT, noise.ACCEPT, noise.RESIDUAL), range(40), range(9)
    )
    drawn = [noise.own_uniform(*each) for each in grid]
    drawn += [noise.uniform(noise.key(seed, p), 0) for seed in (0, 1, -1) for p in range(50)]
    assert len(set(drawn)) == len(drawn)


def test_rounds_under_a_rule_go_as_their_noise_says(sampler, rng):
    """Rejection, written out once more from the paper, on the noise: token by token the engine's."""
    for seed in range(60):
        logits, drawn = logits_of(rng, 4, 12), logits_of(rng, 3, 12)
        p = np.exp(logits.astype(float))
        q = np.exp(drawn.astype(float) * 1.0)
        p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
        root = len(PROMPT) + len(OUTPUT) - 1
        drafts = tuple(
            int(np.searchsorted(np.cumsum(q[j]), noise.own_uniform(seed, noise.DRAFT, root, j)))
            for j in range(3)
        )
        want = []
        for j, draft in enumerate(drafts):
            if noise.own_uniform(seed, noise.ACCEPT, root, j) >= p[j, draft] / q[j, draft]:
                left = np.maximum(p[j] - q[j], 0)
                u = noise.own_uniform(seed, noise.RESIDUAL, root, j) * left.sum()
                want.append(int(np.searchsorted(np.cumsum(left), u)))
                break
            want.append(draft)
        else:
            want.append(noise.choose(logits[3], 1.0, seed, root + 4))
        params = Params(temperature=1.0, rule="rejection", seed=seed)
        around = Round((7, 3, 5, 7), (9, 3, 9), logits, drafts, draft_logits=drawn, law="processed")
        assert sampler.choose(params, around).tokens == want


# log probabilities


def test_logprobs_are_the_target_s_own_before_any_processor(sampler, rng):
    logits = logits_of(rng, 3)
    params = Params(temperature=0.5, top_k=2, repetition=1.5, banned=(1,), logprobs=4)
    first = sampler.choose(params, Round(PROMPT, OUTPUT, logits[:1])).tokens
    got = sampler.choose(params, Round(PROMPT, OUTPUT, logits[:2], tuple(first)))
    want = torch.log_softmax(torch.from_numpy(logits[:2]).double(), -1)
    best, ids = want.topk(4)
    np.testing.assert_allclose(got.logprobs, want[[0, 1], got.tokens], atol=2e-6)
    np.testing.assert_array_equal(got.top_ids, ids)
    np.testing.assert_allclose(got.top_logprobs, best, atol=2e-6)
    chosen_only = sampler.choose(Params(logprobs=0), Round(PROMPT, OUTPUT, logits[:1]))
    np.testing.assert_allclose(chosen_only.logprobs, [want[0].max()], atol=2e-6)


# refusals


REFUSED = [
    (Params(temperature=-1.0), "E0601"),
    (Params(temperature=math.inf), "E0601"),
    (Params(top_k=-1), "E0601"),
    (Params(top_p=0.0), "E0601"),
    (Params(top_p=math.nan), "E0601"),
    (Params(min_p=1.5), "E0601"),
    (Params(repetition=0.0), "E0601"),
    (Params(frequency=math.nan), "E0601"),
    (Params(min_tokens=-1), "E0601"),
    (Params(logprobs=-2), "E0601"),
    (Params(bias=((V, 1.0),)), "E0602"),
    (Params(bias=((0, math.inf),)), "E0601"),
    (Params(banned=(-1,)), "E0602"),
    (Params(banned=tuple(range(V))), "E0601"),
]


@pytest.mark.parametrize(("params", "code"), REFUSED)
def test_params_out_of_range_are_refused(sampler, rng, params, code):
    with pytest.raises(SamplerError, match=code):
        sampler.choose(params, Round(PROMPT, OUTPUT, logits_of(rng)))


def test_rounds_that_cannot_be_are_refused(sampler, rng):
    logits = logits_of(rng, 2)
    block = Params(temperature=1.0, rule="block")
    with pytest.raises(SamplerError, match="E0601 block verification takes no trees"):
        sampler.choose(block, Round(PROMPT, OUTPUT, logits, (5,), parents=(0,)))
    with pytest.raises(SamplerError, match="E0601 drafts were drawn by chance"):
        sampler.choose(block, Round(PROMPT, OUTPUT, logits, (5,), law="temperature"))
    with pytest.raises(SamplerError, match="E0606"):
        sampler.choose(Params(), Round(PROMPT, OUTPUT, logits, (V,)))
    with pytest.raises(SamplerError, match="E0606"):
        sampler.choose(Params(), Round(PROMPT, OUTPUT, logits, (5,), parents=(1,)))
    logits[0, 9] = np.nan
    for rule in ("match", "rejection", "block"):
        with pytest.raises(SamplerError, match="E0604"):
            sampler.choose(Params(temperature=1.0, rule=rule), Round(PROMPT, OUTPUT, logits, (5,)))
