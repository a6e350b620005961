"""Keep what a drafter reads of the target: its hidden states, fused as the drafter wants them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Owner, Role, SpeculativeProgram, StateBuffer, StateKind, TensorType
from specc.ir.graphs import Builder, backward_slice, copy_graph, results_of, type_of, weight_name
from specc.ir.importers.drafters import DrafterCheckpoint, DrafterSpec, Kind
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.drafter_layers import LayerWriter, caches, drafter_weights, given
from specc.passes.leaf_writer import PREFIX, LeafWriter
from specc.passes.replay import Part, parts_of

aten = torch.ops.aten
FEATURES = "features"


@dataclass(frozen=True)
class KeepFeatures(Pass):
    """Every call of the target leaves, for each of its rows, what the drafter reads of it.

    Before: x1 = call layer.0(x0, ...); x2 = call layer.1(x1, ...); logits = call head(x2, ...)
    After:  the same, and before the head: call features(x0, x1, rows, $features, @draft.fc...)
            which fuses the hidden states that the drafter taps and writes $features at `rows`

    They are kept like the rows of a cache: rounds without drafts leave no holes, and what
    is wrong after the committed length is written again before it is read. A drafter's fc, and the
    norms before and after it, run here once for each token of the text; only its own width is kept.
    A drafter that fills blocks only attends to what it taps: its keys and values are kept instead.
    Tap L is the hidden state after the final norm, which is taken out of the head for it.
    """

    name: ClassVar[str] = "keep-features"

    drafter: DrafterCheckpoint | None = None
    max_model_len: int = 2048

    def requires(self, program: SpeculativeProgram) -> None:
        parts = parts_of(program)
        spec = given(self.drafter).spec
        info = program.model
        fits = (spec.target_hidden_size, spec.target_layers) == (info.hidden_size, info.num_layers)
        if not fits or not all(0 <= j <= info.num_layers for j in spec.taps):
            raise PassError(
                "SPECC-E0351", "the drafter reads hidden states that the target does not have",
                expected=f"{spec.target_layers} layers of {spec.target_hidden_size}, taps {list(spec.taps)}",
                found=f"{info.num_layers} layers of {info.hidden_size}",
                cure="choose a drafter that was trained for this target",
            )  # fmt: skip
        if not any(p.part == FEATURES for p in parts):
            need(
                "prefill" not in program.functions,
                "prefill keeps no features",
                "keep-features before gather-logits",
            )

    def call(self, program: SpeculativeProgram) -> PassResult:
        drafter = given(self.drafter)
        weights = {PREFIX + name: weight for name, weight in drafter.weights.items()}
        known = program.weights.added(weights)  # refuses other contents
        if FEATURES in program.functions:
            return PassResult(program, modified=False)
        spec, parts = drafter.spec, parts_of(program)
        blocks = spec.kind in (Kind.DFLASH, Kind.DSPARK)
        if blocks:
            known = known.added(drafter_weights(drafter, self.max_model_len))
        width = (
            spec.hidden_size if spec.fuse.fc and not spec.fuse.tokens else spec.target_hidden_size
        )
        buffer = StateBuffer(
            FEATURES, TensorType("f32", (1, "S", width)), StateKind.FEATURES, Owner.DRAFTER
        )
        buffers = caches(spec) if blocks else [buffer]
        program = replace(program, weights=known).with_state(*buffers)
        writer = LeafWriter(program, FEATURES, FEATURES)
        streams = [_stream(parts, j) for j in spec.taps]
        width = spec.target_hidden_size
        values = [
            writer.value(f"x_{j}", type_of(s).dtype, "T", width)
            for j, s in zip(spec.taps, streams, strict=True)
        ]
        where = [
            writer.value(n, "i64", "T") for n in (("positions", "rows") if blocks else ("rows",))
        ]
        fused = fuse(writer, spec, [
            _final_norm(writer, program, parts[-1], x) if j == program.model.num_layers else x
            for j, x in zip(spec.taps, values, strict=True)
        ])  # fmt: skip
        if blocks:
            for number in range(len(spec.layers)):
                LayerWriter(writer, spec, number).keys_and_values(fused, *where)
        else:
            writer.keep(FEATURES, writer.op(aten.unsqueeze.default, fused, 1), *where)
        leaf = writer.end(fused, names=("features",))
        program = program.with_functions(leaf.function)
        graph, copies = copy_graph(program.functions["target"].graph)
        inputs = {n.name: n for n in graph.nodes if n.op == "placeholder"}
        with graph.inserting_before(copies[parts[-1].node]):
            leaf.call(
                Builder(graph),
                program,
                *(copies[s] for s in streams),
                *(inputs[n.name] for n in where),
            )
        target = Function("target", Role.TARGET, graph, program.functions["target"].outputs)
        contract = replace(program.contract, taps=spec.taps)
        return PassResult(replace(program.replacing(target), contract=contract), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        promise(any(p.part == FEATURES for p in parts_of(program)), "nothing is kept")


def fuse(writer: LeafWriter, spec: DrafterSpec, taps: list[fx.Node]) -> fx.Node:
    """The hidden states [T, Ht] of the taps -> what the drafter reads of them [T, ...]."""
    how = spec.fuse
    if how.tokens or not how.fc:
        (alone,) = taps
        return alone
    if how.per_tap_norm:
        taps = [writer.norm(x, f"{PREFIX}fc_norm.{i}", spec.norm_eps) for i, x in enumerate(taps)]
    x = writer.cat(*taps)
    if how.pre_norm:
        x = writer.norm(x, f"{PREFIX}input_norm", spec.norm_eps)
    x = writer.linear(x, f"{PREFIX}fc")
    return writer.norm(x, f"{PREFIX}hidden_norm", spec.norm_eps) if how.post_norm else x


def _stream(parts: list[Part], tap: int) -> fx.Node:
    """What enters layer `tap`, or the head."""
    layers = {p.layer: p for p in parts if p.part == "layer"}
    stream = layers.get(tap, parts[-1]).node.args[0]
    assert isinstance(stream, fx.Node)
    return stream


def _final_norm(writer: LeafWriter, program: SpeculativeProgram, head: Part, x: fx.Node) -> fx.Node:
    """What the head multiplies with its matrix, computed by the head's own operations."""
    leaf = program.functions[str(head.node.target)]
    product = next(n for n in reversed(leaf.graph.nodes) if n.target is aten.linear.default)
    names = (n.name for n in leaf.inputs)
    given: dict[str, Any] = dict(zip(names, head.node.args, strict=True))
    values: dict[fx.Node, fx.Node] = {}
    source = product.args[0]
    assert isinstance(source, fx.Node)
    part = backward_slice(source)
    for node in part.nodes:
        if node.op == "placeholder":
            name = weight_name(given[node.name])
            values[node] = x if name is None else writer.weight(name)
        elif node.op == "call_function":
            values[node] = writer.builder.graph.node_copy(node, values.__getitem__)
    (result,) = results_of(part)
    return writer.op(aten.reshape.default, values[result], [-1, program.model.hidden_size])
