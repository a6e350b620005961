"""Targets small enough to read: an embedding, attention layers of one matrix each, and a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx

from specc.errors import PassError
from specc.ir import (
    Function,
    ModelInfo,
    Role,
    SpeculativeProgram,
    StaticTree,
    TensorType,
    Tree,
    Weight,
    WeightStore,
)
from specc.ir.dialect import ops
from specc.ir.evaluate import State, evaluate, fresh_state, text_inputs
from specc.ir.graphs import Builder
from specc.ir.importers.drafters import (
    Attention,
    Block,
    DrafterCheckpoint,
    DrafterSpec,
    Fuse,
    Kind,
    Layer,
    Markov,
    Medusa,
    Mlp,
    Recycle,
    Rope,
)  # fmt: skip
from specc.ir.infer import infer_types
from specc.ir.printer import function_lines
from specc.passes import Pass, pipelines
from specc.passes.attach_adapter import Adapter

aten = torch.ops.aten

VOCAB, HIDDEN, POSITIONS = 6, 4, 16
SHAPE = pipelines.Shape((0, 2), POSITIONS, 8)
TREE = StaticTree.of([(0,), (1,), (0, 0), (0, 1)])
TOKENS = torch.tensor([3, 1, 4, 1, 5, 0, 2])

Body = Callable[[Builder, fx.Node, fx.Node], fx.Node]


def build(
    body: Body, weights: Mapping[str, Tensor], layers: int = 0, positions: int = POSITIONS
) -> SpeculativeProgram:
    """A program whose target is what `body` appends to tokens and positions, with its types."""
    builder = Builder()
    row = TensorType("i64", ("T",))
    tokens, at = builder.input("tokens", row), builder.input("positions", row)
    graph = builder.output(body(builder, tokens, at))
    infer_types(graph)
    info = ModelInfo("toy", VOCAB, HIDDEN, layers, positions)
    store = WeightStore({n: Weight.of(t) for n, t in weights.items()})
    function = Function("target", Role.TARGET, graph, ("logits",))
    return SpeculativeProgram("toy", info, {"target": function}, weights=store)


def weight(builder: Builder, name: str, tensor: Tensor) -> fx.Node:
    return builder.weight(name, TensorType.of(tensor))


def decoder(
    layers: int = 2, seed: int = 0, windows: Sequence[int] = (), vocab: int = VOCAB
) -> SpeculativeProgram:
    """x = wte[token] + wpe[position]; x += attention(x W, x W, x W) each layer; logits = x W."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {"wte": (vocab, HIDDEN), "wpe": (POSITIONS, HIDDEN), "head": (vocab, HIDDEN)}
    shapes |= {f"w{j}": (HIDDEN, HIDDEN) for j in range(layers)}
    weights = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        ref = {name: weight(builder, name, tensor) for name, tensor in weights.items()}
        one = builder.op(aten.unsqueeze.default, tokens, 0)
        where = builder.op(aten.embedding.default, ref["wpe"], positions)
        x = builder.op(aten.embedding.default, ref["wte"], one)
        x = builder.op(aten.add.Tensor, x, where)
        for j in range(layers):
            y = builder.op(aten.linear.default, x, ref[f"w{j}"])
            y = builder.op(aten.unsqueeze.default, y, 1)
            window = windows[j] if windows else 0
            y = builder.op(ops.attention.default, y, y, y, None, 0.5, window, 0.0, j)
            y = builder.op(aten.select.int, y, 2, 0)
            x = builder.op(aten.add.Tensor, x, y)
        y = builder.op(aten.linear.default, x, ref["head"])
        return builder.op(aten.select.int, y, 0, 0)

    return build(body, weights, layers)


def adapters(*depths: int) -> dict[int, Adapter]:
    draw = torch.Generator().manual_seed(7)
    square, row = (HIDDEN, HIDDEN), (HIDDEN,)
    return {
        depth: Adapter(*(torch.randn(shape, generator=draw) for shape in (square, square, row)))
        for depth in depths
    }


def after(
    name: str,
    program: SpeculativeProgram | None = None,
    method: str = "ngram",
    tree: Tree | None = None,
) -> SpeculativeProgram:
    """`program` (a decoder of 2 layers) after the pass `name` of the pipeline for `method`."""
    program = program or decoder()
    shape = replace(SHAPE, tree=tree)
    pipeline = {
        "ngram": lambda: pipelines.host("ngram", SHAPE, {}),
        "layerskip": lambda: pipelines.layerskip(SHAPE, (0,)),
        "draft_model": lambda: pipelines.draft_model(SHAPE, drafter()),
        "eagle:adaptive": lambda: pipelines.eagle_adaptive(SHAPE, 2, adapters(1)),
        "eagle3": lambda: pipelines.trained(shape, Kind.EAGLE3, checkpoint(Kind.EAGLE3)),
        "peagle": lambda: pipelines.trained(shape, Kind.PEAGLE, checkpoint(Kind.PEAGLE)),
        "dspark": lambda: pipelines.trained(shape, Kind.DSPARK, checkpoint(Kind.DSPARK)),
        "medusa": lambda: pipelines.trained(shape, Kind.MEDUSA, checkpoint(Kind.MEDUSA)),
    }[method]()
    return pipeline.until(name)(program)


def checkpoint(kind: Kind, vocab: int = VOCAB) -> DrafterCheckpoint:
    """A trained drafter for `decoder()`: one layer of EAGLE-3, or with masks of P-EAGLE, a DSpark, or two Medusa heads.

    Blocks have three rows.
    """
    draw = torch.Generator().manual_seed(3)
    shapes = {
        "lm_head": (vocab, HIDDEN),
        "embed_tokens": (VOCAB, HIDDEN),
        "fc": (HIDDEN, 2 * HIDDEN),
        "norm": (HIDDEN,),
    }
    layer = "layers.0."
    block, masked = kind is Kind.DSPARK, kind in (Kind.DSPARK, Kind.PEAGLE)
    width = HIDDEN if block else 2 * HIDDEN
    shapes |= {layer + f"self_attn.{n}_proj": (HIDDEN, width) for n in "qkv"}
    shapes |= {"hidden_norm": (HIDDEN,), **{f"markov_head.markov_w{i}": (VOCAB, 2) for i in (1, 2)}}
    shapes |= {
        layer + n: (HIDDEN, HIDDEN)
        for n in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    }
    shapes |= {
        layer + n: (HIDDEN,) for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    }
    shapes |= {f"heads.{i}.{n}": (HIDDEN, HIDDEN) for i in (0, 1) for n in ("blocks.0",)}
    shapes |= {f"heads.{i}.lm_head": (VOCAB, HIDDEN) for i in (0, 1)}
    tensors = {f"{n}.weight": torch.randn(s, generator=draw) for n, s in shapes.items()}
    tensors["mask_hidden"] = torch.randn(2 * HIDDEN, generator=draw)
    tensors["rope.inv_freq"] = torch.tensor([1.0, 0.1])
    tensors["d2t"] = torch.arange(vocab) + (VOCAB - vocab)
    spec = DrafterSpec(
        kind, "toy", HIDDEN, HIDDEN, 2, VOCAB, vocab, (2,) if kind is Kind.MEDUSA else (0, 1),
        Fuse(fc=kind is not Kind.MEDUSA, post_norm=block),
        (Layer(Attention(1, 1, HIDDEN, width, causal=not block), Mlp(4, "silu"), hidden_norm=not block),),
        Rope(10.0, "default", HIDDEN), recycle=Recycle.NONE if masked and not block else Recycle.PRE_NORM,
        block=Block(3, anchor_first=True, mask_token_id=5) if masked else None,
        markov=Markov("vanilla", 2) if block else None,
        medusa=Medusa(2, 1) if kind is Kind.MEDUSA else None,
    )  # fmt: skip
    return DrafterCheckpoint(spec, WeightStore({n: Weight.of(t) for n, t in tensors.items()}))


def drafter(seed: int = 0, layers: int = 1, vocab: int = VOCAB) -> SpeculativeProgram:
    return pipelines.drafter_model(SHAPE)(decoder(layers, seed, vocab=vocab))


def text(program: SpeculativeProgram, *functions: str) -> str:
    """The named functions, or all."""
    names = functions or program.functions
    return "\n".join("\n".join(function_lines(program.functions[n])) for n in names) + "\n"


def poisoned_state(program: SpeculativeProgram) -> State:
    """State as it may be found: NaN in every row that nobody wrote."""
    state = fresh_state(program, POSITIONS)
    for buffer in state.values():
        buffer.fill_(torch.nan)
    return state


def logits(
    program: SpeculativeProgram, chunks: Sequence[int] = (len(TOKENS),), function: str = "target"
) -> Tensor:
    """The logits of TOKENS, `chunks` rows at a time, on state that is NaN where not written."""
    state, rows, begin = poisoned_state(program), [], 0
    for count in chunks:
        at = torch.arange(begin, begin + count)
        rows += evaluate(program, function, text_inputs(program, function, TOKENS[at], at), state)
        begin += count
    return torch.cat(rows)


def assert_same_target(before: SpeculativeProgram, after_: SpeculativeProgram) -> None:
    """Both targets give the same logits, `after_` in one go and, where it has state, in chunks."""
    want = logits(before)
    torch.testing.assert_close(logits(after_), want)
    if after_.state:
        torch.testing.assert_close(logits(after_, (3, 1, 2, 1)), want)


def assert_twice_is_once(pass_: Pass, program: SpeculativeProgram) -> None:
    """A second run changes nothing and says so; the first leaves `program` as it was."""
    before = str(program)
    once = pass_(program)
    assert once.modified
    assert str(program) == before
    assert str(once.program) != before or once.program.contract != program.contract
    twice = pass_(once.program)
    assert not twice.modified
    assert twice.program is once.program or str(twice.program) == str(once.program)


def refusal(pass_: Pass, program: SpeculativeProgram) -> str:
    """Code and text of the refusal."""
    with pytest.raises(PassError) as refused:
        pass_(program)
    assert refused.value.cure
    return f"{refused.value.code} {refused.value.what}"


def empty() -> SpeculativeProgram:
    return SpeculativeProgram("empty", ModelInfo("toy", VOCAB, HIDDEN, 0, POSITIONS))


def wider_vocabulary(program: SpeculativeProgram) -> SpeculativeProgram:
    return replace(program, model=replace(program.model, vocab_size=VOCAB + 1))
