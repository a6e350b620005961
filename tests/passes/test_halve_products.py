# ruff: noqa: E501 (programs as they print)
import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir.evaluate import evaluate, fresh_state
from specc.ir.importers.huggingface import import_model
from specc.passes import pipelines
from specc.passes.delta_caches import DeltaCaches
from specc.passes.fix_rows import FixRows
from specc.passes.halve_products import HalveProducts
from specc.passes.merge_leaves import MergeLeaves
from specc.passes.pack_caches import PackCaches
from tests.ir.importers.tiny_models import eager_logits, tiny
from tests.passes import toy

SHAPE = pipelines.Shape((0, 2), 32, 8, kv_cache_dtype="f16")
TOKENS = torch.tensor([5, 6, 7])


def test_products_are_half_and_results_are_not() -> None:
    program = FixRows()(
        MergeLeaves()(toy.after("fuse-round", toy.decoder(layers=1))).program
    ).program
    toy.assert_twice_is_once(HalveProducts(), program)
    rewritten = HalveProducts()(program).program
    assert_expected_inline(
        toy.text(rewritten, "verify_0", "verify_0.graph"),
        """\
fn verify_0(%tokens: i64[1], %positions: i64[1], %rows: i64[1]) {verify}:
  %0 = call verify_0.graph {graph}(%tokens, %positions, %rows, @table.0, @wte:f16, $target.k.0, $target.v.0, @w0:f16, @head:f16) : (f32[1, 6])
  %1 = %0[0] : f32[1, 6]
  return logits=%1
fn verify_0.graph(%tokens: i64[1], %positions: i64[1], %rows: i64[1], %constant_3: f32[16, 4], %constant_4: f16[6, 4], %constant_5: f32[1, 16, 4], %constant_6: f32[1, 16, 4], %constant_7: f16[4, 4], %constant_8: f16[6, 4]) {leaf}:
  %0 = aten.index_select(%constant_3, 0, %positions) : f32[1, 4]
  %1 = aten.unsqueeze(%tokens, 0) : i64[1, 1]
  %2 = aten.embedding(%constant_4, %1) : f16[1, 1, 4]
  %3 = aten.add.Tensor(%2, %0) : f32[1, 1, 4]
  %4 = aten.select.int(%3, 0, 0) : f32[1, 4]
  %5 = aten.unsqueeze(%4, 0) : f32[1, 1, 4]
  %6 = aten._to_copy(%5, dtype=float16) : f16[1, 1, 4]
  %7 = aten.linear(%6, %constant_7) : f16[1, 1, 4]
  %8 = aten.unsqueeze(%7, 1) : f16[1, 1, 1, 4]
  %9 = aten.select.int(%8, 0, 0) : f16[1, 1, 4]
  %10 = aten.transpose.int(%9, 0, 1) : f16[1, 1, 4]
  specc.cache_write(%constant_5, %10, %rows)
  %11 = aten.select.int(%8, 0, 0) : f16[1, 1, 4]
  %12 = aten.transpose.int(%11, 0, 1) : f16[1, 1, 4]
  specc.cache_write(%constant_6, %12, %rows)
  %13 = aten.select.int(%8, 0, 0) : f16[1, 1, 4]
  %14 = aten.transpose.int(%13, 0, 1) : f16[1, 1, 4]
  %15 = specc.cached_attention(%14, %constant_5, %constant_6, %positions, %rows, None, 0.5, 0, 0.0, None) : f16[1, 1, 4]
  %16 = aten.unsqueeze(%15, 0) : f16[1, 1, 1, 4]
  %17 = aten.select.int(%16, 2, 0) : f16[1, 1, 4]
  %18 = aten.add.Tensor(%5, %17) : f32[1, 1, 4]
  %19 = aten.select.int(%18, 0, 0) : f32[1, 4]
  %20 = aten.unsqueeze(%19, 0) : f32[1, 1, 4]
  %21 = aten._to_copy(%20, dtype=float16) : f16[1, 1, 4]
  %22 = aten.linear(%21, %constant_8) : f16[1, 1, 6]
  %23 = aten.select.int(%22, 0, 0) : f16[1, 6]
  %24 = aten._to_copy(%23, dtype=float32) : f32[1, 6]
  return logits=%24
""",
    )


def test_leaves_take_matrices_of_the_type_that_is_asked_for() -> None:
    program = toy.after("fuse-round", toy.decoder(layers=1))
    toy.assert_twice_is_once(HalveProducts("bf16"), program)
    assert_expected_inline(
        toy.text(program, "verify_2", "embed", "layer.0", "head"),
        """\
fn verify_2(%tokens: i64[3], %positions: i64[3], %rows: i64[3]) {verify}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[3, 4])
  %1 = %0[0] : f32[3, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0) : (f32[3, 4])
  %3 = %2[0] : f32[3, 4]
  %4 = call head {head}(%3, @head) : (f32[3, 6])
  %5 = %4[0] : f32[3, 6]
  return logits=%5
fn embed(%positions: i64[T], %tokens: i64[T], %weight_2: f32[16, 4], %weight_3: f32[6, 4]) {leaf}:
  %0 = aten.index_select(%weight_2, 0, %positions) : f32[T, 4]
  %1 = aten.unsqueeze(%tokens, 0) : i64[1, T]
  %2 = aten.embedding(%weight_3, %1) : f32[1, T, 4]
  %3 = aten.add.Tensor(%2, %0) : f32[1, T, 4]
  %4 = aten.select.int(%3, 0, 0) : f32[T, 4]
  return x=%4
fn layer.0(%x: f32[T, 4], %rows: i64[T], %positions: i64[T], %state_3: f32[1, 16, 4], %state_4: f32[1, 16, 4], %weight_5: f32[4, 4]) {leaf}:
  %0 = aten.unsqueeze(%x, 0) : f32[1, T, 4]
  %1 = aten.linear(%0, %weight_5) : f32[1, T, 4]
  %2 = aten.unsqueeze(%1, 1) : f32[1, 1, T, 4]
  %3 = aten.select.int(%2, 0, 0) : f32[1, T, 4]
  %4 = aten.transpose.int(%3, 0, 1) : f32[T, 1, 4]
  specc.cache_write(%state_3, %4, %rows)
  %5 = aten.select.int(%2, 0, 0) : f32[1, T, 4]
  %6 = aten.transpose.int(%5, 0, 1) : f32[T, 1, 4]
  specc.cache_write(%state_4, %6, %rows)
  %7 = aten.select.int(%2, 0, 0) : f32[1, T, 4]
  %8 = aten.transpose.int(%7, 0, 1) : f32[T, 1, 4]
  %9 = specc.cached_attention(%8, %state_3, %state_4, %positions, %rows, None, 0.5, 0, 0.0, None) : f32[T, 1, 4]
  %10 = aten.unsqueeze(%9, 0) : f32[1, T, 1, 4]
  %11 = aten.select.int(%10, 2, 0) : f32[1, T, 4]
  %12 = aten.add.Tensor(%0, %11) : f32[1, T, 4]
  %13 = aten.select.int(%12, 0, 0) : f32[T, 4]
  return x=%13
fn head(%x: f32[T, 4], %weight_1: f32[6, 4]) {leaf}:
  %0 = aten.unsqueeze(%x, 0) : f32[1, T, 4]
  %1 = aten.linear(%0, %weight_1) : f32[1, T, 6]
  %2 = aten.select.int(%1, 0, 0) : f32[T, 6]
  return logits=%2
""",
    )
    assert_expected_inline(
        toy.text(HalveProducts("bf16")(program).program, "verify_2", "embed", "layer.0", "head"),
        """\
fn verify_2(%tokens: i64[3], %positions: i64[3], %rows: i64[3]) {verify}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte:bf16) : (f32[3, 4])
  %1 = %0[0] : f32[3, 4]
  %2 = call layer.0 {layer 0}(%1, %rows, %positions, $target.k.0, $target.v.0, @w0:bf16) : (f32[3, 4])
  %3 = %2[0] : f32[3, 4]
  %4 = call head {head}(%3, @head:bf16) : (f32[3, 6])
  %5 = %4[0] : f32[3, 6]
  return logits=%5
fn embed(%positions: i64[T], %tokens: i64[T], %weight_2: f32[16, 4], %weight_3: bf16[6, 4]) {leaf}:
  %0 = aten.index_select(%weight_2, 0, %positions) : f32[T, 4]
  %1 = aten.unsqueeze(%tokens, 0) : i64[1, T]
  %2 = aten.embedding(%weight_3, %1) : bf16[1, T, 4]
  %3 = aten.add.Tensor(%2, %0) : f32[1, T, 4]
  %4 = aten.select.int(%3, 0, 0) : f32[T, 4]
  return x=%4
fn layer.0(%x: f32[T, 4], %rows: i64[T], %positions: i64[T], %state_3: f32[1, 16, 4], %state_4: f32[1, 16, 4], %weight_5: bf16[4, 4]) {leaf}:
  %0 = aten.unsqueeze(%x, 0) : f32[1, T, 4]
  %1 = aten._to_copy(%0, dtype=bfloat16) : bf16[1, T, 4]
  %2 = aten.linear(%1, %weight_5) : bf16[1, T, 4]
  %3 = aten.unsqueeze(%2, 1) : bf16[1, 1, T, 4]
  %4 = aten.select.int(%3, 0, 0) : bf16[1, T, 4]
  %5 = aten.transpose.int(%4, 0, 1) : bf16[T, 1, 4]
  specc.cache_write(%state_3, %5, %rows)
  %6 = aten.select.int(%3, 0, 0) : bf16[1, T, 4]
  %7 = aten.transpose.int(%6, 0, 1) : bf16[T, 1, 4]
  specc.cache_write(%state_4, %7, %rows)
  %8 = aten.select.int(%3, 0, 0) : bf16[1, T, 4]
  %9 = aten.transpose.int(%8, 0, 1) : bf16[T, 1, 4]
  %10 = specc.cached_attention(%9, %state_3, %state_4, %positions, %rows, None, 0.5, 0, 0.0, None) : bf16[T, 1, 4]
  %11 = aten.unsqueeze(%10, 0) : bf16[1, T, 1, 4]
  %12 = aten.select.int(%11, 2, 0) : bf16[1, T, 4]
  %13 = aten.add.Tensor(%0, %12) : f32[1, T, 4]
  %14 = aten.select.int(%13, 0, 0) : f32[T, 4]
  return x=%14
fn head(%x: f32[T, 4], %weight_1: bf16[6, 4]) {leaf}:
  %0 = aten.unsqueeze(%x, 0) : f32[1, T, 4]
  %1 = aten._to_copy(%0, dtype=bfloat16) : bf16[1, T, 4]
  %2 = aten.linear(%1, %weight_1) : bf16[1, T, 6]
  %3 = aten.select.int(%2, 0, 0) : bf16[T, 6]
  %4 = aten._to_copy(%3, dtype=float32) : f32[T, 6]
  return logits=%4
""",
    )


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2"])
def test_logits_are_near_transformers_own(kind: str) -> None:
    """Half precision has 11 bits: 2^-11 for each rounding, of which a small model has some ten in a row."""
    values = {"head_dim": 8, "query_pre_attn_scalar": 16} if kind == "gemma2" else {}
    model = tiny(
        kind,
        **(
            values
            if kind != "gpt2"
            else {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96}
        ),
    )
    program = pipelines.host("ngram", SHAPE, {})(import_model(model, kind))
    for pass_ in (MergeLeaves(), FixRows(), HalveProducts(), DeltaCaches(), PackCaches()):
        program = pass_(program).program
    at = torch.arange(3)
    (found,) = evaluate(program, "verify_2", [TOKENS, at, at], fresh_state(program))
    want = eager_logits(model, TOKENS)
    assert found.dtype == torch.float32
    assert (found - want).abs().max() < 10 * 2**-11 * want.abs().max()
    assert not torch.allclose(found, want, rtol=1e-6), "nothing was rounded"


def test_refuses() -> None:
    program = FixRows()(MergeLeaves()(toy.after("fuse-round")).program).program
    assert toy.refusal(HalveProducts(), DeltaCaches()(program).program) == (
        "SPECC-E0330 halve-products: attention is written out already"
    )
