"""Where a decoder falls apart into embedding, layers and head.

A cut is a place in the program where exactly one value that depends on the tokens is alive: the
residual stream. Layer j begins at the last cut before attention j. Values that depend on positions
alone (looked-up cosines) are shared by all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import fx

from specc.errors import PassError
from specc.ir.dialect import ops
from specc.ir.graphs import Builder, has_effect, results_of, state_name, type_of, weight_name
from specc.ir.types import TensorType

aten = torch.ops.aten


@dataclass
class Segment:
    """Consecutive operations.

    `part` is embed, layer or head; `layer` counts layers, `kind` kinds of layers.
    `stream_in` is the residual stream's value at the beginning (None at the program's).
    """

    part: str
    layer: int
    nodes: list[fx.Node]
    stream_in: fx.Node | None
    outputs: list[fx.Node]
    kind: int = 0
    inputs: list[fx.Node] = field(init=False)

    def __post_init__(self) -> None:
        inside = set(self.nodes)
        seen: dict[fx.Node, None] = {} if self.stream_in is None else {self.stream_in: None}
        for node in self.nodes:
            for source in node.all_input_nodes:
                if source not in inside:
                    seen.setdefault(source)
        # Values first, then state, then weights: a stable order that reads well.
        self.inputs = sorted(seen, key=_input_rank)

    @property
    def output_names(self) -> tuple[str, ...]:
        """x, or logits; the shared values of the first segment have numbers."""
        if self.part == "head":
            return ("logits",)
        return ("x", *(f"shared.{i}" for i in range(len(self.outputs) - 1)))

    def canonical(self) -> str:
        """Equal for segments that compute the same on corresponding inputs."""
        number = {n: i for i, n in enumerate([*self.inputs, *self.nodes])}
        types = [str(type_of(n)) for n in self.inputs]
        body = [
            (str(n.target), *fx.map_arg((n.args, n.kwargs), lambda s: f"%{number[s]}"))
            for n in self.nodes
        ]
        return repr((types, body, [number[n] for n in self.outputs]))


def _input_rank(node: fx.Node) -> int:
    return 2 if weight_name(node) is not None else 1 if state_name(node) is not None else 0


def cut(graph: fx.Graph) -> list[Segment]:
    """[embed, layer 0, ..., layer L-1, head]; PassError where the graph does not fall apart so."""
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    hidden = _hidden(graph)
    shared = [n for n in nodes if n not in hidden and not has_effect(n)]
    body = [n for n in nodes if n in hidden or has_effect(n)]
    attentions = [i for i, n in enumerate(body) if n.target is ops.cached_attention.default]
    if not attentions:
        raise PassError(
            "SPECC-E0341", "the target has no attention", cure="choose a transformer decoder"
        )
    early = _early_shared(body, hidden, attentions)
    body = _moved_forward(body, early)
    attentions = [i for i, n in enumerate(body) if n.target is ops.cached_attention.default]
    cuts = _cuts(graph, body, hidden - set(early))
    starts = [_last_cut(cuts, body, attentions, j) for j in range(len(attentions))]
    ends = [*starts[1:], _end_of_last(body, cuts, starts, attentions)]
    streams = [cuts[s] for s in (*starts, ends[-1])]
    later = set(body[starts[0] + 1 :])
    used_later = [n for n in shared if not later.isdisjoint(n.users)]
    passed_on = [streams[0], *used_later, *early]
    segments = [Segment("embed", -1, [*shared, *body[: starts[0] + 1]], None, passed_on)]
    kinds: dict[str, int] = {}
    for j, (start, end) in enumerate(zip(starts, ends, strict=True)):
        layer = Segment("layer", j, body[start + 1 : end + 1], streams[j], [streams[j + 1]])
        layer.kind = kinds.setdefault(layer.canonical(), len(kinds))
        segments.append(layer)
    head = Segment("head", -1, body[ends[-1] + 1 :], streams[-1], list(results_of(graph)))
    return [*segments, head]


def _hidden(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that depend on the tokens (or on state, which does)."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        is_source = (node.op == "placeholder" and node.name == "tokens") or state_name(
            node
        ) is not None
        if is_source or any(s in found for s in node.all_input_nodes):
            found.add(node)
    return found


def _early_shared(
    body: list[fx.Node], hidden: set[fx.Node], attentions: list[int]
) -> list[fx.Node]:
    """Values made of the tokens alone that later layers read beside the stream: per-layer embeddings.

    Those used after the second attention, and those made like them for the first layer. Of a model
    with one attention none can be told from what the layer computes itself; it is refused.
    """
    if len(attentions) < 2:
        return []
    place = {n: i for i, n in enumerate(body)}
    deep: set[fx.Node] = set()  # depends on some attention
    for node in body:
        attends = node.target is ops.cached_attention.default
        if attends or any(s in deep for s in node.all_input_nodes):
            deep.add(node)
    edge = [n for n in body if n in hidden and n not in deep and not deep.isdisjoint(n.users)]
    late = [n for n in edge if any(place[u] > attentions[1] for u in n.users if u in deep)]
    sources = {(n.target, s) for n in late for s in n.all_input_nodes}
    return [n for n in edge if any((n.target, s) in sources for s in n.all_input_nodes)]


def _moved_forward(body: list[fx.Node], early: list[fx.Node]) -> list[fx.Node]:
    """`body` with `early`, and what it is made of, in front; the order within stays."""
    needed: set[fx.Node] = set(early)
    for node in reversed(body):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [n for n in body if n in needed] + [n for n in body if n not in needed]


def _cuts(graph: fx.Graph, body: list[fx.Node], hidden: set[fx.Node]) -> dict[int, fx.Node]:
    """Index of the last node before each cut -> the one value that crosses it."""
    place = {n: i for i, n in enumerate(body)}
    results = set(results_of(graph))
    alive: set[fx.Node] = set()
    ends: dict[int, list[fx.Node]] = {}
    cuts: dict[int, fx.Node] = {}
    for i, node in enumerate(body):
        if node in hidden and not has_effect(node):
            last = (
                len(body)
                if node in results
                else max((place[u] for u in node.users if u in place), default=i)
            )
            alive.add(node)
            ends.setdefault(last, []).append(node)
        alive.difference_update(ends.get(i, ()))
        if len(alive) == 1:
            (stream,) = alive
            if _is_stream(stream.meta["type"]):
                cuts[i] = stream
    return cuts


def _is_stream(type_: object) -> bool:
    """[1, T, H]; a tuple, such as what native_layer_norm returns, is none."""
    return isinstance(type_, TensorType) and len(type_.shape) == 3 and type_.shape[:2] == (1, "T")


def _last_cut(cuts: dict[int, fx.Node], body: list[fx.Node], attentions: list[int], j: int) -> int:
    after = attentions[j - 1] if j else -1
    places = [i for i in cuts if after < i < attentions[j]]
    if not places:
        raise PassError(
            "SPECC-E0342",
            "more than one tensor flows between two layers",
            where=str(body[attentions[j]].meta.get("origin", f"layer {j}")),
            expected="one residual stream",
            cure="choose an architecture whose layers exchange nothing but hidden states",
        )
    return max(places)


def _end_of_last(
    body: list[fx.Node], cuts: dict[int, fx.Node], starts: list[int], attentions: list[int]
) -> int:
    """Where the last layer ends.

    Where an equal earlier one would; else with its module's last node; else at the last cut of the
    stream that entered it (logits are none).
    """
    start = starts[-1]
    for first, second in pairwise(starts):
        end = start + (second - first)
        if end in cuts:
            earlier = Segment("layer", 0, body[first + 1 : second + 1], cuts[first], [cuts[second]])
            last = Segment("layer", 0, body[start + 1 : end + 1], cuts[start], [cuts[end]])
            if earlier.canonical() == last.canonical():
                return end
    stream = cuts[start].meta["type"]
    places = [i for i in cuts if i > attentions[-1] and cuts[i].meta["type"] == stream]
    path = str(body[attentions[-1]].meta.get("origin", "")).rpartition(".")[0]
    inside = [i for i in places if path and str(body[i].meta.get("origin", "")).startswith(path)]
    if not places:
        raise PassError("SPECC-E0343", "the last layer has no end", cure="report the architecture")
    return max(inside) if inside else max(places)


def outline(segment: Segment) -> fx.Graph:
    """The segment as a graph. The residual stream is [T, H] outside and [1, T, H] inside."""
    builder = Builder()
    values: dict[fx.Node, fx.Node] = {}
    names = {0: "shared", 1: "state", 2: "weight"}
    for number, source in enumerate(segment.inputs):
        type_ = type_of(source)
        if source is segment.stream_in:
            outer = builder.input("x", TensorType(type_.dtype, type_.shape[1:]))
            values[source] = builder.op(aten.unsqueeze.default, outer, 0, type_=type_)
        else:
            plain = source.op == "placeholder"
            label = source.name if plain else f"{names[_input_rank(source)]}_{number}"
            values[source] = builder.input(label, type_)
    # Placeholders come first in a graph.
    for node in [n for n in builder.graph.nodes if n.op != "placeholder"]:
        last = [n for n in builder.graph.nodes if n.op == "placeholder"][-1]
        last.append(node)
    for node in segment.nodes:
        values[node] = builder.graph.node_copy(node, values.__getitem__)
        values[node].meta = dict(node.meta)
    results = []
    for output in segment.outputs:
        value, type_ = values[output], type_of(output)
        if _is_stream(type_) and segment.part != "head" and output is segment.outputs[0]:
            value = builder.op(
                aten.select.int, value, 0, 0, type_=TensorType(type_.dtype, type_.shape[1:])
            )
        results.append(value)
    return builder.output(*results)
