"""From a target to an exported drafter: corpus, features, training, export, and a look at what was written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from specc import flags
from specc.destination import whole_or_nothing
from specc.distill.begin import begin, read_beginning
from specc.distill.corpus import write
from specc.distill.dflash import Blocks, dflash_student
from specc.distill.dspark import dspark_student
from specc.distill.eagle3 import eagle3_student
from specc.distill.evaluation import Acceptance
from specc.distill.export import RECIPE, Exporting, as_stored, write_drafter
from specc.distill.features import Shard, shards_in, write_features
from specc.distill.layer import multiply_in
from specc.distill.loss import Head
from specc.distill.medusa import medusa_student
from specc.distill.mtp import mtp_student
from specc.distill.target import DTYPES, Teacher, load_teacher
from specc.distill.training import Plan, State, Student, Trainer
from specc.distill.vocabulary import draft_vocabulary
from specc.ir.importers.drafters import load_drafter
from specc.ir.importers.drafters.eagle import eagle3_taps
from specc.ir.weights import content_hash
from specc.progress import Progress


@dataclass(frozen=True)
class DistillRequest:
    """What `specc distill` was asked for. `work` keeps features and checkpoint, so that a stopped run goes on."""

    target: str
    method: str
    output: Path
    work: Path
    corpus: Path | None = None
    tokens: int = 500_000
    draft_vocab_size: int = 8192
    intermediate_size: int = 0
    depths: int = 3
    dtype: str = "auto"
    full_head: bool = False
    init: Path | None = None
    force: bool = False
    plan: Plan = field(default_factory=Plan)


class Exportable(Student, Exporting, Protocol):
    """A student that can be written to files; `head` is frozen."""

    head: Head


BLOCK_LAYERS = 1
"""Of a small target's drafter: a block pays for its layers once, but a layer costs as much as one of the target's."""

Maker = Callable[[DistillRequest, Teacher, Tensor], Exportable]


def _eagle3(request: DistillRequest, teacher: Teacher, ids: Tensor) -> Exportable:
    wide = _wide(request, teacher)
    return eagle3_student(teacher, ids, len(taps_of(teacher)), wide, request.depths)


def _mtp(request: DistillRequest, teacher: Teacher, ids: Tensor) -> Exportable:
    del ids
    return mtp_student(teacher, _wide(request, teacher), request.depths)


def _medusa(request: DistillRequest, teacher: Teacher, ids: Tensor) -> Exportable:
    del ids
    return medusa_student(teacher, request.plan.k)


def _dflash(request: DistillRequest, teacher: Teacher, ids: Tensor) -> Exportable:
    return dflash_student(teacher, ids, _blocks(request, teacher))


def _dspark(request: DistillRequest, teacher: Teacher, ids: Tensor) -> Exportable:
    return dspark_student(teacher, ids, _blocks(request, teacher))


def _blocks(request: DistillRequest, teacher: Teacher) -> Blocks:
    return Blocks(len(taps_of(teacher)), _wide(request, teacher), BLOCK_LAYERS, request.plan.k)


def _wide(request: DistillRequest, teacher: Teacher) -> int:
    return request.intermediate_size or 4 * teacher.facts.hidden_size // 3


MAKERS: dict[str, Maker] = {
    "eagle3": _eagle3,
    "mtp": _mtp,
    "medusa": _medusa,
    "dflash": _dflash,
    "dspark": _dspark,
}
"""By method."""


def taps_of(teacher: Teacher) -> tuple[int, ...]:
    """Low, middle and high, as EAGLE-3 takes them; of small models layers that are there, each once."""
    count = teacher.facts.num_layers
    return tuple(sorted({min(max(t, 0), count - 1) for t in eagle3_taps(count)}))


@dataclass(frozen=True)
class DistillReport:
    """What came of it: acceptance on held-out texts by kind, as measured with the weights that were written."""

    path: Path
    acceptance: dict[str, Acceptance]
    state: State
    corpus_tokens: int


def distill(request: DistillRequest, progress: Progress) -> DistillReport:
    """Write the drafter `request.output`, whole or not at all. Raises SpeccError."""
    flags.one_of("--method", request.method, MAKERS)
    flags.one_of("--dtype", request.dtype, DTYPES)
    request.work.mkdir(parents=True, exist_ok=True)
    corpus = request.corpus or request.work / "corpus.jsonl"
    with progress.phase(f"load {request.target}"):
        teacher = load_teacher(request.target, request.dtype)
    first = request.init and read_beginning(request.init, request.method, teacher)
    if request.corpus is None:
        with progress.phase("the target writes"):
            write_corpus(request, teacher, corpus, progress)
    taps, folder = taps_of(teacher), request.work / "features"
    with progress.phase("features"):
        write_features(teacher, corpus, folder, taps, progress)
    shards = shards_in(folder)
    ids = _vocabulary(request, teacher, shards, first.ids if first else None)
    torch.manual_seed(request.plan.seed)
    student = MAKERS[request.method](request, teacher, ids)
    if first:
        begin(student, first, teacher, taps)
    trainer = Trainer(
        student, request.plan, request.work, lambda: shards_in(folder), progress, teacher.device,
        given=request.corpus is not None,
    )  # fmt: skip
    with progress.phase(f"train {request.method}"):
        trainer.run()
    with progress.phase("measure what is written"):
        as_stored(student.module)
        multiply_in(student.module, torch.float32)  # as the compiled drafter does
        student.head = replace(student.head, rows=student.head.rows.float())
        found = trainer.evaluate(8 * request.plan.held_texts)
    made = student.exported(teacher, request.plan.k, taps, full_head=request.full_head)
    tokens = sum(s.starts[-1] for s in shards)
    with whole_or_nothing(request.output, request.force) as part:
        write_drafter(part, made, recipe(request, teacher, trainer.state, found, tokens))
        load_drafter(part, teacher.facts, request.method)
    return DistillReport(request.output, found, trainer.state, tokens)


def write_corpus(
    request: DistillRequest, teacher: Teacher, corpus: Path, progress: Progress
) -> None:
    """Bring `corpus` up to the tokens that were asked for; what a stopped run wrote stays."""
    lines = corpus.read_text().splitlines() if corpus.exists() else []
    count = sum(len(json.loads(line)["ids"]) for line in lines)
    if count >= request.tokens:
        return
    with corpus.open("a") as file:
        for number, sample in enumerate(write(teacher, seed=request.plan.seed + len(lines)), 1):
            file.write(sample.line() + "\n")
            file.flush()
            count += len(sample.ids)
            if number % 100 == 0:
                progress.note(f"corpus: {count} tokens")
            if count >= request.tokens:
                return


def recipe(
    request: DistillRequest,
    teacher: Teacher,
    state: State,
    found: dict[str, Acceptance],
    tokens: int,
) -> dict[str, Any]:
    """How this drafter was made, for whom, and what it was measured to give."""
    facts = teacher.facts
    return {
        "method": request.method, "command": "specc " + " ".join(sys.argv[1:]),
        "target": target_facts(teacher), "source": teacher.imported.provenance["source"],
        "source_hash": teacher.imported.source_hash, "name": facts.name,
        "corpus_tokens": tokens, "trained_tokens": state.tokens, "steps": state.step, "epochs": state.epochs,
        "seconds": round(state.seconds), "plan": asdict(request.plan),
        "acceptance": {kind: a.as_json() for kind, a in found.items()}, "k": request.plan.k,
        **({"init": str(request.init)} if request.init else {}),
    }  # fmt: skip


def target_facts(teacher: Teacher) -> dict[str, Any]:
    """What tells this target from all others: its sizes, and the hash of its head, of which drafters use rows."""
    facts = teacher.facts
    return {
        "architecture": facts.architecture, "hidden_size": facts.hidden_size, "layers": facts.num_layers,
        "head": content_hash(facts.head.load()),
    }  # fmt: skip


def _vocabulary(
    request: DistillRequest, teacher: Teacher, shards: list[Shard], given: Tensor | None
) -> Tensor:
    """The draft vocabulary; kept in the work folder, since a training that goes on must have the same."""
    kept, size = (
        request.work / "vocabulary.json",
        min(request.draft_vocab_size, teacher.facts.vocab_size),
    )
    if kept.exists():
        ids = torch.tensor(json.loads(kept.read_text()))
        if len(ids) == size if given is None else torch.equal(ids, given):
            return ids
    ids = draft_vocabulary(shards, size, teacher.facts.vocab_size) if given is None else given
    kept.write_text(json.dumps(ids.tolist()))
    return ids


__all__ = ["RECIPE", "DistillReport", "DistillRequest", "distill"]
