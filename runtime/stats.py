"""What a session counted, as values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class PositionStats:
    """Drafts that reached a position of the block, and those of them that were accepted."""

    drafted: int
    accepted: int

    @property
    def rate(self) -> float | None:
        """Acceptance, given that all before it were accepted; None without a draft."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True)
class LengthStats:
    """Rounds with K drafts: how many, how long they took, and the tokens they gave."""

    k: int
    rounds: int
    seconds: float
    tokens: int

    @property
    def round_s(self) -> float | None:
        """Seconds a round; None without a round."""
        return self.seconds / self.rounds if self.rounds else None


@dataclass(frozen=True)
class Stats:
    """Counts and seconds since the last append. `drafts` are rounds that drafted.

    `cut_...`: rounds that lost drafts, by what came first: another choice of the target, a grammar, a stop, a cap.
    `found_drafts`: drafts that were found in the text by a drafter on the host, beside one in the graph.
    Of rounds: `launches` of compiled functions and kernels, `host_syncs`, returns to the engine, and `thread_syncs`,
    meetings of threads in kernels.
    """

    rounds: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    new_tokens: int
    prefill_tokens: int
    prefill_s: float
    decode_s: float
    draft_s: float
    round_s: float
    k_current: int
    depth_current: int
    acceptance_ewma: float
    by_position: tuple[PositionStats, ...]
    per_k: tuple[LengthStats, ...]
    cut_mismatch: int = 0
    cut_grammar: int = 0
    cut_confidence: int = 0
    cut_stop: int = 0
    cut_length: int = 0
    found_drafts: int = 0
    launches: int = 0
    host_syncs: int = 0
    thread_syncs: int = 0

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second of decoding; the prompt's time is not in it."""
        return self.new_tokens / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens a drafting round gives, the target's own one included: 1 + accepted / drafts.

        As vLLM counts it.
        """
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    @property
    def acceptance_rate(self) -> float | None:
        """Of all drafted tokens, the part that was accepted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def acceptance_by_position(self) -> list[float | None]:
        """Of the drafts that reached a block position, the part accepted, for each position.

        Positions never drafted are cut off.
        """
        rates = [p.rate for p in self.by_position]
        while rates and rates[-1] is None:
            rates.pop()
        return rates

    def as_json(self) -> dict[str, Any]:
        """Everything under its name; derived values first."""
        counted = asdict(self)
        counted.pop("by_position")
        return {
            "tokens_per_s": self.tokens_per_s,
            "mean_acceptance_length": self.mean_acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_by_position": self.acceptance_by_position,
            **counted,
            "by_position": [asdict(p) for p in self.by_position],
        }
