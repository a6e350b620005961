"""Trains a drafter on features: what any method needs, whatever its loss."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from specc.distill.batches import Batch, epoch, pieces
from specc.distill.evaluation import Acceptance, Drafter, evaluate, greedy_pieces
from specc.distill.features import Shard
from specc.errors import ModelError
from specc.progress import Progress

LONGEST_STEP = 60.0
"""Seconds. A step that took longer was stopped meanwhile (Ctrl-Z, a scheduler), which is no training."""


class Student(Drafter, Protocol):
    """A method's drafter while it learns."""

    @property
    def module(self) -> nn.Module:
        """What learns."""
        ...

    def loss(self, batch: Batch) -> tuple[Tensor, list[float]]:
        """The loss of one batch, and for each depth or place how often the first choice was the target's."""
        ...


@dataclass(frozen=True)
class Plan:
    """How long and how to train. `steps` 0: until `minutes` are over.

    `rate` is AdamW's highest step size, reached after `warmup` steps and then lowered along a cosine. A batch has
    `rows` rows of `length` tokens. `k` drafts are evaluated; `floor` is the least acceptance length worth exporting.
    """

    minutes: float = 45.0
    steps: int = 0
    rate: float = 1e-3
    warmup: int = 50
    rows: int = 2
    length: int = 512
    clip: float = 1.0
    decay: float = 0.01
    seed: int = 0
    k: int = 4
    floor: float = 1.3
    report_every: float = 60.0
    evaluate_every: float = 300.0
    held_texts: int = 12


@dataclass
class State:
    """Where a training stands: what a checkpoint keeps beside the tensors."""

    step: int = 0
    tokens: int = 0
    epochs: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """One training run in `folder`, which goes on where it was stopped."""

    def __init__(
        self, student: Student, plan: Plan, folder: Path, shards: Callable[[], Sequence[Shard]],
        progress: Progress, device: torch.device, *, given: bool = False,
    ) -> None:  # fmt: skip
        """`given`: the corpus is the user's, and not written by the target."""
        self.given = given
        self.student, self.plan, self.progress, self.device = student, plan, progress, device
        self.path, self.shards, self.state = folder / "checkpoint.safetensors", shards, State()
        self.optimizer = torch.optim.AdamW(
            student.module.parameters(), plan.rate, betas=(0.9, 0.95), weight_decay=plan.decay
        )
        if self.path.exists():
            self._restore()

    def run(self) -> dict[str, Acceptance]:
        """Train until the plan is done; returns the acceptance on held-out texts.

        Raises ModelError: SPECC-E0284 where the loss is no number any more, E0285 too little text, E0286 where the
        drafter is not worth having.
        """
        last_report = last_evaluation = self.state.seconds
        losses: list[float] = []
        shares: list[list[float]] = []
        while self._done() < 1:
            order = random.Random(self.plan.seed * 1000003 + self.state.step)
            before = self.state.step
            for batch in epoch(self.shards(), self.plan.length, self.plan.rows, order):
                began = time.monotonic()
                loss, right = self._step(batch)
                self.state.seconds += min(time.monotonic() - began, LONGEST_STEP)
                losses.append(loss)
                shares.append(right)
                now = self.state.seconds
                if now - last_report >= self.plan.report_every:
                    last_report = now
                    self._report(losses, shares)
                    losses, shares = [], []
                if now - last_evaluation >= self.plan.evaluate_every:
                    last_evaluation = now
                    self.evaluate()
                    self.save()
                if self._done() >= 1:
                    break
            else:
                self.state.epochs += 1
            if self.state.step == before:
                raise ModelError(
                    "SPECC-E0285", "the corpus is too small to train on",
                    expected=f"{self.plan.rows * self.plan.length} tokens and more", cure=_more(self.given),
                )  # fmt: skip
        found = self.evaluate(8 * self.plan.held_texts)
        self.save()
        if not found["all"].length >= self.plan.floor:
            raise ModelError(
                "SPECC-E0286", "the trained drafter guesses too little to be worth exporting",
                expected=f"an acceptance length of at least {self.plan.floor} on held-out text",
                found=f"{found['all'].length:.2f} after {self.state.step} steps",
                cure="train longer or on more text (--minutes, --tokens); the checkpoint is kept",
            )  # fmt: skip
        return found

    def _done(self) -> float:
        """The share of the plan that is done, at most 1."""
        by_steps = self.state.step / self.plan.steps if self.plan.steps else 0.0
        by_time = 0.0 if self.plan.steps else self.state.seconds / (60 * self.plan.minutes)
        return min(1.0, max(by_steps, by_time))

    def _step(self, batch: Batch) -> tuple[float, list[float]]:
        plan, state = self.plan, self.state
        warm = min(1.0, (state.step + 1) / plan.warmup)
        rate = plan.rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * self._done())))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, right = self.student.loss(batch.to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.student.module.parameters(), plan.clip)
        value = float(loss.detach())
        if not math.isfinite(value) or not math.isfinite(float(norm)):
            raise ModelError(
                "SPECC-E0284", "training diverged: the loss is no finite number any more",
                where=f"step {state.step}", found=f"loss {value}, gradient {float(norm)}",
                cure="lower --rate and go on from the last checkpoint",
            )  # fmt: skip
        self.optimizer.step()
        state.step += 1
        state.tokens += int((batch.text >= 0).sum())
        return value, right

    def evaluate(self, most: int = 0) -> dict[str, Acceptance]:
        """Acceptance on at most `most` held-out texts of each kind, reported."""
        held = pieces(self.shards(), 1 << 20, held=True)
        chosen = greedy_pieces(held, most or self.plan.held_texts)
        self.student.module.train(False)
        found = evaluate(self.student, chosen, self.plan.k, self.device)
        self.student.module.train(True)
        shown = "; ".join(
            f"{kind} {a.length:.2f} ({' '.join(f'{x:.2f}' for x in a.by_place())})"
            for kind, a in found.items()
        )
        self.progress.note(f"  held out, K={self.plan.k}: {shown}")
        line = {
            "step": self.state.step,
            "seconds": round(self.state.seconds),
            "tokens": self.state.tokens,
        }
        self.state.history.append({**line, "held_out": {k: a.as_json() for k, a in found.items()}})
        return found

    def _report(self, losses: list[float], shares: list[list[float]]) -> None:
        state, mean = self.state, sum(losses) / len(losses)
        right = [sum(column) / len(column) for column in zip(*shares, strict=True)]
        self.progress.note(
            f"{state.seconds / 60:5.1f} min  step {state.step}  epoch {state.epochs}  {state.tokens} tokens "
            f"({state.tokens / max(1.0, state.seconds):.0f}/s)  loss {mean:.3f}  "
            f"right {' '.join(f'{x:.3f}' for x in right)}"
        )
        state.history.append(
            {"step": state.step, "seconds": round(state.seconds), "loss": round(mean, 4)}
        )

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        tensors = {f"model.{n}": p.detach() for n, p in self.student.module.named_parameters()}
        names: dict[Tensor, str] = {p: n for n, p in self.student.module.named_parameters()}
        for parameter, values in self.optimizer.state.items():
            tensors |= {
                f"{k}.{names[parameter]}": v for k, v in values.items() if k in ("exp_avg", "exp_avg_sq")
            }  # fmt: skip
        part = self.path.with_suffix(".part")
        content = {n: t.contiguous().cpu() for n, t in tensors.items()}
        save_file(content, part, {"state": json.dumps(asdict(self.state))})
        part.replace(self.path)

    def _restore(self) -> None:
        with safe_open(self.path, "pt") as file:
            self.state = State(**json.loads(file.metadata()["state"]))
            names = set(file.keys())
            for name, parameter in self.student.module.named_parameters():
                if f"model.{name}" not in names or file.get_slice(
                    f"model.{name}"
                ).get_shape() != list(parameter.shape):
                    raise ModelError(
                        "SPECC-E0283", "the checkpoint that is there is of another drafter", where=str(self.path),
                        expected=name, cure="choose another --work folder, or remove this one",
                    )  # fmt: skip
                with torch.no_grad():
                    parameter.copy_(file.get_tensor(f"model.{name}"))
                if f"exp_avg.{name}" in names:
                    self.optimizer.state[parameter] = {
                        "step": torch.tensor(float(self.state.step)),
                        **{k: file.get_tensor(f"{k}.{name}").to(parameter.device) for k in ("exp_avg", "exp_avg_sq")},
                    }  # fmt: skip
        self.progress.note(f"going on from step {self.state.step}")


def _more(given: bool) -> str:
    if given:
        return "add lines to the file that --corpus names"
    return "write more with --tokens"
