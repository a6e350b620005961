"""Which pass broke the program: after each, what it computes is compared with the original."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from specc.errors import PassError
from specc.ir import Role, SpeculativeProgram
from specc.ir.evaluate import State, evaluate, fresh_state, text_inputs
from specc.passes import Pass, PassResult

Eager = Callable[[torch.Tensor], torch.Tensor]
"""tokens i64[T] -> logits f32[T, V]."""


@dataclass(frozen=True)
class Disagreement:
    """Where a function parts from eager: by how much, at which row of the prompt."""

    function: str
    position: int
    difference: float
    detail: str


@dataclass
class Bisector:
    """An instrument for `Pipeline`: raises PassError after the first pass that changes results.

    `tolerance` is relative to the largest logit: passes may reorder sums.
    """

    eager: Eager
    tokens: torch.Tensor
    tolerance: float = 1e-4
    agreed: list[str] = field(default_factory=list)
    """Passes after which the program still agreed."""

    def __post_init__(self) -> None:
        with torch.no_grad():
            self._logits = self.eager(self.tokens).float()

    def __call__(self, number: int, pass_: Pass, result: PassResult) -> None:
        """Compare after pass `number`."""
        if result.modified:
            self.judge(result.program, pass_.name, number)
        self.agreed.append(pass_.name)

    def judge(self, program: SpeculativeProgram, stage: str, number: int) -> None:
        """Raise PassError, naming `stage`, if a function of `program` disagrees with eager."""
        found = next(self.disagreements(program), None)
        if found is None:
            return
        raise PassError(
            "SPECC-E0339",
            f"after {stage} (number {number}) the program no longer computes what the model does",
            where=f"{found.function}, token {found.position}",
            expected=f"within {self.tolerance:g} of eager, relative to the largest logit",
            found=found.detail,
            cure=f"look at it with: specc opt MODEL --explain {stage}",
        )

    def disagreements(self, program: SpeculativeProgram) -> Iterator[Disagreement]:
        """All of them: in `target` while there is one, in every verify and in every round.

        A function that cannot even be run disagrees too.
        """
        judges = {Role.TARGET: self._target, Role.VERIFY: self._verify, Role.ROUND: self._round}
        for function in sorted(program.functions.values(), key=lambda f: list(Role).index(f.role)):
            if function.role not in judges:
                continue
            try:
                yield from judges[function.role](program, function.name)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                yield Disagreement(function.name, 0, float("inf"), reason)

    def _target(self, program: SpeculativeProgram, name: str) -> Iterator[Disagreement]:
        positions = torch.arange(len(self.tokens))
        state = fresh_state(program, len(self.tokens))
        inputs = text_inputs(program, name, self.tokens, positions)
        (logits,) = evaluate(program, name, inputs, state)
        yield from self._compare(name, logits, self._logits, 0)

    def _verify(self, program: SpeculativeProgram, name: str) -> Iterator[Disagreement]:
        """The last K+1 tokens, after a prefill of those before them."""
        rows = _rows(program, name)
        start = len(self.tokens) - rows
        state = self._prefilled(program, self.tokens[:start])
        positions = torch.arange(start, start + rows)
        inputs = text_inputs(program, name, self.tokens[start:], positions)
        (logits,) = evaluate(program, name, inputs, state)
        yield from self._compare(name, logits, self._logits[start:], start)

    def _round(self, program: SpeculativeProgram, name: str) -> Iterator[Disagreement]:
        """Whatever was drafted: each new token must be eager's choice after those before it."""
        rows = _rows(program, name)
        length = len(self.tokens) - rows
        state = self._prefilled(program, self.tokens[:length])
        known = {
            "root": self.tokens[length : length + 1],
            "previous": self.tokens[max(length - 1, 0) :][:1],
            "length": torch.tensor([length]),
            "first_row": torch.tensor([0]),
            "drafts": self._drafts(length, rows - 1),
            # Where drafts may be any tree: a chain, of which the text is the only path.
            "parents": torch.arange(rows) - 1,
            "depths": torch.arange(rows),
            "next_tokens": self.tokens[1 : length + 1],
            "positions": torch.arange(length),
            "rows": torch.arange(length),
            "tap_row": torch.tensor([(length - 1) % program.prefill_chunk]),
            "temperature": torch.zeros(1, dtype=torch.float64),
            "seed": torch.zeros(1, dtype=torch.int64),
        }
        inputs = [known[node.name] for node in program.functions[name].inputs]
        tokens, accepted = evaluate(program, name, inputs, state)
        new = tokens[: int(accepted) + 1]
        text = torch.cat([self.tokens[: length + 1], new[:-1]])
        with torch.no_grad():
            logits = self.eager(text).float()[length:, : program.model.vocab_size]
        margins = logits.max(-1).values - logits.gather(1, new[:, None])[:, 0]
        for place, margin in enumerate(margins.tolist()):
            if margin > self._allowed(logits):
                detail = f"chose {int(new[place])}, whose logit is {margin:.4g} below the best"
                yield Disagreement(name, length + place, margin, detail)

    def _drafts(self, length: int, count: int) -> torch.Tensor:
        """What eager would say next, as far as the prompt's own continuation goes on with it."""
        drafts = self.tokens[length + 1 : length + 1 + count].clone()
        if count:
            drafts[0] = self._logits[length].argmax()
        return drafts

    def _prefilled(self, program: SpeculativeProgram, tokens: torch.Tensor) -> State:
        state = fresh_state(program, len(self.tokens) + 1)
        chunk = program.prefill_chunk or len(self.tokens)
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            at = torch.arange(start, start + len(part))
            evaluate(program, "prefill", text_inputs(program, "prefill", part, at), state)
        return state

    def _compare(
        self, name: str, found: torch.Tensor, expected: torch.Tensor, start: int
    ) -> Iterator[Disagreement]:
        if found.shape != expected.shape:
            detail = f"logits {tuple(found.shape)} in place of {tuple(expected.shape)}"
            yield Disagreement(name, start, float("inf"), detail)
            return
        rows = (found.float() - expected).abs().nan_to_num(float("inf")).amax(dim=-1)
        for place, difference in enumerate(rows.tolist()):
            if difference > self._allowed(expected):
                detail = f"logits differ by up to {difference:.4g}"
                yield Disagreement(name, start + place, difference, detail)

    def _allowed(self, logits: torch.Tensor) -> float:
        return self.tolerance * (1 + float(logits.abs().max()))


def short_prompt(vocabulary: int, most_drafts: int) -> torch.Tensor:
    """Token ids without meaning, long enough for the widest verify after a few tokens."""
    length = most_drafts + 9
    return torch.tensor([(i * i * 31 + i * 7 + 3) % vocabulary for i in range(length)])


def _rows(program: SpeculativeProgram, name: str) -> int:
    """How many rows `verify_K`, `round_K` or `round_K_dD` verifies."""
    return program.contract.nodes(int(name.split("_")[1])) + 1
