# ruff: noqa: E501 (programs as they print)
import pytest
from expecttest import assert_expected_inline

from specc.ir import SpeculativeProgram
from specc.passes.delta_caches import DeltaCaches
from specc.passes.fix_rows import FixRows
from specc.passes.merge_leaves import MergeLeaves
from specc.passes.pack_caches import PackCaches
from tests.passes import toy
from tests.passes.driver import generate


def delta(program: SpeculativeProgram | None = None, method: str = "ngram") -> SpeculativeProgram:
    program = toy.after("fuse-round", program, method)
    for pass_ in (MergeLeaves(), FixRows(), DeltaCaches()):
        program = pass_(program).program
    return program


def test_a_commit_is_one_copy() -> None:
    program = delta(toy.decoder(layers=1))
    toy.assert_twice_is_once(PackCaches(), program)
    rewritten = PackCaches()(program).program
    assert_expected_inline(
        toy.text(program, "verify_2"),
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
""",
    )
    assert_expected_inline(
        toy.text(rewritten, "verify_2"),
        """\
fn verify_2(%tokens: i64[3], %positions: i64[3], %rows: i64[3]) {verify}:
  %0 = specc.masks(%positions, %rows, None, None, 0, 16) : (f32[3, 16], f32[3, 3])
  %1 = %0[0] : f32[3, 16]
  %2 = %0[1] : f32[3, 3]
  %3 = call verify_2.graph {graph}(%tokens, %positions, @table.0, @wte, $target.rows, @w0, @head, %1, %2) : (f32[3, 6], f32[3, 1, 8])
  %4 = %3[0] : f32[3, 6]
  %5 = %3[1] : f32[3, 1, 8]
  specc.cache_write($target.rows, %5, %rows)
  return logits=%4
""",
    )
    inside = toy.text(rewritten, "verify_2.graph").splitlines()
    assert_expected_inline(
        "\n".join([*inside[1:4], inside[-2]]),
        """\
  %0 = aten.slice.Tensor(%target_rows, 2, 4, 8) : f32[1, 16, 4]
  %1 = aten.reshape(%0, [16, 1, 4]) : f32[16, 1, 4]
  %2 = aten.permute(%1, [1, 0, 2]) : f32[1, 16, 4]
  %54 = aten.cat([%52, %53], 2) : f32[3, 1, 8]""",
    )


@pytest.mark.parametrize(("method", "packed"), [
    ("ngram", {"target.rows": 16}),
    # Drafting writes the one layer that it runs.
    ("layerskip", {"target.rows": 8, "target.1.rows": 8}),
    # Prefill fills both models' caches, but rounds write one without the other.
    ("draft_model", {"target.rows": 16, "drafter.rows": 8}),
    # What the target leaves for the drafter is written where its keys are.
    ("eagle3", {"target.rows": 20, "drafter.rows": 8}),
])  # fmt: skip
def test_buffers_that_are_written_together_are_one(method: str, packed: dict[str, int]) -> None:
    program = delta(method=method)
    rewritten = PackCaches()(program).program
    assert {n: b.type.shape[2] for n, b in rewritten.state.items()} == packed
    options = {"count": 4, "ks": [2, 0], "poison": 1e3, "chunk": 3}
    prompt = [3, 1, 4, 1, 5]
    assert generate(rewritten, prompt, **options) == generate(program, prompt, **options)


def test_refuses() -> None:
    program = MergeLeaves()(toy.after("fuse-round")).program
    assert toy.refusal(PackCaches(), program) == ("SPECC-E0330 pack-caches: graphs write caches")
