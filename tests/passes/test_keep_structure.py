"""What is kept of each position is the last layer's key before its rotation and its value, as transformers has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx
from transformers import Qwen3Config, Qwen3ForCausalLM

from specc.ir import SpeculativeProgram
from specc.ir.dialect import ops
from specc.ir.evaluate import evaluate, fresh_state
from specc.ir.graphs import Builder, copy_graph
from specc.ir.importers.huggingface import import_model
from specc.passes import pipelines
from specc.passes.gather_logits import GatherLogits
from specc.passes.keep_structure import Basis, Head, KeepStructure, feature_width
from specc.passes.pipeline import Pipeline
from tests.passes import toy
from tests.passes.driver import generate
from tests.passes.test_pipelines import PROMPT, SHAPE, _model

aten = torch.ops.aten
FAMILIES = ("llama", "gemma2", "qwen3")
COUNT = 9


def _made(family: str) -> Any:
    if family != "qwen3":
        return _model(family, 3)
    torch.manual_seed(3)
    config = Qwen3Config(  # norms of queries and keys come before the rotation
        vocab_size=32, hidden_size=16, intermediate_size=24, head_dim=8, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3,
        attn_implementation="eager",
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def _features(model: Any, tokens: list[int]) -> torch.Tensor:
    """[key; value] of the last layer by hooks on the modules that make them."""
    attention = model.model.layers[-1].self_attn
    found: dict[str, torch.Tensor] = {}
    key = attention.k_norm if hasattr(attention, "k_norm") else attention.k_proj
    hooks = [
        module.register_forward_hook(lambda m, i, o, name=name: found.update({name: o}))
        for name, module in (("key", key), ("value", attention.v_proj))
    ]
    with torch.no_grad():
        model(torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return torch.cat([found[n].reshape(len(tokens), -1) for n in ("key", "value")], 1)


def _basis(width: int, columns: int = 6) -> Basis:
    draw = torch.Generator().manual_seed(1)
    return Basis(torch.randn(columns, width, generator=draw), torch.randn(columns, generator=draw))


def _head(columns: int = 6) -> Head:
    draw = torch.Generator().manual_seed(2)
    shapes = (8, columns), (8,), (5, 8)
    return Head(*(torch.randn(*shape, generator=draw) for shape in shapes))


def _by_layers(z: torch.Tensor, head: Head) -> torch.Tensor:
    y = z @ head.first.T + head.bias
    return (y / (1 + torch.exp(-y))) @ head.second.T


@pytest.mark.parametrize(
    ("family", "head"),
    [*((f, None) for f in FAMILIES), ("llama", _head())],
    ids=[*FAMILIES, "head"],
)
def test_rows_are_transformers_keys_and_values(family: str, head: Head | None) -> None:
    """Of prefill in chunks and of rounds, which move the rows of a tree's path as they move those of caches."""
    model = _made(family)
    imported = import_model(model, family)
    width = feature_width(Pipeline("target", pipelines.target(SHAPE))(imported))
    basis = _basis(width)
    program = pipelines.structure(SHAPE, basis, {}, head)(imported)
    states: list[Any] = []

    def run(program: SpeculativeProgram, name: str, inputs: Any, state: Any) -> list[torch.Tensor]:
        states[:] = [state]
        return evaluate(program, name, inputs, state)

    def oracle(x: Any, k: int) -> tuple[list[int], list[int]]:
        after = plain[len(x) - len(PROMPT) :][:2]
        return [(t + 1) % 32 for t in after[:1]] + after[: k - 1], [0, 0, 2, 3][:k]

    shape = replace(SHAPE, num_speculative_tokens=(0,))
    plain = generate(pipelines.host("none", shape, {})(imported), PROMPT, COUNT + 4, [0])[0]
    made, rounds = generate(program, PROMPT, COUNT, [3], trees=oracle, run=run)
    assert made == plain[:COUNT]
    assert max(a for _, a in rounds) == 2, "a path was moved"
    text = [*PROMPT, *made]
    known = len(PROMPT) + sum(a + 1 for _, a in rounds[:-1]) - 1
    want = _features(model, text)[:known] @ basis.weight.T + basis.bias
    want = want if head is None else _by_layers(want, head)
    kept = states[0]["structure"][0, :known]
    torch.testing.assert_close(kept, want, atol=1e-4, rtol=1e-4)


def test_a_model_without_rotations_keeps_its_keys_as_they_are() -> None:
    program = toy.after("outline-layers")
    width = feature_width(program)
    kept = KeepStructure(_basis(width, 2))(program).program
    state = fresh_state(kept, 8)
    tokens = torch.tensor([1, 5, 2])
    at = torch.arange(3)
    evaluate(kept, "target", [tokens, at, at], state)
    last = [state[f"target.{n}.{kept.model.num_layers - 1}"][0, :3] for n in ("k", "v")]
    want = torch.cat(last, 1) @ _basis(width, 2).weight.T + _basis(width, 2).bias
    torch.testing.assert_close(state["structure"][0, :3], want)


def test_twice_is_once_and_the_target_stays() -> None:
    program = toy.after("outline-layers")
    basis = _basis(feature_width(program), 2)
    for keep in (KeepStructure(basis), KeepStructure(basis, _head(2))):
        toy.assert_twice_is_once(keep, program)
        toy.assert_same_target(program, keep(program).program)


def test_what_does_not_fit_is_refused() -> None:
    program = toy.after("outline-layers")
    width = feature_width(program)
    assert toy.refusal(KeepStructure(_basis(width + 1)), program).startswith("SPECC-E0380")
    gathered = GatherLogits(8)(program).program
    assert toy.refusal(KeepStructure(_basis(width)), gathered).startswith("SPECC-E0330")
    kept = KeepStructure(_basis(width))(program).program
    other = KeepStructure(_basis(width, 5))
    assert toy.refusal(other, kept).startswith("SPECC-E0303")
    late = KeepStructure(_basis(width), _head())
    assert toy.refusal(late, kept).startswith("SPECC-E0334")
    narrow = KeepStructure(_basis(width), _head(5))
    assert toy.refusal(narrow, program).startswith("SPECC-E0380")


def test_a_model_without_keys_to_keep_is_refused() -> None:
    program = toy.after("outline-layers")
    for name, function in program.functions.items():
        graph, _ = copy_graph(function.graph)
        for node in [n for n in graph.nodes if n.target is ops.cache_write.default]:
            graph.erase_node(node)
        program = program.replacing(replace(program.functions[name], graph=graph))
    assert toy.refusal(KeepStructure(_basis(8)), program).startswith("SPECC-E0381")


def test_keys_that_know_their_position_from_the_beginning_are_refused() -> None:
    """The position is added to what enters the layer, so that there is no key without it."""
    draw = torch.Generator().manual_seed(0)
    shapes = {"wte": toy.VOCAB, "wpe": toy.POSITIONS, "head": toy.VOCAB, "w": toy.HIDDEN}
    weights = {n: torch.randn(rows, toy.HIDDEN, generator=draw) for n, rows in shapes.items()}

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        ref = {name: toy.weight(builder, name, tensor) for name, tensor in weights.items()}
        x = builder.op(aten.embedding.default, ref["wte"], tokens)
        x = builder.op(aten.unsqueeze.default, x, 0)
        at = builder.op(aten.embedding.default, ref["wpe"], positions)
        y = builder.op(aten.add.Tensor, x, at)
        y = builder.op(aten.linear.default, y, ref["w"])
        y = builder.op(aten.unsqueeze.default, y, 1)
        y = builder.op(ops.attention.default, y, y, y, None, 0.5, 0, 0.0, 0)
        x = builder.op(aten.add.Tensor, x, builder.op(aten.select.int, y, 2, 0))
        return builder.op(aten.select.int, builder.op(aten.linear.default, x, ref["head"]), 0, 0)

    program = toy.after("outline-layers", toy.build(body, weights, 1))
    assert toy.refusal(KeepStructure(_basis(8)), program).startswith("SPECC-E0382")
