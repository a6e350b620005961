"""Each acceptance rule emits the target's own law: every draft and every outcome of chance, added up exactly.

The rules that run here are the engine's; only chance is played through instead of drawn. What is expected comes from
the few lines of `law` below, which read the same tables.
"""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.runtime.sampling.driver import Params, Round

PROMPT, OUTPUT = (0, 1), (1, 2)
EXACT = 1e-9


def table(seed, vocab_size, prefix, spread=1.5):
    """Logits of a model at a prefix of drafts: any function of it will do."""
    rng = np.random.default_rng([seed, vocab_size, *prefix])
    return rng.normal(0, spread, vocab_size).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    vocab_size: int
    k: int
    params: Params
    drawn: str  # how the drafter draws: certain, temperature or processed
    ids: tuple[int, ...] | None = None  # a drafter's own vocabulary
    allowed: bool = False

    def target_logits(self, prefix):
        return table(1, self.vocab_size, prefix)

    def draft_logits(self, prefix):
        """Near the target's, so that drafts are sometimes kept."""
        row = self.target_logits(prefix) + table(2, self.vocab_size, prefix, 0.8)
        return row if self.ids is None else row[list(self.ids)]

    def mask(self, prefix):
        """A grammar's: never the token before, so that it depends on the drafts."""
        mask = np.ones(self.vocab_size, bool)
        mask[(prefix or OUTPUT)[-1]] = False
        return mask

    def target(self, prefix):
        mask = self.mask(prefix) if self.allowed else None
        return law(self.target_logits(prefix), prefix, self.params, mask)

    def draft(self, prefix):
        logits = np.full(self.vocab_size, -np.inf, np.float32)
        ids = list(self.ids or range(self.vocab_size))
        logits[ids] = self.draft_logits(prefix)
        if self.drawn == "certain":
            one_hot = np.zeros(self.vocab_size)
            one_hot[logits.argmax()] = 1
            return one_hot
        if self.drawn == "temperature":
            return softmax(logits.astype(float) / self.params.temperature)
        return law(logits, prefix, self.params, self.mask(prefix) if self.allowed else None)

    def round(self, drafts):
        prefixes = [drafts[:r] for r in range(len(drafts) + 1)]
        unknown = self.drawn == "certain" or not drafts
        return Round(
            PROMPT,
            OUTPUT,
            np.stack([self.target_logits(p) for p in prefixes]),
            drafts,
            allowed=np.stack([self.mask(p) for p in prefixes]) if self.allowed else None,
            draft_logits=None if unknown else np.stack([self.draft_logits(p) for p in prefixes[:-1]]),
            ids=None if self.ids is None else np.array(self.ids),
            law=self.drawn,
        )  # fmt: skip

    def blocks(self):
        """(probability, drafts) of what the drafter may draw."""
        for drafts in itertools.product(range(self.vocab_size), repeat=self.k):
            probability = np.prod([self.draft(drafts[:j])[drafts[j]] for j in range(self.k)])
            if probability > 0:
                yield probability, drafts


def softmax(x):
    mass = np.exp(x - x.max())
    return mass / mass.sum()


def law(logits, prefix, params, mask=None):
    """What follows PROMPT + OUTPUT + prefix under `params`, in vLLM's order; logits change in f32, as there."""
    x = logits.copy()
    repetition, frequency, presence = np.float32(
        [params.repetition, params.frequency, params.presence]
    )
    output = [*OUTPUT, *prefix]
    if mask is not None:
        x[~mask] = -np.inf
    x[list(params.banned)] = -np.inf
    if len(output) < params.min_tokens:
        x[list(params.eos)] = -np.inf
    for token, bias in params.bias:
        x[token] += np.float32(bias)
    seen = sorted({*PROMPT, *output})
    x[seen] = np.where(x[seen] > 0, x[seen] / repetition, x[seen] * repetition)
    for token in set(output):
        x[token] -= frequency * np.float32(output.count(token))
        x[token] -= presence
    x = x.astype(float)
    if params.temperature == 0:
        return (np.arange(len(x)) == x.argmax()).astype(float)
    p = softmax(x / params.temperature)
    p[p < params.min_p * p.max()] = 0
    if params.top_k:
        p[np.argsort(-p)[params.top_k :]] = 0
    p /= p.sum()
    order = np.argsort(-p)
    p[order[1:][np.cumsum(p[order])[:-1] >= params.top_p]] = 0
    return p / p.sum()


def joint(case):
    """f64 [V, ..., V] of the K+1 tokens that the target would say by itself."""
    whole = np.zeros((case.vocab_size,) * (case.k + 1))
    for text in itertools.product(range(case.vocab_size), repeat=case.k + 1):
        whole[text] = np.prod([case.target(text[:i])[text[i]] for i in range(case.k + 1)])
    return whole


def emitted(sampler, case, blocks=None, **plant):
    """The same of what rounds emit, where the target goes on by itself after them; and the drafts kept on average."""
    own = joint(case)
    said, kept = np.zeros_like(own), 0.0
    for drawn, drafts in blocks or case.blocks():
        for probability, tokens, rows in sampler.outcomes(case.params, case.round(drafts), **plant):
            assert rows == tuple(range(len(tokens)))
            assert tokens[:-1] == drafts[: len(tokens) - 1]
            kept += drawn * probability * (len(tokens) - 1)
            rest = own[tokens]
            possible = rest.sum()
            assert possible > 0, f"the target never says {tokens}"
            said[tokens] += drawn * probability * rest / possible
    return own, said, kept


def total_variation(p, q):
    return np.abs(p - q).sum() / 2


PLAIN = [Params(temperature=t) for t in (0.0, 0.6, 1.0, 1.7)]
SHAPED = [
    Params(temperature=0.9, top_k=2),
    Params(temperature=0.9, top_p=0.7),
    Params(temperature=1.2, min_p=0.3),
    Params(temperature=0.8, repetition=1.6),
    Params(temperature=0.8, repetition=0.7, frequency=0.5, presence=-0.4),
    Params(temperature=1.1, bias=((0, 1.5), (2, -0.7)), banned=(1,)),
    Params(temperature=1.1, min_tokens=4, eos=(0,)),  # lifted after two drafts
    Params(temperature=0.7, top_k=3, top_p=0.85, min_p=0.05, repetition=1.3, frequency=0.2),
    Params(temperature=0.0, repetition=1.6, frequency=0.3),
]
SIZES = [(3, 1), (3, 3), (4, 2), (6, 1)]
CASES = [
    Case(v, k, dataclasses.replace(params, rule=rule), drawn)
    for rule in ("match", "rejection", "block")
    for params in [*PLAIN, *SHAPED]
    for v, k in SIZES
    for drawn in ("certain", "temperature", "processed")
    if not (params.temperature == 0 and drawn == "temperature")
]
CASES += [
    Case(4, 2, dataclasses.replace(params, rule=rule), drawn, ids, allowed)
    for rule in ("match", "rejection", "block")
    for params in (Params(temperature=0.9), Params(temperature=0.9, top_k=2, frequency=0.4))
    for drawn in ("temperature", "processed")
    for ids, allowed in (((3, 1), False), (None, True))
]


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_what_is_emitted_has_the_target_s_law(sampler, rule):
    for case in (each for each in CASES if each.params.rule == rule):
        own, said, _ = emitted(sampler, case)
        assert abs(said.sum() - 1) < EXACT, case
        assert total_variation(own, said) < EXACT, case


@pytest.mark.parametrize("drawn", ["certain", "temperature", "processed"])
def test_how_many_drafts_are_kept(sampler, drawn):
    """As many as the papers say: sums over prefixes of q min(1, p/q), of q P, and of q p."""
    for params, (v, k) in itertools.product([*PLAIN[1:], *SHAPED[:-1]], [(3, 3), (4, 2)]):
        means = {}
        for rule in ("match", "rejection", "block"):
            case = Case(v, k, dataclasses.replace(params, rule=rule), drawn)
            expected = 0.0
            for probability, drafts in Case(v, k, params, drawn).blocks():
                one_by_one = together = own = 1.0
                for j in range(k):
                    p = case.target(drafts[:j])[drafts[j]]
                    q = case.draft(drafts[:j])[drafts[j]]
                    one_by_one *= min(1, p / q)
                    together = min(1, together * p / q)
                    own *= p
                    told = {"match": own, "rejection": one_by_one, "block": together}
                    expected += probability * told[rule]
            means[rule] = emitted(sampler, case)[2]
            assert abs(means[rule] - expected) < EXACT, case
        assert means["block"] >= means["rejection"] - EXACT
        assert means["rejection"] >= means["match"] - EXACT


def test_block_keeps_more_than_rejection(sampler):
    """Not only never fewer: with more than one draft it pays."""
    case = Case(4, 3, Params(temperature=1.0, rule="block"), "temperature")
    other = dataclasses.replace(case, params=Params(temperature=1.0, rule="rejection"))
    assert emitted(sampler, case)[2] > emitted(sampler, other)[2] + 0.01


def test_the_drafter_draws_from_the_law_that_the_rules_assume(sampler):
    for params in SHAPED:
        case = Case(4, 2, dataclasses.replace(params, rule="block"), "processed")
        for drafts in itertools.product(range(4), repeat=2):
            around = case.round(drafts)
            for j in range(2):
                row = dataclasses.replace(around, draft_logits=around.draft_logits[j : j + 1])
                drawn = sampler.draft_law(case.params, row, j)
                assert total_variation(drawn, case.draft(drafts[:j])) < EXACT


# What is wrong is found.


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_residual_that_is_not_drawn_is_found(sampler, rule):
    case = Case(4, 2, Params(temperature=1.0, rule=rule), "temperature")
    own, said, _ = emitted(sampler, case, greedy_residual=True)
    assert total_variation(own, said) > 1e-2


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize(
    "params",
    [
        Params(temperature=0.9, top_k=2),
        Params(temperature=0.8, frequency=0.9),
        Params(temperature=0.5),
    ],
)
def test_drafts_from_before_the_processors_are_found(sampler, rule, params):
    """A drafter that draws from its raw law while the rules count on the processed one."""
    case = Case(4, 2, dataclasses.replace(params, rule=rule), "processed")
    raw = Case(4, 2, Params(temperature=1.0), "temperature")
    own, said, _ = emitted(sampler, case, blocks=list(raw.blocks()))
    assert total_variation(own, said) > 1e-2


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_drafts_of_a_law_unknown_may_count_as_certain(sampler, rule):
    """The law stays, whatever drew them; fewer are kept."""
    case = Case(4, 2, Params(temperature=1.0, rule=rule), "certain")
    known = dataclasses.replace(case, drawn="temperature")
    own, said, kept = emitted(sampler, case, blocks=list(known.blocks()))
    assert total_variation(own, said) < EXACT
    assert kept < emitted(sampler, known)[2] - 0.05


# Drafts that are not verified: a cut may look at what was drafted before it, and at nothing else.


def before(case, drafts):
    """How many drafts a head keeps that foretells each from those before it, as DSpark's does."""
    keeps = [table(3, case.vocab_size, drafts[:j])[j] > -1 for j in range(len(drafts))]
    return [*keeps, False].index(False)


def after(case, drafts):
    """How many one keeps that has seen the draft itself: where the target likes it less, it is cut."""
    liked = [case.target(drafts[:j])[d] >= case.draft(drafts[:j])[d] for j, d in enumerate(drafts)]
    return [*liked, False].index(False)


@pytest.mark.parametrize("drawn", ["certain", "temperature"])
@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
@pytest.mark.parametrize("more", [{}, {"top_k": 3, "frequency": 0.4}])
def test_a_cut_that_sees_the_drafts_before_it_changes_no_law(sampler, rule, drawn, more):
    case = Case(4, 3, Params(temperature=0.9, rule=rule, **more), drawn)
    blocks = [(q, drafts[: before(case, drafts)]) for q, drafts in case.blocks()]
    assert drawn == "certain" or {len(drafts) for _, drafts in blocks} == {1, 2, 3}
    own, said, _ = emitted(sampler, case, blocks)
    assert total_variation(own, said) < EXACT


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_a_cut_that_sees_the_draft_itself_is_found(sampler, rule):
    """It leaves a law alone only where drafts are the target's own choices or nothing."""
    case = Case(4, 3, Params(temperature=0.9, rule=rule), "temperature")
    blocks = [(q, drafts[: after(case, drafts)]) for q, drafts in case.blocks()]
    own, said, _ = emitted(sampler, case, blocks)
    off = total_variation(own, said)
    assert off < EXACT if rule == "match" else off > 1e-2


# Trees: drafts that continue the same row are drawn one after the other, none twice.


TREES = [(0, 0), (0, 0, 0), (0, 0, 1, 1, 2), (0, 1, 1, 0, 4)]


def path_to(row, parents, drafts):
    path = []
    while row > 0:
        path.append(drafts[row - 1])
        row = parents[row - 1]
    return tuple(reversed(path))


def trees(case, parents, drafts=(), probability=1.0):
    """(probability, drafts) of what the drafter may draw."""
    j = len(drafts)
    if j == len(parents):
        yield probability, drafts
        return
    before = [drafts[i] for i in range(j) if parents[i] == parents[j]]
    prefix = path_to(parents[j], parents, drafts)
    if case.drawn == "certain":  # the best, the second best, ...
        order = np.argsort(-case.draft_logits(prefix))
        yield from trees(case, parents, (*drafts, int(order[len(before)])), probability)
        return
    q = case.draft(prefix).copy()
    q[before] = 0
    for token in np.flatnonzero(q):
        yield from trees(case, parents, (*drafts, int(token)), probability * q[token] / q.sum())


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("drawn", ["certain", "temperature", "processed"])
def test_trees_have_the_target_s_law(sampler, rule, drawn):
    wanted = (Params(temperature=0.9), Params(temperature=1.1, top_k=3, frequency=0.3))
    for parents, params in itertools.product(TREES, wanted):
        deepest = max(
            len(path_to(row, parents, (0,) * len(parents))) for row in range(1, len(parents) + 1)
        )
        case = Case(4, deepest, dataclasses.replace(params, rule=rule), drawn)
        own = joint(case)
        said = np.zeros_like(own)
        for chance, drafts in trees(case, parents):
            prefixes = [path_to(row, parents, drafts) for row in range(len(parents) + 1)]
            laws = [case.draft_logits(prefixes[parent]) for parent in parents]
            around = Round(
                PROMPT,
                OUTPUT,
                np.stack([case.target_logits(p) for p in prefixes]),
                drafts,
                parents,
                draft_logits=None if drawn == "certain" else np.stack(laws),
                law=drawn,
            )
            for probability, tokens, rows in sampler.outcomes(case.params, around):
                assert prefixes[rows[-1]] == tokens[:-1]
                rest = own[tokens]
                said[tokens] += chance * probability * rest / rest.sum()
        assert abs(said.sum() - 1) < EXACT
        assert total_variation(own, said) < EXACT, (parents, params)
