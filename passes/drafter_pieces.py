"""A trained drafter as a program of its own, for engines that load it as a second model (MLC)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Contract, Function, ModelInfo, Role, SpeculativeProgram, TensorType
from specc.ir.graphs import Builder, results_of, type_of
from specc.ir.importers.drafters.spec import DrafterCheckpoint, DrafterSpec, Kind, Recycle
from specc.passes.attach_medusa import medusa_head
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.drafter_layers import (
    LayerWriter,
    by_target_id,
    caches,
    drafter_weights,
    given,
    refuse_unknown_layers,
)
from specc.passes.leaf_writer import PREFIX, Leaf, LeafWriter, shared
from specc.passes.split_ends import EMBEDDING, HIDDEN, LOGITS

aten = torch.ops.aten
FUSE = "fuse"


@dataclass(frozen=True)
class DrafterPieces(Pass):
    """Leave the target and write its drafter in the pieces of `split-ends`, the target's hidden states as an input.

    Before: target(tokens[T], positions[T], rows[T]) -> logits
    After:  of EAGLE-1 and -2
            embedding(tokens[T]) -> embeddings[T, H]; fuse(embeddings[T, H], features[T, H]) -> x[T, H]
            hidden(x[T, H], positions[T], rows[T]) -> hidden[T, H], which is the next step's feature
            logits(hidden[T, H]) -> logits[T, V]
            of Medusa, for each of the first `heads` heads
            logits(hidden[T, H]) -> (logits.0[T, V], logits.1[T, V], ...)

    Row i of EAGLE takes the feature of position i and the token at i + 1, as in `attach-eagle`.
    """

    name: ClassVar[str] = "drafter-pieces"

    drafter: DrafterCheckpoint | None = None
    max_model_len: int = 2048
    heads: int = 1

    def requires(self, program: SpeculativeProgram) -> None:
        spec = given(self.drafter).spec
        fuse = spec.fuse
        plain = spec.taps == (spec.target_layers,) and spec.hidden_size == spec.target_hidden_size
        if spec.kind is Kind.EAGLE:
            refuse_unknown_layers(spec)
            plain &= fuse.fc and fuse.tokens and not fuse.token_norms and not spec.norm
            plain &= spec.recycle is Recycle.PRE_NORM and not any(
                x.hidden_norm for x in spec.layers
            )
        elif spec.kind is Kind.MEDUSA:
            known = "target" if "target" in program.functions else LOGITS
            need(known in program.functions, "there is no target", "an importer")
            head = results_of(program.functions[known].graph)[0]
            rows = given(self.drafter).weights["heads.0.lm_head.weight"].type.shape[0]
            plain &= rows == type_of(head).shape[-1] and spec.medusa is not None
        else:
            plain = False
        if not plain:
            raise PassError(
                "SPECC-E0379", f"this {spec.kind} drafter is no model that reads the target's last hidden state alone",
                expected="EAGLE-1 or -2, or Medusa heads over all tokens", found=spec.source,
                cure="leave out --format: specc's own library drafts with it",
            )  # fmt: skip
        if spec.medusa is not None and self.heads > spec.medusa.heads:
            raise PassError(
                "SPECC-E0368", f"the drafter has {spec.medusa.heads} heads", found=str(self.heads),
                expected=f"K up to {spec.medusa.heads}", cure="correct --num-speculative-tokens",
            )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        if program.model.architecture == given(self.drafter).spec.kind:
            return PassResult(program, modified=False)
        drafter = given(self.drafter)
        spec = drafter.spec
        weights = {PREFIX + n: w for n, w in drafter.weights.items()}
        weights |= drafter_weights(drafter, self.max_model_len)
        info: ModelInfo = replace(
            program.model, architecture=str(spec.kind), num_layers=len(spec.layers)
        )
        start = replace(
            program, name=f"{program.name}-{spec.kind}", model=info, functions={}, state={},
            weights=type(program.weights)(weights), contract=Contract(),
        )  # fmt: skip
        if spec.kind is Kind.EAGLE:
            start = start.with_state(*caches(spec))
            return PassResult(_eagle(start, spec), modified=True)
        assert spec.medusa is not None
        heads = [medusa_head(start, spec.medusa, i, spec.hidden_size) for i in range(self.heads)]
        x = TensorType("f32", ("T", spec.hidden_size))
        names = tuple(f"{LOGITS}.{i}" for i in range(self.heads))
        return PassResult(_piece(start, LOGITS, {HIDDEN: x}, shared(heads), names), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        promise(LOGITS in program.functions and "target" not in program.functions, "no drafter")


def _eagle(program: SpeculativeProgram, spec: DrafterSpec) -> SpeculativeProgram:
    tokens, x = TensorType("i64", ("T",)), TensorType("f32", ("T", spec.hidden_size))
    writer = LeafWriter(program, f"{PREFIX}embed", "embed")
    taken = writer.value("tokens", "i64", "T")
    table = writer.weight(f"{PREFIX}embed_tokens.weight")
    embed = writer.end(writer.op(aten.embedding.default, table, taken), names=("embeddings",))
    writer = LeafWriter(program, f"{PREFIX}fuse", "fuse")
    pair = [writer.value(n, "f32", "T", spec.hidden_size) for n in ("embeddings", "features")]
    fuse = writer.end(writer.linear(writer.cat(*pair), f"{PREFIX}fc"), names=("x",))
    writer = LeafWriter(program, f"{PREFIX}head", "head")
    last = writer.value("x", "f32", "T", spec.hidden_size)
    logits = by_target_id(writer, spec.mapped, writer.linear(last, f"{PREFIX}lm_head"))
    head = writer.end(logits, names=("logits",))
    layers = shared([_layer(program, spec, i) for i in range(len(spec.layers))])
    program = _piece(program, EMBEDDING, {"tokens": tokens}, [embed], (EMBEDDING,))
    program = _piece(program, FUSE, {"embeddings": x, "features": x}, [fuse], ("x",))
    program = _piece(program, LOGITS, {HIDDEN: x}, [head], (LOGITS,))
    program = program.with_functions(
        *{leaf.function.name: leaf.function for leaf in layers}.values()
    )
    builder = Builder()
    stream = builder.input("x", x)
    where = [builder.input(name, tokens) for name in ("positions", "rows")]
    for layer in layers:
        (stream,) = layer.call(builder, program, stream, *where)
    return program.with_functions(Function(HIDDEN, Role.TARGET, builder.output(stream), (HIDDEN,)))


def _layer(program: SpeculativeProgram, spec: DrafterSpec, number: int) -> Leaf:
    """Leaf: (x [T, H], positions, rows) -> x [T, H]."""
    writer = LeafWriter(program, f"{PREFIX}layer.{number}", "layer", number)
    write = LayerWriter(writer, spec, number)
    x = writer.value("x", "f32", "T", spec.hidden_size)
    positions, rows = (writer.value(name, "i64", "T") for name in ("positions", "rows"))
    read, x = write.read(x)
    write.keys_and_values(read, positions, rows)
    return writer.end(
        write.finish(write.attend(read, positions, (positions, rows)), x), names=("x",)
    )


def _piece(
    program: SpeculativeProgram, name: str, inputs: dict[str, TensorType], leaves: Sequence[Leaf],
    outputs: tuple[str, ...],
) -> SpeculativeProgram:  # fmt: skip
    """`program` with a function that gives what each leaf gives for its inputs."""
    program = program.with_functions(
        *{leaf.function.name: leaf.function for leaf in leaves}.values()
    )
    builder = Builder()
    values = [builder.input(n, t) for n, t in inputs.items()]
    results: list[fx.Node] = []
    for leaf in leaves:
        results += leaf.call(builder, program, *values)
    return program.with_functions(Function(name, Role.TARGET, builder.output(*results), outputs))
