# ruff: noqa: E501 (programs as they print)
from dataclasses import replace

import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir import SpeculativeProgram
from specc.ir.dialect import ops
from specc.ir.evaluate import evaluate, fresh_state
from specc.ir.graphs import copy_graph
from specc.passes import Pass
from specc.passes.delta_caches import DeltaCaches
from specc.passes.fix_rows import FixRows
from specc.passes.merge_leaves import MergeLeaves
from tests.passes import toy
from tests.passes.driver import generate

PROMPT = [3, 1, 4, 1, 5, 0, 2]


def fixed(program: SpeculativeProgram | None = None, method: str = "ngram") -> SpeculativeProgram:
    program = toy.after("fuse-round", program, method)
    for pass_ in (MergeLeaves(), FixRows()):
        program = pass_(program).program
    return program


def test_caches_are_read_and_new_rows_returned() -> None:
    program = fixed(toy.decoder(layers=1))
    toy.assert_twice_is_once(DeltaCaches(), program)
    rewritten = DeltaCaches()(program).program
    assert toy.refusal(DeltaCaches(in_place=True), rewritten).startswith("SPECC-E0334")
    assert_expected_inline(
        toy.text(program, "verify_2"),
        """\
fn verify_2(%tokens: i64[3], %positions: i64[3], %rows: i64[3]) {verify}:
  %0 = call verify_2.graph {graph}(%tokens, %positions, %rows, @table.0, @wte, $target.k.0, $target.v.0, @w0, @head) : (f32[3, 6])
  %1 = %0[0] : f32[3, 6]
  return logits=%1
""",
    )
    assert_expected_inline(
        toy.text(rewritten, "verify_2", "verify_2.graph"),
        """\
fn verify_2(%tokens: i64[3], %positions: i64[3], %rows: i64[3]) {verify}:
  %0 = specc.masks(%positions, %rows, None, None, 0, 16) : (f32[3, 16], f32[3, 3])
  %1 = %0[0] : f32[3, 16]
  %2 = %0[1] : f32[3, 3]
  %3 = call verify_2.graph {graph}(%tokens, %positions, @table.0, @wte, $target.k.0, $target.v.0, @w0, @head, %1, %2) : (f32[3, 6], f32[3, 1, 4], f32[3, 1, 4])
  %4 = %3[0] : f32[3, 6]
  %5 = %3[1] : f32[3, 1, 4]
  %6 = %3[2] : f32[3, 1, 4]
  specc.cache_write($target.k.0, %5, %rows)
  specc.cache_write($target.v.0, %6, %rows)
  return logits=%4
fn verify_2.graph(%tokens: i64[3], %positions: i64[3], %constant_3: f32[16, 4], %constant_4: f32[6, 4], %constant_5: f32[1, 16, 4], %constant_6: f32[1, 16, 4], %constant_7: f32[4, 4], %constant_8: f32[6, 4], %mask_old_0: f32[3, 16], %mask_new_0: f32[3, 3]) {leaf}:
  %0 = aten.index_select(%constant_3, 0, %positions) : f32[3, 4]
  %1 = aten.unsqueeze(%tokens, 0) : i64[1, 3]
  %2 = aten.embedding(%constant_4, %1) : f32[1, 3, 4]
  %3 = aten.add.Tensor(%2, %0) : f32[1, 3, 4]
  %4 = aten.select.int(%3, 0, 0) : f32[3, 4]
  %5 = aten.unsqueeze(%4, 0) : f32[1, 3, 4]
  %6 = aten.linear(%5, %constant_7) : f32[1, 3, 4]
  %7 = aten.unsqueeze(%6, 1) : f32[1, 1, 3, 4]
  %8 = aten.select.int(%7, 0, 0) : f32[1, 3, 4]
  %9 = aten.transpose.int(%8, 0, 1) : f32[3, 1, 4]
  %10 = aten.select.int(%7, 0, 0) : f32[1, 3, 4]
  %11 = aten.transpose.int(%10, 0, 1) : f32[3, 1, 4]
  %12 = aten.select.int(%7, 0, 0) : f32[1, 3, 4]
  %13 = aten.transpose.int(%12, 0, 1) : f32[3, 1, 4]
  %14 = aten.mul.Tensor(%13, 0.5) : f32[3, 1, 4]
  %15 = aten.reshape(%14, [3, 1, 1, 4]) : f32[3, 1, 1, 4]
  %16 = aten.permute(%15, [1, 2, 0, 3]) : f32[1, 1, 3, 4]
  %17 = aten.reshape(%16, [1, 3, 4]) : f32[1, 3, 4]
  %18 = aten.permute(%constant_5, [0, 2, 1]) : f32[1, 4, 16]
  %19 = aten.bmm(%17, %18) : f32[1, 3, 16]
  %20 = aten.reshape(%19, [1, 1, 3, 16]) : f32[1, 1, 3, 16]
  %21 = aten.add.Tensor(%20, %mask_old_0) : f32[1, 1, 3, 16]
  %22 = aten.permute(%9, [1, 2, 0]) : f32[1, 4, 3]
  %23 = aten.bmm(%17, %22) : f32[1, 3, 3]
  %24 = aten.reshape(%23, [1, 1, 3, 3]) : f32[1, 1, 3, 3]
  %25 = aten.add.Tensor(%24, %mask_new_0) : f32[1, 1, 3, 3]
  %26 = aten.cat([%21, %25], -1) : f32[1, 1, 3, 19]
  %27 = aten._softmax(%26, -1, False) : f32[1, 1, 3, 19]
  %28 = aten.slice.Tensor(%27, -1, 0, 16) : f32[1, 1, 3, 16]
  %29 = aten.reshape(%28, [1, 3, 16]) : f32[1, 3, 16]
  %30 = aten.bmm(%29, %constant_6) : f32[1, 3, 4]
  %31 = aten.slice.Tensor(%27, -1, 16, 19) : f32[1, 1, 3, 3]
  %32 = aten.reshape(%31, [1, 3, 3]) : f32[1, 3, 3]
  %33 = aten.permute(%11, [1, 0, 2]) : f32[1, 3, 4]
  %34 = aten.bmm(%32, %33) : f32[1, 3, 4]
  %35 = aten.add.Tensor(%30, %34) : f32[1, 3, 4]
  %36 = aten.reshape(%35, [1, 1, 3, 4]) : f32[1, 1, 3, 4]
  %37 = aten.permute(%36, [2, 0, 1, 3]) : f32[3, 1, 1, 4]
  %38 = aten.reshape(%37, [3, 1, 4]) : f32[3, 1, 4]
  %39 = aten.unsqueeze(%38, 0) : f32[1, 3, 1, 4]
  %40 = aten.select.int(%39, 2, 0) : f32[1, 3, 4]
  %41 = aten.add.Tensor(%5, %40) : f32[1, 3, 4]
  %42 = aten.select.int(%41, 0, 0) : f32[3, 4]
  %43 = aten.unsqueeze(%42, 0) : f32[1, 3, 4]
  %44 = aten.linear(%43, %constant_8) : f32[1, 3, 6]
  %45 = aten.select.int(%44, 0, 0) : f32[3, 6]
  return logits=%45, new_0=%9, new_1=%11
""",
    )
    assert "%mask" not in toy.text(rewritten, "prefill.graph"), (
        "the last attention of a prefill is not needed"
    )


@pytest.mark.parametrize("method", ["ngram", "layerskip", "draft_model", "eagle3"])
@pytest.mark.parametrize("first_row", [0, 5])
def test_rounds_say_the_same(method: str, first_row: int) -> None:
    """Where nothing was written there is anything but NaN: a mask hides what is finite."""
    program = fixed(method=method)
    delta = DeltaCaches()(program).program
    options = {"count": 3, "ks": [2, 0], "first_row": first_row, "chunk": 3}
    want = generate(program, PROMPT[:5], **options)
    assert generate(delta, PROMPT[:5], poison=1e3, **options) == want


@pytest.mark.parametrize("windows", [(2, 0), (1, 3), (16, 0)])
def test_windows_have_masks_of_their_own(windows: tuple[int, int]) -> None:
    program = fixed(toy.decoder(windows=windows))
    delta = DeltaCaches()(program).program
    masks = [n for n in delta.functions["verify_2.graph"].inputs if "mask_old" in n.name]
    assert len(masks) == len({w % 16 for w in windows}), "a window of the whole cache is none"
    logits = []
    for p in (program, delta):
        state = fresh_state(p)
        for begin in (0, 3):
            at = torch.arange(begin, begin + 3)
            (found,) = evaluate(p, "verify_2", [torch.tensor(PROMPT)[at], at, at], state)
        logits.append(found)
    torch.testing.assert_close(logits[1], logits[0])


@pytest.mark.parametrize(("pass_", "text"), [
    (MergeLeaves(), "SPECC-E0330 delta-caches: prefill has T rows"),
    (None, "SPECC-E0330 delta-caches: there are no graphs"),
])  # fmt: skip
def test_refuses(pass_: Pass | None, text: str) -> None:
    program = toy.after("fuse-round")
    program = pass_(program).program if pass_ is not None else program
    assert toy.refusal(DeltaCaches(), program) == text


def test_refuses_a_cache_that_is_written_twice() -> None:
    program = fixed(toy.decoder(layers=1))
    leaf = program.functions["verify_2.graph"]
    graph, _ = copy_graph(leaf.graph)
    write = next(n for n in graph.nodes if n.target is ops.cache_write.default)
    with graph.inserting_after(write):
        graph.call_function(ops.cache_write.default, write.args)
    twice = program.replacing(replace(leaf, graph=graph))
    assert toy.refusal(DeltaCaches(), twice) == (
        "SPECC-E0372 delta-caches: verify_2: a cache is written twice, or at rows that the graph computes"
    )
