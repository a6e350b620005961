"""Flags that say how tokens are chosen, and the engine's options that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

from cyclopts import Parameter

from specc import flags
from specc.runtime import Option

RULES = ("match", "rejection", "block")


@Parameter(name="*")
@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; the text is the same with any K, but for the rules rejection and block."""

    top_k: int = 0
    """Sample among the so many best tokens; 0 takes all."""
    top_p: float = 1.0
    """Sample among the best tokens that together have this probability."""
    min_p: float = 0.0
    """Sample among tokens with at least this part of the best one's probability."""
    repetition_penalty: float = 1.0
    """Above 1: tokens of prompt and output become less likely."""
    frequency_penalty: float = 0.0
    """Above 0: tokens become less likely with each time that they were said."""
    presence_penalty: float = 0.0
    """Above 0: tokens that were said become less likely."""
    min_tokens: int = 0
    """New tokens before which the text does not end."""
    acceptance_rule: str = "match"
    """match, rejection or block: which drafts are kept where tokens are sampled."""

    def options(self) -> dict[str, Option]:
        """Those that are not as plain sampling has them. Raises UsageError (SPECC-E0103)."""
        flags.one_of("--acceptance-rule", self.acceptance_rule, RULES)
        for flag, value, least, most in (
            ("--top-k", self.top_k, 0, None), ("--min-tokens", self.min_tokens, 0, None),
            ("--min-p", self.min_p, 0, 1), ("--top-p", self.top_p, 1e-9, 1),
            ("--repetition-penalty", self.repetition_penalty, 1e-9, None),
        ):  # fmt: skip
            if not least <= value or (most is not None and value > most):
                bounds = f"{least:g} to {most}" if most is not None else f"{least:g} or more"
                raise flags.bad_value(flag, bounds, value)
        return {name: value for name, value in vars(self).items() if value != getattr(PLAIN, name)}


PLAIN = Sampling()
