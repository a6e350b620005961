"""What a self-draft needs to know about its target: which layers matter, and what enters the last ones.

One forward of the target over some text in plain torch, with every layer's input kept. Greedy agreement is the share of
positions where the draft's first choice is the target's: what acceptance comes to on such text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from specc.errors import UsageError
from specc.ir import SpeculativeProgram
from specc.ir.dialect import ops
from specc.ir.evaluate import evaluate, fresh_state, text_inputs
from specc.passes.attach_adapter import Adapter
from specc.passes.keep_structure import Basis, structure_leaf
from specc.passes.prune_layers import PruneLayers
from specc.passes.tap_hidden_states import TapHiddenStates
from specc.structure_head import Stretch

LEAST_TOKENS = 64
"""Fewer say nothing about a draft."""

COLUMNS = 256
"""Of a position's vector for mtp:structure; in shorter texts the first 32 or 128 are compared (structure.cpp)."""

RIDGE = 1e-3
"""Regularisation, as a share of the mean of the Gram matrix's diagonal."""


def attention_at_once(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, positions: Tensor, rows: Tensor, parents: Tensor | None,
    scale: float, window: int, softcap: float, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """`specc.cached_attention` by one product for all rows, where the dialect takes them one by one.

    Rounded otherwise, and many times as fast. For texts, which are no trees, in caches whose every row is finite.
    """
    assert parents is None or bool((parents < 0).all())
    at = torch.arange(int(rows.max()) + 1)
    seen = (at >= (rows - positions)[:, None]) & (at <= rows[:, None])
    if window > 0:
        seen &= at > rows[:, None] - window
    group = q.shape[1] // k_cache.shape[0]
    k, v = (c[:, : len(at)].to(q.dtype).repeat_interleave(group, 0) for c in (k_cache, v_cache))
    scores = torch.einsum("thd,hsd->hts", q, k) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.float().masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[:, None, None].expand(-1, len(q), 1)], -1)
    weights = torch.softmax(scores, -1)[..., : len(at)]
    return torch.einsum("hts,hsd->thd", weights.to(v.dtype), v)


_AT_ONCE = {ops.cached_attention.default: attention_at_once}


@dataclass(frozen=True)
class DraftEstimate:
    """A self-draft by kept layers: its agreement with the target and its cost in target forwards of one row."""

    layers: tuple[int, ...]
    agreement: float
    cost: float

    def speedup(self, k: int) -> float:
        """Expected speed over plain decoding with K drafts, verify as dear as a row (arXiv 2211.17192, theorem 3.8)."""
        accepted = sum(self.agreement**i for i in range(k + 1))
        return accepted / (1 + k * self.cost)


class Calibration:
    """Measurements of an outlined target on `tokens`."""

    def __init__(self, program: SpeculativeProgram, tokens: Sequence[int]) -> None:
        if len(tokens) < LEAST_TOKENS:
            raise UsageError(
                "SPECC-E0120", "too little text to calibrate a self-draft on",
                expected=f"at least {LEAST_TOKENS} tokens", found=str(len(tokens)),
                cure="pass a longer text with --calibration FILE",
            )  # fmt: skip
        self.program = program
        self.tokens = torch.tensor(list(tokens), dtype=torch.int64)

    @cached_property
    def _run(self) -> tuple[Tensor, dict[int, Tensor]]:
        """First choices i64[N]; what enters each layer [N, H], and under the layer count what leaves the last."""
        count, length = self.program.model.num_layers, len(self.tokens)
        tapped = TapHiddenStates(tuple(range(count + 1)), length)(self.program).program
        state = fresh_state(tapped, length)
        inputs = text_inputs(tapped, "target", self.tokens, torch.arange(length))
        (logits,) = evaluate(tapped, "target", inputs, state, _AT_ONCE)
        chosen = logits[:, : self.program.model.vocab_size].argmax(-1)
        return chosen, {j: state[f"tap.{j}"] for j in range(count + 1)}

    def influence(self) -> list[float]:
        """For each layer, 1 - mean cosine of what enters and what leaves it (ShortGPT, arXiv 2403.03853)."""
        hidden = self._run[1]
        return [
            1 - float(torch.cosine_similarity(hidden[j], hidden[j + 1]).mean())
            for j in range(self.program.model.num_layers)
        ]

    def estimate(self, layers: tuple[int, ...]) -> DraftEstimate:
        """Run the draft that keeps `layers` over the text."""
        pruned = PruneLayers(layers)(self.program).program
        length = len(self.tokens)
        # The draft function has one row; its calls, replayed over all rows, are the same arithmetic.
        every = _over_rows(pruned, layers)
        state = fresh_state(every, length)
        inputs = text_inputs(every, "target", self.tokens, torch.arange(length))
        (logits,) = evaluate(every, "target", inputs, state, _AT_ONCE)
        chosen = logits[:, : self.program.model.vocab_size].argmax(-1)
        agreement = float((chosen == self._run[0]).double().mean())
        return DraftEstimate(layers, agreement, self._cost(layers))

    def _cost(self, layers: tuple[int, ...]) -> float:
        """Share of the target's bytes that the draft reads: on one row, time goes by bytes."""
        model, width = self.program.model, self.program.model.hidden_size
        total = sum(_numel(w.type.shape) for w in self.program.weights.values())
        head = width * model.vocab_size
        per_layer = max(1, total - head) / model.num_layers
        return (len(layers) * per_layer + head) / (model.num_layers * per_layer + head)

    def best_layers(self) -> tuple[DraftEstimate, list[DraftEstimate]]:
        """Drop 1, 2, 4, ... of the layers that change the stream least; the best by expected speed, and all tried."""
        count = self.program.model.num_layers
        ranked = sorted(range(count), key=self.influence().__getitem__)
        tried = []
        drop = 1
        while drop < count:
            kept = tuple(sorted(set(range(count)) - set(ranked[:drop])))
            tried.append(self.estimate(kept))
            if tried[-1].agreement < 0.2:
                break
            drop *= 2
        best = max(tried, key=lambda e: max(e.speedup(k) for k in range(1, 9)))
        return best, tried

    def fit_adapters(
        self, depths: Sequence[int], more: Sequence[Calibration] = ()
    ) -> dict[int, Adapter]:
        """Ridge regression of r[i+1] on (embedding of token i+1, r[i]), r what enters layer L-D, for each depth D.

        `more`: other stretches of text to fit on.
        """
        adapters = {}
        for depth in depths:
            pairs = [c._regression(depth) for c in (self, *more)]
            gram = torch.stack([known.T @ known for known, _ in pairs]).sum(0)
            target = torch.stack([known.T @ wanted for known, wanted in pairs]).sum(0)
            gram += torch.eye(len(gram), dtype=torch.float64) * gram.diagonal().mean() * RIDGE
            solution = torch.linalg.solve(gram, target).float()
            width = solution.shape[1]
            adapters[depth] = Adapter(
                solution[:width].T.contiguous(), solution[width : 2 * width].T.contiguous(),
                solution[-1].contiguous(),
            )  # fmt: skip
        return adapters

    def structure_features(self) -> Tensor:
        """f64[N, F]: the last layer's key, before its rotation, and value at each position."""
        leaf, layer = structure_leaf(self.program, projected=False)
        weights = [self.program.weights[name[1:]].load() for name in leaf.constants]
        program = self.program.with_functions(leaf.function)
        hidden = self._run[1][layer.layer]
        (features,) = evaluate(program, leaf.function.name, [hidden, *weights], {})
        return features.double()

    def stretch(self) -> Stretch:
        """What a head of mtp:structure is trained on."""
        return Stretch(self.structure_features(), self.tokens, self._run[0])

    def _regression(self, depth: int) -> tuple[Tensor, Tensor]:
        """f64[N-1, 2H+1] what is known, f64[N-1, H] what is wanted."""
        hidden = self._run[1]
        embedded = hidden[0].double()
        stream = hidden[self.program.model.num_layers - depth].double()
        ones = torch.ones(len(stream) - 1, 1, dtype=torch.float64)
        return torch.cat([embedded[1:], stream[:-1], ones], 1), stream[1:]


def fit_structure(calibrations: Sequence[Calibration]) -> Basis:
    """The directions in which features of the text differ most (PCA), each feature in its own units first.

    Signs are those that make the largest coefficient positive, so that the same text always gives the same basis.
    """
    features = torch.cat([c.structure_features() for c in calibrations])
    mean, scale = features.mean(0), features.std(0).clamp_min(1e-6)
    standard = (features - mean) / scale
    covariance = standard.T @ standard / len(standard)
    columns = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, :COLUMNS]
    largest = columns.gather(0, columns.abs().argmax(0, keepdim=True))
    columns = columns * largest.sign()
    weight = (columns / scale[:, None]).T
    return Basis(weight.float().contiguous(), (-(weight @ mean)).float())


def _over_rows(program: SpeculativeProgram, layers: tuple[int, ...]) -> SpeculativeProgram:
    """`program` with a target that runs only `layers`, on any number of rows."""
    from specc.ir import Function, Role
    from specc.ir.graphs import Builder
    from specc.passes.replay import replay, token_inputs

    builder = Builder()
    inputs = token_inputs(builder, "T")
    logits = replay(builder, program, "target", inputs, None, layers=layers)
    assert logits is not None
    return program.replacing(Function("target", Role.TARGET, builder.output(logits), ("logits",)))


def _numel(shape: tuple[int | str, ...]) -> int:
    total = 1
    for dim in shape:
        total *= int(dim)
    return total
