"""A row's logits have one value, bit for bit: whatever rows, texts and threads share the call that computes them.

Through compiled models, of every kind of encoding and for every instruction set of this machine. The caches hold nine
texts, and hold NaN wherever no row of the test may look.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specc.backends.artifact import TokenizerFiles, write_artifact
from specc.backends.base import Device, find_backend
from specc.ir import SpeculativeProgram, Weight
from specc.ir.importers.huggingface import import_model
from specc.passes import pipelines
from specc.passes.pipelines import Shape
from specc.passes.quantise_weights import QuantiseWeights
from specc.passes.tabulate_positions import tables
from specc.progress import SilentProgress
from specc.request import CompileRequest, isa_of
from specc.runtime import Artifact, Session

LENGTH, ROOM, TEXTS = 32, 40, 8
"""Tokens of a text, cache rows of one, and texts at once, in the caches' places 1 to 8."""
POISON = 33
"""A position whose cosines and sines are NaN: with them all that it writes to caches."""
TOKENS = [(7 * i * i + 3 * i) % 96 for i in range(LENGTH)]

KINDS = [("x86-64-v3", ""), ("x86-64-v3", "q8g32"), ("x86-64-v4", "q4mg32")]
"""Instruction sets and encodings; tests/runtime has the kernels in all of them."""
NATIVE = isa_of(CompileRequest("", Path(), isa="native"))


def _program(encoding: str) -> SpeculativeProgram:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    stored = QuantiseWeights(encoding, encoding) if encoding else None
    shape = Shape(tuple(range(LENGTH)), ROOM, LENGTH, max_num_seqs=TEXTS + 1, weights=stored)
    pipeline = pipelines.host("ngram", shape, {})
    program = pipeline(import_model(LlamaForCausalLM(config).eval(), "tiny"))
    poisoned = {}
    for name in tables(program):
        table = program.weights[name].load().clone()
        table[POISON] = torch.nan
        poisoned[name] = Weight.of(table)
    assert poisoned
    return replace(program, weights=program.weights.replaced(poisoned))


@pytest.fixture(scope="module", params=[k for k in KINDS if k[0] <= NATIVE], ids="-".join)
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    isa, encoding = request.param
    folder = tmp_path_factory.mktemp("one-hash")
    program, device, backend = _program(encoding), Device(isa=isa), find_backend("inductor")
    lowered = backend.lower(program, folder, device, SilentProgress())
    assert lowered.lossless
    write_artifact(
        program, lowered, folder, backend=backend.name, device=device, tokenizer=TokenizerFiles(), provenance={},
        progress=SilentProgress(),
    )  # fmt: skip
    return folder


def _rows(texts: int, together: int) -> Iterator[tuple[int, int]]:
    """(text, position) of all rows, so that a call has neighbours of some texts, and texts are at different places."""
    step = max(1, together // texts)
    for begin in range(0, LENGTH, step):
        for text in range(texts):
            yield from ((text, p) for p in range(begin, min(begin + step, LENGTH)))


def _run(
    session: Session, tokens: Sequence[int], positions: Sequence[int], rows: Sequence[int]
) -> bytes:
    inputs = {"tokens": tokens, "positions": positions, "rows": rows}
    return bytes(session.run(f"verify_{len(tokens) - 1}", inputs))


def _poison(session: Session) -> None:
    """All rows of the caches but those of text 0, which hold zeros and belong to nobody."""
    for row in range(ROOM, ROOM * (TEXTS + 1)):
        logits = memoryview(_run(session, [1], [POISON], [row])).cast("f")
        assert all(x != x for x in logits)


def _hashes(session: Session, together: int, texts: int) -> set[str]:
    """Of each text's logits, computed `together` rows in a call."""
    _poison(session)
    logits: dict[tuple[int, int], bytes] = {}
    todo = list(_rows(texts, together))
    for first in range(0, len(todo), together):
        part = todo[first : first + together]
        positions = [p for _, p in part]
        found = _run(
            session,
            [TOKENS[p] for p in positions],
            positions,
            [ROOM * (1 + t) + p for t, p in part],
        )
        size = len(found) // len(part)
        logits |= {row: found[i * size : (i + 1) * size] for i, row in enumerate(part)}
    return {
        hashlib.sha256(b"".join(logits[text, p] for p in range(LENGTH))).hexdigest() for text in range(texts)
    }  # fmt: skip


def test_one_hash(artifact: Path) -> None:
    """1 to 32 rows, 1 to 8 texts and 1 to 4 threads: each number of rows with all numbers of texts, in turns."""
    hashes: set[str] = set()
    for threads in (1, 2, 3, 4):
        with Artifact.load(artifact, threads) as engine, engine.session() as session:
            assert engine.threads == threads
            for together in range(1, LENGTH + 1):
                hashes |= _hashes(session, together, 1 + (together + 2 * threads) % TEXTS)
                assert len(hashes) == 1, (threads, together)


def test_it_would_notice(artifact: Path) -> None:
    """A row more is seen, and another token."""
    with Artifact.load(artifact, 1) as engine, engine.session() as session:
        _poison(session)
        one = _run(session, TOKENS[:1], [0], [ROOM])
        assert _run(session, TOKENS[1:2], [0], [ROOM]) != one
        assert _run(session, TOKENS[:1], [1], [ROOM + 1]) != one
