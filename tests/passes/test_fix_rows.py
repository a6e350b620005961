import pytest
from expecttest import assert_expected_inline

from specc.passes.fix_rows import FixRows
from specc.passes.merge_leaves import MergeLeaves
from tests.passes import toy
from tests.passes.driver import generate

PROMPT = [3, 1, 4, 1, 5, 0, 2, 2, 4, 1]


def test_callers_repeat_the_last_row() -> None:
    program = MergeLeaves()(toy.after("fuse-round", toy.decoder(layers=1))).program
    toy.assert_twice_is_once(FixRows(), program)
    rewritten = FixRows()(program).program
    assert_expected_inline(
        toy.text(program, "prefill"),
        """\
fn prefill(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {prefill}:
  %0 = call prefill.graph {graph}(%tokens, %positions, %rows, @table.0, @wte, $target.k.0, $target.v.0, @w0, @head) : ()
  return
""",
    )
    assert_expected_inline(
        toy.text(rewritten, "prefill"),
        """\
fn prefill(%tokens: i64[T], %positions: i64[T], %rows: i64[T]) {prefill}:
  %0 = specc.pad_rows(%tokens, 8) : i64[8]
  %1 = specc.pad_rows(%positions, 8) : i64[8]
  %2 = specc.pad_rows(%rows, 8) : i64[8]
  %3 = call prefill.graph {graph}(%0, %1, %2, @table.0, @wte, $target.k.0, $target.v.0, @w0, @head) : ()
  return
""",
    )
    assert toy.text(rewritten, "verify_2") == toy.text(program, "verify_2")


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle3"])
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_rounds_say_the_same(method: str, chunk: int) -> None:
    """Prompts of 9 rows leave a chunk of each size to be filled up."""
    program = toy.after("fuse-round", method=method)
    fixed = FixRows()(MergeLeaves()(program).program).program
    options = {"count": 5, "ks": [2, 0, 2], "chunk": chunk}
    assert generate(fixed, PROMPT, **options) == generate(program, PROMPT, **options)


def test_a_round_extends_by_what_a_round_commits() -> None:
    """With K = 2 three tokens at most, while a chunk of the prompt has eight."""
    program = FixRows()(MergeLeaves()(toy.after("fuse-round", method="eagle3")).program).program
    rows = {
        name: program.functions[f"{name}.graph"].inputs[0].meta["type"].shape
        for name in ("prefill", "extend", "draft_first", "draft")
    }
    assert rows == {"prefill": (8,), "extend": (8,), "draft_first": (3,), "draft": (1,)}


def test_refuses() -> None:
    assert toy.refusal(FixRows(), toy.after("fuse-round")).startswith(
        "SPECC-E0330 fix-rows: there are no graphs"
    )
