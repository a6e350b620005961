"""What /metrics says: vLLM's names where vLLM counts the same, under a prefix of one's choice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specc.runtime import Manifest
from specc.serve.scheduler import Job
from specc.serve.slots import Progress

_M = TypeVar("_M")

REASONS = ("stop", "length", "context", "cancelled", "timeout", "error")
REJECTIONS = ("mismatch", "grammar", "eos", "stop", "length", "context", "timeout")
FALLBACKS = (
    "disabled", "no_draft", "length", "context", "policy", "timeout", "draft_lost", "passed",
)  # fmt: skip
PHASES = ("queue", "prefill", "draft", "round", "host")

_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_REQUEST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)


class Metrics:
    """Counts what the scheduler tells. All have the label `model_name`.

    `vllm:` as prefix lets dashboards made for vLLM read what both count.
    """

    def __init__(self, manifest: Manifest, model: str, prefix: str) -> None:
        self._registry = CollectorRegistry()
        self._manifest, self._model, self._prefix = manifest, model, prefix
        count, seconds = self._counter, self._histogram
        self.drafts = count("spec_decode_num_drafts", "Rounds that drafted.")
        self.draft_tokens = count("spec_decode_num_draft_tokens", "Tokens drafted.")
        self.accepted = count("spec_decode_num_accepted_tokens", "Drafted tokens accepted.")
        self.per_position = count(
            "spec_decode_num_accepted_tokens_per_pos", "The same by place in the block, from 0.", "position",
            [str(p) for p in range(manifest.num_speculative_tokens[-1])],
        )  # fmt: skip
        self.rejected = count(
            "speculative_rejection_cause",
            "Drafted tokens that came to nothing: the target said another (mismatch), a grammar forbids "
            "them, they were accepted but lie after the end of the text, or came too late (timeout).",
            "cause", REJECTIONS,
        )  # fmt: skip
        self.rounds = count("rounds", "Rounds, with drafts or without.")
        self.fallback = count(
            "fallback_rounds", "Rounds without drafts (K = 0), by why.", "cause", FALLBACKS
        )
        self.methods = count(
            "method_rounds", "Rounds by who was to draft.", "method", [manifest.method]
        )
        self.prompt_tokens = count("prompt_tokens", "Prompt tokens prefilled.")
        self.new_tokens = count("generation_tokens", "Tokens given out.")
        self.ends = count("request_end", "Texts that ended, by why.", "finished_reason", REASONS)
        self.success = count(
            "request_success", "Texts that ended well, by why.", "finished_reason", REASONS[:3]
        )
        self.refused = count(
            "requests_refused", "Requests answered with an error, by its code.", "code", ()
        )
        self.phases = count(
            "phase_seconds", "Where texts spent their time: waiting, prefill, drafting on the host, "
            "rounds (a drafter inside them too), the rest of decoding.", "phase", PHASES,
        )  # fmt: skip
        self.first_token = seconds(
            "time_to_first_token_seconds", "Arrival to first token.", _REQUEST_S
        )
        self.per_token = seconds(
            "request_time_per_output_token_seconds",
            "Mean time of a token after the first.",
            _TOKEN_S,
        )
        self.between = seconds(
            "inter_token_latency_seconds",
            "Time of a token after the first; those of a round share it.",
            _TOKEN_S,
        )
        self.whole = seconds("e2e_request_latency_seconds", "Arrival to end.", _REQUEST_S)
        self.queued = seconds("request_queue_time_seconds", "Arrival to slot.", _REQUEST_S)
        self._drafted_in_all = self._accepted_in_all = 0
        self.show(
            "speculative_accept_rate", "Of all drafted tokens, the part accepted.", self._rate
        )

    def show(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when asked for."""
        gauge = Gauge(self._prefix + name, text, ["model_name"], registry=self._registry)
        gauge.labels(self._model).set_function(value)

    def page(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)

    def turned(self, job: Job, progress: Progress, seen: int) -> None:
        self.prompt_tokens[""].inc(progress.prefilled)
        self.new_tokens[""].inc(seen)
        if seen and job.last_token is not None:
            each = (time.monotonic() - job.last_token) / seen
            for _ in range(seen):
                self.between[""].observe(each)
        if not progress.played:
            return
        self.rounds[""].inc()
        self.methods[progress.method or self._manifest.method].inc()
        if progress.late:
            self.rejected["timeout"].inc(progress.late)
        if progress.fallback:
            self.fallback[progress.fallback].inc()
        if not progress.drafted:
            return
        self._drafted_in_all += progress.drafted
        self._accepted_in_all += progress.accepted
        self.drafts[""].inc()
        self.draft_tokens[""].inc(progress.drafted)
        self.accepted[""].inc(progress.accepted)
        for place in range(progress.accepted):
            self.per_position[str(place)].inc()
        cause = "grammar" if progress.forbidden else "mismatch"
        self.rejected[cause].inc(progress.drafted - progress.accepted)
        # A round ends with a token of the target's own: of `seen`, at most `accepted` were drafts.
        if cut := progress.accepted - min(seen, progress.accepted):
            self.rejected[self._cut_by(progress, seen)].inc(cut)

    def _cut_by(self, progress: Progress, seen: int) -> str:
        if seen < len(progress.tokens) or not progress.finish:
            return "stop"
        if progress.finish != "stop":
            return progress.finish
        eos = self._manifest.model.eos_token_ids
        return "eos" if progress.tokens and progress.tokens[-1] in eos else "stop"

    def ended(self, job: Job) -> None:
        ended = job.ended or time.monotonic()
        self.ends[job.reason].inc()
        waited = (job.admitted or ended) - job.arrived
        self.queued[""].observe(waited)
        self.phases["queue"].inc(waited)
        if (stats := job.stats) is not None:
            rest = stats.decode_s - stats.draft_s - stats.round_s
            for phase, spent in (
                ("prefill", stats.prefill_s), ("draft", stats.draft_s), ("round", stats.round_s), ("host", rest),
            ):  # fmt: skip
                self.phases[phase].inc(max(0.0, spent))
        if job.first_token is not None:
            self.first_token[""].observe(job.first_token - job.arrived)
            if (count := len(job.token_ids)) > 1:
                self.per_token[""].observe((ended - job.first_token) / (count - 1))
        if job.reason in REASONS[:3]:
            self.success[job.reason].inc()
            self.whole[""].observe(ended - job.arrived)

    def _rate(self) -> float:
        return self._accepted_in_all / self._drafted_in_all if self._drafted_in_all else 0.0

    def _counter(
        self, name: str, text: str, label: str = "", values: Iterable[str] = ("",)
    ) -> _Children[Counter]:
        labels = ["model_name", *([label] if label else [])]
        family = Counter(self._prefix + name, text, labels, registry=self._registry)
        return _Children(lambda v: family.labels(self._model, *([v] if label else [])), values)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> _Children[Histogram]:
        family = Histogram(
            self._prefix + name, text, ["model_name"], registry=self._registry, buckets=buckets
        )
        return _Children(lambda _: family.labels(self._model), ("",))


class _Children(dict[str, _M]):
    """Those of a family by the value of its second label, or by nothing.

    Values known from the start are shown as 0 from the start.
    """

    def __init__(self, make: Callable[[str], _M], values: Iterable[str]) -> None:
        self._make = make
        super().__init__({value: make(value) for value in values})

    def __missing__(self, value: str) -> _M:
        return self.setdefault(value, self._make(value))
