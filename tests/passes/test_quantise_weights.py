from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from expecttest import assert_expected_inline
from torch import Tensor, fx

from specc.ir import Encoding, Owner, SpeculativeProgram, Weight
from specc.ir.dialect import ops
from specc.ir.graphs import Builder
from specc.ir.weights import Stored
from specc.passes import pipelines
from specc.passes.quantise_weights import QuantiseWeights, left
from tests.passes import toy

aten = torch.ops.aten
WIDTH = 64


def decoder(odd: bool = False) -> SpeculativeProgram:
    """Two layers of width 64: a product, an attention, and (`odd`) a product of 6 numbers, which no block fits."""
    draw = torch.Generator().manual_seed(0)
    shapes = {
        "wte": (6, WIDTH),
        "wpe": (16, WIDTH),
        "head": (6, WIDTH),
        "w0": (64, 64),
        "w1": (64, 64),
    }
    shapes |= {"narrow": (6, WIDTH), "wide": (WIDTH, 6)} if odd else {}
    weights: Mapping[str, Tensor] = {
        name: torch.randn(shape, generator=draw) / 8 for name, shape in shapes.items()
    }

    def body(builder: Builder, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        def linear(x: fx.Node, name: str) -> fx.Node:
            return builder.op(aten.linear.default, x, toy.weight(builder, name, weights[name]))

        one = builder.op(aten.unsqueeze.default, tokens, 0)
        x = builder.op(aten.embedding.default, toy.weight(builder, "wte", weights["wte"]), one)
        at = builder.op(
            aten.embedding.default, toy.weight(builder, "wpe", weights["wpe"]), positions
        )
        x = builder.op(aten.add.Tensor, x, at)
        for j in range(2):
            y = builder.op(aten.unsqueeze.default, linear(x, f"w{j}"), 1)
            y = builder.op(ops.attention.default, y, y, y, None, 0.5, 0, 0.0, j)
            x = builder.op(aten.add.Tensor, x, builder.op(aten.select.int, y, 2, 0))
        if odd:
            x = builder.op(aten.add.Tensor, x, linear(linear(x, "narrow"), "wide"))
        return builder.op(aten.select.int, linear(x, "head"), 0, 0)

    return toy.build(body, weights, 2)


def stored(program: SpeculativeProgram, **kinds: str) -> SpeculativeProgram:
    """`program` as if its file had the named matrices in blocks; any values do, such as all ones."""

    def of(weight: Weight, kind: str) -> Weight:
        rows, columns = weight.type.at()
        encoding = {"Q8_0": "q8g32", "Q4_0": "q4g32", "Q4_1": "q4mg32"}.get(kind)
        q = torch.ones(rows, columns, dtype=torch.int8 if kind == "Q8_0" else torch.uint8)
        d = torch.full((rows, columns // 32), 0.5, dtype=torch.float16)
        m = d if kind == "Q4_1" else None
        found = Stored(kind, Encoding.parse(encoding) if encoding else None, lambda: (q, d, m))
        return replace(weight, stored=found)

    changed = {name: of(program.weights[name], kind) for name, kind in kinds.items()}
    return replace(program, weights=program.weights.replaced(changed))


def ready(program: SpeculativeProgram) -> SpeculativeProgram:
    """The program at the end of phase 2."""
    return toy.after("declare-drafter", program)


def rounded(program: SpeculativeProgram, encodings: Mapping[str, str]) -> SpeculativeProgram:
    """In floating point, with the values that the encodings have."""

    def value(name: str, weight: Weight) -> Tensor:
        encoding, (n, k) = Encoding.parse(encodings[name]), weight.type.at()
        return encoding.decode(encoding.encode(weight.load()), n, k)

    weights = {n: Weight.of(value(n, w)) for n, w in program.weights.items() if n in encodings}
    return replace(program, weights=program.weights.replaced(weights))


def test_matrices_and_embeddings_of_tokens() -> None:
    program = ready(decoder())
    pass_ = QuantiseWeights("q4mg64", "q8g32")
    toy.assert_twice_is_once(pass_, program)
    rewritten = pass_(program).program
    assert_expected_inline(
        toy.text(program, "embed", "head", "prefill"),
        """\
fn embed(%positions: i64[T], %tokens: i64[T], %weight_2: f32[16, 64], %weight_3: f32[6, 64]) {leaf}:
  %0 = aten.index_select(%weight_2, 0, %positions) : f32[T, 64]
  %1 = aten.unsqueeze(%tokens, 0) : i64[1, T]
  %2 = aten.embedding(%weight_3, %1) : f32[1, T, 64]
  %3 = aten.add.Tensor(%2, %0) : f32[1, T, 64]
  %4 = aten.select.int(%3, 0, 0) : f32[T, 64]
  return x=%4
fn head(%x: f32[T, 64], %weight_1: f32[6, 64]) {leaf}:
  %0 = aten.unsqueeze(%x, 0) : f32[1, T, 64]
  %1 = aten.linear(%0, %weight_1) : f32[1, T, 6]
  %2 = aten.select.int(%1, 0, 0) : f32[T, 6]
  return logits=%2
fn prefill(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {prefill}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[T, 64])
  %1 = %0[0] : f32[T, 64]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[T, 64])
  %3 = %2[0] : f32[T, 64]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1) : (f32[T, 64])
  %5 = %4[0] : f32[T, 64]
  return
""",
    )
    assert_expected_inline(
        toy.text(rewritten, "embed", "head", "prefill"),
        """\
fn embed(%positions: i64[T], %tokens: i64[T], %weight_2: f32[16, 64], %weight_3: u8[1, 1088]) {leaf}:
  %0 = aten.index_select(%weight_2, 0, %positions) : f32[T, 64]
  %1 = aten.unsqueeze(%tokens, 0) : i64[1, T]
  %2 = aten.reshape(%1, [-1]) : i64[T]
  %3 = specc.embedding(%2, %weight_3, 6, 64, q8g32) : f32[T, 64]
  %4 = aten.reshape(%3, [1, -1, 64]) : f32[1, T, 64]
  %5 = aten.add.Tensor(%4, %0) : f32[1, T, 64]
  %6 = aten.select.int(%5, 0, 0) : f32[T, 64]
  return x=%6
fn head(%x: f32[T, 64], %weight_1: u8[1, 1088]) {leaf}:
  %0 = aten.unsqueeze(%x, 0) : f32[1, T, 64]
  %1 = specc.linear(%0, %weight_1, None, 6, q8g32) : f32[1, T, 6]
  %2 = aten.select.int(%1, 0, 0) : f32[T, 6]
  return logits=%2
fn prefill(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {prefill}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte#q8g32) : (f32[T, 64])
  %1 = %0[0] : f32[T, 64]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0#q4mg64) : (f32[T, 64])
  %3 = %2[0] : f32[T, 64]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1#q4mg64) : (f32[T, 64])
  %5 = %4[0] : f32[T, 64]
  return
""",
    )
    want = {"w0": "q4mg64", "w1": "q4mg64", "wte": "q8g32", "head": "q8g32"}
    packed = {n: w.packing for n, w in rewritten.weights.items() if w.packing is not None}
    assert {n.partition("#")[0]: str(p.encoding) for n, p in packed.items()} == want
    near = rounded(program, want)
    # Activations are rounded to 8 bits as well.
    torch.testing.assert_close(toy.logits(rewritten), toy.logits(near), atol=0.02, rtol=0.02)
    assert (toy.logits(rewritten) - toy.logits(program)).abs().max() > 0.02


def test_bf16_is_the_model_with_rounded_weights() -> None:
    program = ready(decoder())
    rewritten = QuantiseWeights("bf16", "bf16")(program).program
    near = rounded(program, dict.fromkeys(("w0", "w1", "wte", "head"), "bf16"))
    torch.testing.assert_close(toy.logits(rewritten), toy.logits(near))
    assert not torch.equal(toy.logits(rewritten), toy.logits(program))


def test_what_does_not_fit_stays() -> None:
    rewritten = QuantiseWeights("q4g64", "q4g64")(ready(decoder(odd=True))).program
    assert left(rewritten) == ["wide"]
    assert "narrow#q4g64" in rewritten.weights
    rewritten = QuantiseWeights("q4g128", "q4g128")(ready(decoder())).program
    assert left(rewritten) == ["w0", "w1", "head"]
    assert not QuantiseWeights("q4g128", "q4g128")(ready(decoder())).modified


@pytest.mark.parametrize("method", ["layerskip", "draft_model", "eagle:adaptive"])
def test_drafters_are_quantised_too(method: str) -> None:
    """Rounds of the whole pipeline say what plain decoding of the quantised target says."""
    from specc.passes.attach_adapter import Adapter
    from tests.passes.driver import generate

    shape = pipelines.Shape((0, 2), 16, 8, weights=QuantiseWeights("q4g32", "q8g32"))
    draw = torch.Generator().manual_seed(3)
    square = [torch.randn(WIDTH, WIDTH, generator=draw) / 8 for _ in range(2)]
    pipeline = {
        "layerskip": lambda: pipelines.layerskip(shape, (1,)),
        "draft_model": lambda: pipelines.draft_model(
            shape, pipelines.drafter_model(shape)(decoder())
        ),
        "eagle:adaptive": lambda: pipelines.eagle_adaptive(
            shape, 2, {1: Adapter(square[0], square[1], torch.zeros(WIDTH))}
        ),
    }[method]()
    program = replace(decoder(), model=replace(decoder().model, hidden_size=WIDTH))
    done = pipeline(program)
    assert left(done) == []
    plain = generate(pipelines.host("ngram", shape, {})(program), [3, 1, 4], 8, [0])[0]
    depth = 1 if method == "eagle:adaptive" else 0
    tokens, rounds = generate(done, [3, 1, 4], 8, [2], depth=depth)
    assert tokens == plain
    assert rounds
    if method == "draft_model":  # the target itself, in the same numbers
        assert all(accepted == 2 for _, accepted in rounds)


def test_kept_as_stored() -> None:
    """A leaf called with blocks of two types becomes two leaves; values are the blocks' own."""
    kinds = {"wte": "Q8_0", "w0": "Q4_0", "w1": "Q4_1", "head": "Q8_0"}
    program = ready(stored(decoder(), **kinds))
    rewritten = QuantiseWeights("keep", "keep")(program).program
    assert_expected_inline(
        toy.text(rewritten, "prefill"),
        """\
fn prefill(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {prefill}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte#q8g32) : (f32[T, 64])
  %1 = %0[0] : f32[T, 64]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0#q4g32) : (f32[T, 64])
  %3 = %2[0] : f32[T, 64]
  %4 = call layer.0.1 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1#q4mg32) : (f32[T, 64])
  %5 = %4[0] : f32[T, 64]
  return
""",
    )
    encoding = Encoding.parse("q4mg32")
    value = encoding.decode(rewritten.weights["w1#q4mg32"].load(), WIDTH, WIDTH)
    assert torch.equal(value, torch.full((WIDTH, WIDTH), 1.0))  # 0.5 * 1 + 0.5
    assert not QuantiseWeights("keep", "keep")(rewritten).modified


def test_what_the_file_has_in_floating_point_stays() -> None:
    program = ready(stored(decoder(), w0="Q4_0", w1="Q4_0"))
    rewritten = QuantiseWeights("keep", "keep")(program).program
    assert left(rewritten) == ["head"]
    assert {"w0#q4g32", "w1#q4g32", "wte", "head"} < set(rewritten.weights)


def test_blocks_that_cannot_be_kept_are_refused_by_name() -> None:
    program = ready(stored(decoder(), w0="Q4_0", w1="Q6_K"))
    assert toy.refusal(QuantiseWeights("keep", "keep"), program) == (
        "SPECC-E0361 quantise-weights: blocks of Q6_K cannot be used as they are"
    )
    assert toy.refusal(QuantiseWeights("keep", "keep"), ready(decoder())).startswith("SPECC-E0360")


def test_the_same_contents_are_stored_once() -> None:
    """A head that is the embedding, under another name."""
    program = decoder()
    tied = replace(program, weights=program.weights.replaced({"head": program.weights["wte"]}))
    names = QuantiseWeights()(ready(tied)).program.weights.canonical_names()
    assert names["wte#q8g32"] == names["head#q8g32"]


def test_refuses() -> None:
    assert toy.refusal(QuantiseWeights(), toy.empty()) == (
        "SPECC-E0330 quantise-weights: there are no leaves"
    )
    done = QuantiseWeights("q8", "q8g32")(ready(decoder())).program
    for other in (QuantiseWeights("q8g32", "q8g32"), QuantiseWeights("q8", "q8")):
        assert toy.refusal(other, done).startswith("SPECC-E0334")


def test_a_drafter_in_fewer_bits_than_its_target() -> None:
    """What is the target's stays, or has a form of its own; the text is the target's."""
    from tests.passes.driver import generate

    drafters = QuantiseWeights("q4g32", "q8g32", owner=Owner.DRAFTER)
    targets = QuantiseWeights("bf16", "bf16", owner=Owner.TARGET)
    head = {"draft.head": "q8g32", "draft.w0": "q4g32", "draft.w1": "q4g32"}
    ends = {"wte": "bf16", "head": "bf16", "w0": "bf16", "w1": "bf16"}
    # The drafter is the target itself, so its embedding is the target's: no second one is kept.
    for weights, want in ((None, head), (targets, head | ends | {"draft.wte": "bf16"})):
        shape = pipelines.Shape((0, 2), 16, 8, weights=weights, drafter_weights=drafters)
        pipeline = pipelines.draft_model(shape, pipelines.drafter_model(shape)(decoder()))
        done = pipeline(decoder())
        packed = {n: w.packing for n, w in done.weights.items() if w.packing is not None}
        assert {n.partition("#")[0]: str(p.encoding) for n, p in packed.items()} == want
        assert left(done, Owner.DRAFTER) == []
        assert left(done, Owner.TARGET) == ([] if weights else ["w0", "w1", "head"])
        # Rounded caches would be another text.
        assert {b.type.dtype for b in done.state.values()} == {"f32"}
        plain = generate(
            pipelines.host("none", replace(shape, drafter_weights=None), {})(decoder()), [3, 1, 4], 8, [0]
        )[0]  # fmt: skip
        tokens, rounds = generate(done, [3, 1, 4], 8, [2])
        assert tokens == plain
        assert sum(accepted for _, accepted in rounds) > 0
