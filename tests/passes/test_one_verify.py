import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir import SpeculativeProgram
from specc.ir.evaluate import evaluate, fresh_state
from specc.passes import Pass
from specc.passes.delta_caches import DeltaCaches
from specc.passes.fix_rows import FixRows
from specc.passes.merge_leaves import MergeLeaves
from specc.passes.one_verify import OneVerify
from specc.passes.pack_caches import PackCaches
from specc.passes.part_proposals import PartProposals
from tests.passes import toy
from tests.passes.driver import generate

PROMPT = [3, 1, 4, 1, 5, 0, 2]
GRAPHS: tuple[Pass, ...] = (
    OneVerify(), PartProposals(), MergeLeaves(), FixRows(), DeltaCaches(in_place=True), PackCaches(),
)  # fmt: skip


def graphs(program: SpeculativeProgram | None = None, method: str = "ngram") -> SpeculativeProgram:
    program = toy.after("fuse-round", program, method)
    for pass_ in GRAPHS:
        program = pass_(program).program
    return program


def test_what_decodes_is_what_verifies() -> None:
    program = toy.after("fuse-round", toy.decoder(layers=1))
    toy.assert_twice_is_once(OneVerify(), program)
    rewritten = OneVerify()(program).program
    assert toy.text(rewritten, "verify_2", "round_2") == toy.text(program, "verify_2", "round_2")
    assert_expected_inline(
        toy.text(rewritten, "verify_0", "round_0", "accept_0"),
        """\
fn verify_0(%tokens: i64[1], %positions: i64[1], %rows: i64[1]) {verify}:
  %0 = specc.pad_rows(%tokens, 3) : i64[3]
  %1 = specc.pad_rows(%positions, 3) : i64[3]
  %2 = specc.pad_rows(%rows, 3) : i64[3]
  %3 = call verify_2(%0, %1, %2) : (f32[3, 6])
  %4 = %3[0] : f32[3, 6]
  %5 = specc.first_rows(%4, 1) : f32[1, 6]
  return logits=%5
fn round_0(%root: i64[1], %length: i64[1], %first_row: i64[1], %temperature: f64[1], %seed: i64[1]) {round}:
  %0 = specc.rows(%length, %first_row) : i64[1]
  %1 = specc.pad_rows(%root, 3) : i64[3]
  %2 = specc.pad_rows(%length, 3) : i64[3]
  %3 = specc.pad_rows(%0, 3) : i64[3]
  %4 = call verify_2(%1, %2, %3) : (f32[3, 6])
  %5 = %4[0] : f32[3, 6]
  %6 = call accept_0(%root, %5, %length, %temperature, %seed) : (i64[1], i64[1])
  %7 = %6[0] : i64[1]
  %8 = %6[1] : i64[1]
  return tokens=%7, accepted=%8
fn accept_0(%tokens: i64[1], %logits: f32[3, 6], %length: i64[1], %temperature: f64[1], %seed: i64[1]) {accept}:
  %0 = specc.accept(%tokens, %logits, %length, %temperature, %seed, 6) : (i64[1], i64[1])
  %1 = %0[0] : i64[1]
  %2 = %0[1] : i64[1]
  return tokens=%1, accepted=%2
""",
    )


@pytest.mark.parametrize("method", ["ngram", "layerskip", "draft_model", "eagle3"])
@pytest.mark.parametrize("first_row", [0, 5])
def test_rounds_say_the_same(method: str, first_row: int) -> None:
    """Of the pass alone and of whole graphs, whose masks hide what is finite."""
    program = toy.after("fuse-round", method=method)
    options = {"count": 3, "ks": [2, 0], "first_row": first_row, "chunk": 3}
    want = generate(program, PROMPT[:5], **options)
    assert generate(OneVerify()(program).program, PROMPT[:5], **options) == want
    assert generate(graphs(method=method), PROMPT[:5], poison=1e3, **options) == want


@pytest.mark.parametrize("windows", [(0, 0), (2, 0)])
def test_a_row_has_the_same_logits_alone(windows: tuple[int, int]) -> None:
    """And whatever the rows after it are: what is computed is one sum, of rows in the order of the text."""
    program = graphs(toy.decoder(windows=windows))
    text = torch.tensor(PROMPT)
    whole, alone = (fresh_state(program) for _ in range(2))
    at = torch.arange(3)
    (want,) = evaluate(program, "verify_2", [text[at], at, at], whole)
    for t in range(3):
        here = torch.tensor([t])
        (found,) = evaluate(program, "verify_0", [text[here], here, here], alone)
        torch.testing.assert_close(found[0], want[t])
    (other,) = evaluate(
        program, "verify_2", [torch.tensor([3, 5, 5]), at, at], fresh_state(program)
    )
    assert torch.equal(other[0], want[0])
    assert not torch.equal(other[1], want[1])


def test_one_k_is_left_alone() -> None:
    from specc.passes import pipelines

    shape = pipelines.Shape((0,), 16, 8)
    program = pipelines.host("none", shape, {}).until("fuse-round")(toy.decoder())
    assert not OneVerify()(program).modified


def test_refuses() -> None:
    assert toy.refusal(OneVerify(), toy.after("build-accept")).startswith(
        "SPECC-E0330 one-verify: there are no rounds"
    )
