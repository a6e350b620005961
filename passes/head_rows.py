"""Heads that compute logits of some tokens alone, and put them where those of all are expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Weight
from specc.ir.graphs import Builder, copy_graph, output_of, results_of, type_of, weight_name
from specc.ir.infer import infer_types
from specc.ir.program import Function
from specc.ir.types import TensorType

aten = torch.ops.aten


def call_with_rows(
    call: fx.Node, head: Function, ids: Sequence[int], suffix: str, places: str,
    known: Mapping[str, Weight], added: dict[str, Weight],
) -> Function:  # fmt: skip
    """Make `call` of `head` one of the head that is returned, which computes its rows `ids` alone.

    `places` names a weight in `added`, i32[V]: logit i of V is that of row ids[places[i]], and minus infinity where
    places[i] is len(ids). `suffix` ends the new names; matrices of fewer rows, out of `known`, go into `added`.
    Raises PassError (SPECC-E0363) where the head does not end on one logit for each row.
    """
    builder, args = Builder(call.graph), list(call.args)
    with call.graph.inserting_before(call):
        for index in _rows_of(head):
            matrix = args[index]
            name = weight_name(matrix) if isinstance(matrix, fx.Node) else None
            assert name is not None
            added[name + suffix] = known[name].rows(ids)
            args[index] = builder.weight(name + suffix, added[name + suffix].type)
        args.append(builder.weight(places, added[places].type))
    fewer = _spread(head, head.name + suffix, len(ids), added[places].type)
    call.args, call.target = tuple(args), fewer.name
    return fewer


def at_places(op: Callable[..., fx.Node], logits: fx.Node, places: fx.Node) -> fx.Node:
    """Logits [T, F] -> [T, V]: in column i those of column places[i], or minus infinity where that is F.

    `op` appends an operation. It is a lookup, not a scatter: that vectorises, and each row is written once.
    """
    one = op(aten.slice.Tensor, logits, -1, 0, 1)
    none = op(aten.full_like.default, one, -torch.inf)
    return op(aten.index_select.default, op(aten.cat.default, [logits, none], -1), 1, places)


def _rows_of(head: Function) -> list[int]:
    """Which inputs have a row for each token: matrix and bias of the product that gives the logits."""
    last = [n for n in head.graph.nodes if n.target is aten.linear.default][-1]
    return [i for i, taken in enumerate(head.inputs) if taken in last.args[1:]]


def _spread(head: Function, name: str, count: int, places: TensorType) -> Function:
    """`head` on `count` rows, with its logits put in their places."""
    graph, copies = copy_graph(head.graph)
    for index in _rows_of(head):
        node = copies[head.inputs[index]]
        node.meta["type"] = TensorType(type_of(node).dtype, (count, *type_of(node).shape[1:]))
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    with graph.inserting_after(last):
        where = graph.placeholder("places")
    where.meta["type"] = places
    (logits,) = results_of(graph)
    with graph.inserting_before(output_of(graph)):
        spread = at_places(lambda op, *args: graph.call_function(op, args), logits, where)
    output_of(graph).args = ((spread,),)
    infer_types(graph, head.name)
    if type_of(logits).shape != ("T", count):
        raise PassError(
            "SPECC-E0363", "the head does more with its logits than can be done for some of them",
            where=head.name, found=str(type_of(logits)),
            cure="choose another drafter, or leave out --draft-vocab-size",
        )  # fmt: skip
    return Function(name, head.role, graph, head.outputs)
