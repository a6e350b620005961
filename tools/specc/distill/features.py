"""What a drafter learns from, on disk: for every token of a corpus, the target's taps and what feeds its head.

A shard is one safetensors file:

    tokens i32[N]          all texts of the shard, one after another
    starts i64[S + 1]      where each text begins
    prompts i64[S]         tokens of its prompt: what follows is the target's own
    held bool[S]           whether it is held out of training, by the hash of its prompt
    taps [N, A, H]         hidden states entering the tapped layers, in the type that the target computed with
    final [N, H]           after the final norm
    chosen i32[N]          the target's first choice after each token; of texts to train on, what follows

and in its metadata the lines of the corpus that it holds, their kinds, and what made it. Shards are written whole or
not at all, so a run that was stopped goes on after the last one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specc.distill.target import Teacher
from specc.errors import ModelError
from specc.progress import Progress

SHARD_TOKENS = 1 << 13
"""Tokens of a shard, about."""

PASS_TOKENS = 1 << 12
"""Tokens of one pass of the target, padding and all."""

HELD_OUT = 24
"""One prompt in so many is held out."""


@dataclass(frozen=True)
class Text:
    """One line of a corpus: `prompt` tokens that were given, and all tokens."""

    prompt: int
    ids: tuple[int, ...]
    kind: str
    held: bool


def read_texts(corpus: Path, begin: int, limit: int, vocabulary: int) -> Iterator[Text]:
    """The texts of a corpus file from line `begin` on, cut at `limit` tokens.

    A last line without an end is still being written, and left for later. Raises ModelError (SPECC-E0282) for lines
    that are none, or not UTF-8.
    """
    with corpus.open("rb") as file:
        for number, line in enumerate(islice(file, begin, None), begin):
            if not line.endswith(b"\n"):
                return
            try:
                values = json.loads(line.decode("utf-8"))
                prompt, ids, kind = list(values["prompt"]), list(values["ids"]), str(values["kind"])
                good = all(type(i) is int and 0 <= i < vocabulary for i in prompt + ids)
            except (ValueError, RecursionError, KeyError, TypeError):
                good = False
            if not good:
                raise ModelError(
                    "SPECC-E0282", "a line of the corpus cannot be read", where=f"{corpus}:{number + 1}",
                    expected='{"prompt": ids, "ids": ids, "kind": text}, ids of the target\'s tokens',
                    found=line[:80].decode("utf-8", "replace").rstrip(), cure="write the corpus anew",
                )  # fmt: skip
            digest = hashlib.sha256(json.dumps(prompt).encode()).digest()
            held = int.from_bytes(digest[:4]) % HELD_OUT == 0
            yield Text(len(prompt), tuple((prompt + ids)[:limit]), kind, held)


def write_features(
    teacher: Teacher, corpus: Path, folder: Path, taps: Sequence[int], progress: Progress, *,
    limit: int = 1024, most_shards: int = 1 << 30,
) -> int:  # fmt: skip
    """Bring `folder` up to what `corpus` holds by now; returns the number of shards that were added.

    Raises ModelError (SPECC-E0283) if shards are there of another target or other taps.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made_of = {
        "target": teacher.imported.source_hash,
        "taps": json.dumps(list(taps)),
        "limit": str(limit),
    }
    shards = shards_in(folder)
    for shard in shards:
        if {k: shard.metadata.get(k) for k in made_of} != made_of:
            raise ModelError(
                "SPECC-E0283", "the features that are there are of another target or other taps", where=str(shard.path),
                expected=str(made_of), found=str({k: shard.metadata.get(k) for k in made_of}),
                cure="choose another --work folder, or remove this one",
            )  # fmt: skip
    begin = int(shards[-1].metadata["end"]) if shards else 0
    texts = read_texts(corpus, begin, limit, teacher.facts.vocab_size)
    added = 0
    while added < most_shards:
        batch: list[Text] = []
        while sum(len(t.ids) for t in batch) < SHARD_TOKENS and (text := next(texts, None)):
            batch.append(text)
        if not batch:
            break
        lines = {"begin": str(begin), "end": str(begin + len(batch))}
        path = folder / f"shard-{len(shards) + added:05}.safetensors"
        _write(teacher, path, batch, taps, {**made_of, **lines})
        begin, added = begin + len(batch), added + 1
        progress.note(f"features: {begin} texts")
    return added


def _write(
    teacher: Teacher, path: Path, texts: list[Text], taps: Sequence[int], metadata: dict[str, str]
) -> None:
    lengths = torch.tensor([len(t.ids) for t in texts])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    count, width = int(starts[-1]), teacher.facts.hidden_size
    kept = torch.empty(count, len(taps), width, dtype=teacher.dtype)
    final = torch.empty(count, width, dtype=teacher.dtype)
    chosen = torch.empty(count, dtype=torch.int32)
    for group in _groups(lengths.tolist()):
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(texts[i].ids) for i in group], True)
        tapped, last = teacher.hidden(ids, taps)
        for row, i in enumerate(group):
            rows, length = slice(int(starts[i]), int(starts[i + 1])), len(texts[i].ids)
            kept[rows], final[rows] = tapped[row, :length], last[row, :length]
            text = ids[row, :length]
            said = first_choices(teacher, last[row, :length]) if texts[i].held else text.roll(-1)
            chosen[rows] = said.int()
    content = {
        "tokens": torch.tensor([i for t in texts for i in t.ids], dtype=torch.int32), "starts": starts,
        "prompts": torch.tensor([t.prompt for t in texts]), "held": torch.tensor([t.held for t in texts]),
        "taps": kept, "final": final, "chosen": chosen,
    }  # fmt: skip
    part = path.with_suffix(".part")
    save_file(content, part, {**metadata, "kinds": json.dumps([t.kind for t in texts])})
    part.replace(path)


def first_choices(teacher: Teacher, hidden: Tensor) -> Tensor:
    """The target's first choice i64[T] from what feeds its head [T, H]; ids that are no tokens do not count."""
    head = teacher.head[: teacher.facts.vocab_size].to(hidden.dtype)
    parts = [hidden[i : i + 64] for i in range(0, len(hidden), 64)]
    return torch.cat([torch.argmax(part @ head.T, -1) for part in parts])


def _groups(lengths: list[int]) -> Iterator[list[int]]:
    """Texts that share a pass: of about one length, PASS_TOKENS together."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and lengths[i] * (len(group) + 1) > PASS_TOKENS:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


@dataclass(frozen=True, eq=False)
class Shard:
    """One file; tensors of its texts are read when asked for."""

    path: Path
    metadata: dict[str, str]
    starts: tuple[int, ...]
    prompts: tuple[int, ...]
    held: tuple[bool, ...]

    @property
    def kinds(self) -> list[str]:
        """The kind of each text."""
        return list(json.loads(self.metadata["kinds"]))

    def read(self, name: str, begin: int, end: int) -> Tensor:
        """Rows `begin` to `end` of a tensor."""
        with safe_open(self.path, "pt") as file:
            part: Tensor = file.get_slice(name)[begin:end]
        return part


def shards_in(folder: Path) -> list[Shard]:
    """The shards of a folder, in the order of the corpus."""
    found = []
    for path in sorted(folder.glob("shard-*.safetensors")):
        with safe_open(path, "pt") as file:
            lists = [file.get_tensor(n).tolist() for n in ("starts", "prompts", "held")]
            found.append(Shard(path, file.metadata(), *map(tuple, lists)))
    return found
