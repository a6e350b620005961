"""What a user's graph means: attention, its heads and window, and where positions come from.

All of it is decided by running pieces of the graph and comparing with the exact pattern, not by how they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from specc.errors import ModelError
from specc.ir import dialect
from specc.ir.dialect import ops

aten = torch.ops.aten

_MOVES = {
    aten.clone.default, aten.contiguous.default, aten.view.default, aten.reshape.default,
    aten._unsafe_view.default, aten.expand.default, aten.unsqueeze.default, aten.slice.Tensor,
    aten.repeat_interleave.self_int, aten.repeat.default, aten.transpose.int, aten.permute.default,
    aten.flatten.using_ints, aten.alias.default,
}  # fmt: skip
"""Operations that only move or repeat values."""

_LARGE = 8200
"""Rows at which masks are probed, if the export allows them: windows up to 8192 are seen."""


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Stands for `scaled_dot_product_attention` while a program is traced again. All [1, H, T, D].

    Raises ModelError (SPECC-E0264) for attention that is not causal or drops values.
    """
    if dropout_p or (attn_mask is None and not is_causal) or query.ndim != 4:
        raise ModelError(
            "SPECC-E0264",
            "attention that is bidirectional, drops values or is not over [1, heads, T, width]",
            where="scaled_dot_product_attention",
            expected="is_causal=True or a causal mask, in eval mode",
            found=f"is_causal={is_causal}, mask={attn_mask is not None}, dropout_p={dropout_p}, "
            f"query {list(query.shape)}",
            cure="export the decoder in eval mode with causal attention",
        )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output: Tensor = dialect.ops.attention(query, key, value, None, float(scale), 0, 0.0, -1)
    if attn_mask is not None:
        output = torch.ops.specc.masked_by(output, attn_mask)
    return output.transpose(1, 2)


def resolve(exported: ExportedProgram, longest: int) -> None:
    """Give each attention of `exported` its number, window and real heads, and each row its position from the input.

    `longest` is the largest T that is allowed (0: any). Changes the graph in place. Raises ModelError: SPECC-E0265 a
    mask that is not causal or sliding, E0266 no attention that is recognised.
    """
    graph = exported.graph_module.graph
    tokens, positions = [n for n, s in _placeholders(exported) if s.kind is InputKind.USER_INPUT]
    found = [n for n in graph.nodes if n.target is ops.attention.default]
    unfused = [n for n in graph.nodes if _is_unfused(n)]
    if unfused or not found:
        raise ModelError(
            "SPECC-E0266",
            "attention is written out as matmul and softmax"
            if unfused
            else "there is no attention",
            where=_near(unfused[0], exported) if unfused else "the exported program",
            expected="torch.nn.functional.scaled_dot_product_attention",
            cure="use F.scaled_dot_product_attention in the model and export it again",
        )
    for number, node in enumerate(found):
        where = _near(node, exported)
        window = 0
        for user in list(node.users):
            if user.target is ops.masked_by.default:
                window = _window(user.args[1], tokens, positions, exported, longest, where)
                user.replace_all_uses_with(node)
                graph.erase_node(user)
        query, key, value = node.args[:3]
        single = _unrepeated(key, query, graph), _unrepeated(value, query, graph)
        if single[0].meta["val"].shape[1] == single[1].meta["val"].shape[1]:
            key, value = single  # else one was repeated before something else was done to it
        node.args = (query, key, value, None, node.args[4], window, 0.0, number)
        node.meta["nn_module_stack"] = {"": (where, "")}
    _take_positions(graph, exported, tokens, positions)
    graph.eliminate_dead_code()
    graph.lint()
    exported.graph_module.recompile()


def _placeholders(exported: ExportedProgram) -> Iterator[tuple[fx.Node, Any]]:
    specs = {s.arg.name: s for s in exported.graph_signature.input_specs}
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            yield node, specs[node.name]


def _is_unfused(node: fx.Node) -> bool:
    """A softmax over as many columns as there are rows."""
    if "softmax" not in str(node.target) or not isinstance(node.meta.get("val"), Tensor):
        return False
    return sum(isinstance(s, torch.SymInt) for s in node.meta["val"].shape) > 1


def _near(node: fx.Node, exported: ExportedProgram) -> str:
    """The nearest numbered weight that `node` is computed from: the user's own name for a layer."""
    names = {n: s.target for n, s in _placeholders(exported) if s.kind is not InputKind.USER_INPUT}
    queue, seen, nearest = [node], {node}, ""
    while queue:
        current = queue.pop(0)
        if current in names:
            path = str(names[current]).removeprefix("model.").rpartition(".")[0]
            if numbered := re.match(r".*?\.\d+", path):
                return numbered[0]
            nearest = nearest or path
        queue += [n for n in current.all_input_nodes if n not in seen]
        seen.update(current.all_input_nodes)
    return nearest or str(node)


def _evaluate(target: fx.Node, given: dict[fx.Node, Any]) -> Any:
    """The value of `target` from those of `given`; raises KeyError for an input that is not among them."""
    values = dict(given)
    stack = [target]
    while stack:
        node = stack[-1]
        if node in values:
            stack.pop()
            continue
        waiting = [n for n in node.all_input_nodes if n not in values]
        if node.op != "call_function":
            raise KeyError(node.name)
        if waiting:
            stack += waiting
            continue
        args = fx.map_arg(node.args, values.__getitem__)
        run: Any = node.target
        values[node] = run(*args, **fx.map_arg(node.kwargs, values.__getitem__))
        stack.pop()
    return values[target]


def _window(
    mask: Any, tokens: fx.Node, positions: fx.Node, exported: ExportedProgram, longest: int,
    where: str,
) -> int:  # fmt: skip
    """0 for a causal mask, w for a window of w, by computing `mask` for two row counts."""
    constants = {
        n: _tensor(exported, s) for n, s in _placeholders(exported)
        if s.kind is not InputKind.USER_INPUT
    }  # fmt: skip
    windows = []
    for rows in (min(33, longest or 33), min(_LARGE, longest or _LARGE)):
        shown = []
        for fill in (0, 1):  # a mask may depend on the number of tokens, not on which they are
            given = {tokens: torch.full((rows,), fill), positions: torch.arange(rows), **constants}
            shown.append(_visible(_evaluate(mask, given), rows))
        if shown[0] is None or shown[1] is None or not torch.equal(shown[0], shown[1]):
            raise _odd(where)
        windows.append(_width(shown[0]))
    small, large = windows
    # A window at least as wide as the small probe looks causal there.
    if small is None or large is None or (small != large and small != 0):
        raise _odd(where)
    return large


def _visible(mask: Any, rows: int) -> Tensor | None:
    """[T, T] of bool, or None if `mask` is no plain mask: per head, or with values other than none and minus much."""
    if not isinstance(mask, Tensor) or mask.shape[-2:] != (rows, rows) or mask.numel() != rows**2:
        return None
    square: Tensor = mask.reshape(rows, rows)
    if square.dtype == torch.bool:
        return square
    seen = square == 0
    return seen if bool((seen | (square <= -1e4)).all()) else None


def _width(visible: Tensor) -> int | None:
    rows = visible.shape[0]
    gap = torch.arange(rows)[:, None] - torch.arange(rows)[None, :]
    width = int(visible[-1].sum())
    if torch.equal(visible, (gap >= 0) & (gap < width)):
        return 0 if width == rows else width
    return None


def _odd(where: str) -> ModelError:
    return ModelError(
        "SPECC-E0265",
        "an attention mask is neither causal nor a causal sliding window",
        where=where,
        expected="every row sees itself and rows before it, all of them or the last w",
        found="another pattern, a bias by distance (ALiBi) or a mask that depends on the tokens",
        cure="export the decoder with causal or sliding-window attention",
    )


def _tensor(exported: ExportedProgram, spec: Any) -> Tensor:
    found: Any = exported.state_dict.get(spec.target)
    tensor: Tensor = exported.constants[spec.target] if found is None else found
    return tensor


def _unrepeated(node: Any, query: Any, graph: fx.Graph) -> fx.Node:
    """The key or value [1, Hkv, T, D] from which `node` [1, Hq, T, D] is repeated, or `node` itself."""
    heads = int(query.meta["val"].shape[1])
    chain: list[fx.Node] = []
    best: fx.Node = node
    current = node
    while isinstance(current, fx.Node) and current.target in _MOVES:
        chain.insert(0, current)
        current = current.args[0]
        found = _source(current, node, chain, heads, graph)
        best = found or best
    return best


def _source(
    source: Any, node: fx.Node, chain: list[fx.Node], heads: int, graph: fx.Graph
) -> fx.Node | None:
    """`source`, turned to [1, Hkv, T, D], if `chain` does nothing but repeat its heads."""
    value = source.meta.get("val") if isinstance(source, fx.Node) else None
    if not isinstance(value, Tensor) or value.ndim != 4 or value.shape[0] != 1:
        return None
    open_dims = [i for i, size in enumerate(value.shape) if isinstance(size, torch.SymInt)]
    if open_dims not in ([1], [2]):
        return None
    turned = open_dims == [1]  # [1, T, H, D]
    count = int(value.shape[2 if turned else 1])
    if count >= heads or heads % count:
        return None
    probe = torch.randn([5 if isinstance(s, torch.SymInt) else int(s) for s in value.shape])
    try:
        got = _run_chain(source, probe, chain, node)
    except (KeyError, RuntimeError):
        return None
    upright = probe.transpose(1, 2) if turned else probe
    if not torch.equal(got, upright.repeat_interleave(heads // count, 1)):
        return None
    if not turned:
        return source  # type: ignore[no-any-return]
    with graph.inserting_after(source):
        flipped = graph.call_function(aten.transpose.int, (source, 1, 2))
    flipped.meta = {**source.meta, "val": value.transpose(1, 2)}
    return flipped


def _run_chain(source: fx.Node, probe: Tensor, chain: list[fx.Node], end: fx.Node) -> Tensor:
    """`end` computed from `probe` in place of `source`; sizes in the arguments are those of five rows."""
    values: dict[fx.Node, Any] = {source: probe}

    def number(argument: fx.Node) -> Any:
        if argument in values:
            return values[argument]
        value: Any = argument.meta["val"]
        if isinstance(value, torch.SymInt):
            expression: Any = value.node.expr
            return int(expression.subs(dict.fromkeys(expression.free_symbols, 5)))
        if isinstance(value, int):
            return value
        raise KeyError(argument.name)

    for node in chain:
        args = fx.map_arg(node.args, number)
        run: Any = node.target
        values[node] = run(*args, **fx.map_arg(node.kwargs, number))
    result: Tensor = values[end]
    return result


def _take_positions(
    graph: fx.Graph, exported: ExportedProgram, tokens: fx.Node, positions: fx.Node
) -> None:
    """Put the input in place of each 0, 1, .. T-1 that the program counts, and of each first T rows of a table."""
    rows = tokens.meta["val"].shape[0]
    tables = {n for n, s in _placeholders(exported) if s.kind is not InputKind.USER_INPUT}
    for node in list(graph.nodes):
        if "arange" in str(node.target) and _counts(node, rows):
            with graph.inserting_before(node):
                dtype = node.meta["val"].dtype
                new = graph.call_function(aten._to_copy.default, (positions,), {"dtype": dtype})
            new.meta = dict(node.meta)
            node.replace_all_uses_with(positions if dtype == torch.int64 else new)
        elif node.target is aten.slice.Tensor and node.args[0] in tables and _is_head(node, rows):
            dim = node.args[1] if len(node.args) > 1 else 0
            with graph.inserting_before(node):
                new = graph.call_function(aten.index_select.default, (node.args[0], dim, positions))
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)


def _same(size: Any, rows: Any) -> bool:
    return str(size) == str(rows)


def _counts(node: fx.Node, rows: Any) -> bool:
    """Whether an arange is 0, 1, .., T-1."""
    arguments = list(node.args)
    name = str(node.target)
    start = arguments[0] if ".start" in name else 0
    step = arguments[2] if ".start_step" in name and len(arguments) > 2 else 1
    return bool(start == 0) and bool(step == 1) and _same(node.meta["val"].shape[0], rows)


def _is_head(node: fx.Node, rows: Any) -> bool:
    """Whether a slice takes the first T of a dimension."""
    arguments = [*node.args, *(None,) * 5]
    dim = arguments[1] or 0
    start, step = arguments[2], arguments[4]
    size = node.meta["val"].shape[dim]
    return start in (None, 0) and step in (None, 1) and _same(size, rows)
