# ruff: noqa: E501 (programs as they print)
import torch
from expecttest import assert_expected_inline

from specc.ir.evaluate import evaluate
from specc.passes.attach_adapter import Adapter, AttachAdapter
from tests.passes import toy

SQUARE, ROW = torch.zeros(toy.HIDDEN, toy.HIDDEN), torch.zeros(toy.HIDDEN)


def test_a_draft_for_each_depth() -> None:
    program = toy.after("declare-drafter", method="eagle:adaptive")
    pass_ = AttachAdapter(toy.adapters(1))
    toy.assert_twice_is_once(pass_, program)
    rewritten = pass_(program).program
    toy.assert_same_target(program, rewritten)
    assert rewritten.contract.depths == (1,)
    assert_expected_inline(
        toy.text(rewritten, "adapter", "draft_d1"),
        """\
fn adapter(%embedding: f32[T, 4], %hidden: f32[T, 4], %weight_2: f32[4, 4], %weight_3: f32[4, 4], %weight_4: f32[4]) {leaf}:
  %0 = aten.linear(%embedding, %weight_2, %weight_4) : f32[T, 4]
  %1 = aten.linear(%hidden, %weight_3) : f32[T, 4]
  %2 = aten.add.Tensor(%0, %1) : f32[T, 4]
  return hidden=%2
fn draft_d1(%tokens: i64[1], %positions: i64[1], %rows: i64[1], %hidden: f32[1, 4]) {draft}:
  %0 = call embed {embed}(%positions, %tokens, @table.0, @wte) : (f32[1, 4])
  %1 = %0[0] : f32[1, 4]
  %2 = call adapter {adapter}(%1, %hidden, @adapter.1.embedding, @adapter.1.hidden, @adapter.1.bias) : (f32[1, 4])
  %3 = %2[0] : f32[1, 4]
  %4 = call layer.0 {layer 1}(%3, %rows, %positions, $target.k.1, $target.v.1, @w1) : (f32[1, 4])
  %5 = %4[0] : f32[1, 4]
  %6 = call head {head}(%5, @head) : (f32[1, 6])
  %7 = %6[0] : f32[1, 6]
  return logits=%7, hidden=%3
""",
    )


def test_a_draft_runs_the_last_layers_behind_the_adapter() -> None:
    program = AttachAdapter(toy.adapters(1))(
        toy.after("declare-drafter", method="eagle:adaptive")
    ).program
    adapter, hidden = toy.adapters(1)[1], torch.ones(1, toy.HIDDEN)
    load = {n: w.load() for n, w in program.weights.items()}
    state = toy.poisoned_state(program)
    at = torch.tensor([0])
    got = evaluate(program, "draft_d1", [torch.tensor([2]), at, at, hidden], state)
    embedded = load["wte"][[2]] + load["table.0"][[0]]
    adapted = embedded @ adapter.embedding.T + hidden @ adapter.hidden.T + adapter.bias
    # At position 0 attention is the value itself.
    want = (adapted + adapted @ load["w1"].T) @ load["head"].T
    torch.testing.assert_close(got, [want, adapted])
    assert state["target.k.0"].isnan().all()
    assert not state["target.k.1"][:, 0].isnan().any()


def test_leaves_alone() -> None:
    program = toy.after("declare-drafter", method="eagle:adaptive")
    assert AttachAdapter()(program) == (program, False)


def test_refuses() -> None:
    program = toy.after("declare-drafter", method="eagle:adaptive")
    fits = Adapter(SQUARE, SQUARE, ROW)
    cases = [
        (AttachAdapter({1: fits}), toy.empty()),
        (AttachAdapter({1: fits}), toy.after("gather-logits")),
        (AttachAdapter({0: fits}), program),
        (AttachAdapter({2: fits}), program),
        (AttachAdapter({1: Adapter(SQUARE[:2], SQUARE, ROW)}), program),
        (AttachAdapter({1: Adapter(SQUARE, SQUARE, ROW[:2])}), program),
    ]
    assert_expected_inline(
        "\n".join(toy.refusal(*c) for c in cases),
        """\
SPECC-E0330 attach-adapter: there is no target
SPECC-E0330 attach-adapter: a tap is missing
SPECC-E0356 attach-adapter: an adapter for depth 0 of [(4, 4), (4, 4), (4,)] does not fit
SPECC-E0356 attach-adapter: an adapter for depth 2 of [(4, 4), (4, 4), (4,)] does not fit
SPECC-E0356 attach-adapter: an adapter for depth 1 of [(2, 4), (4, 4), (4,)] does not fit
SPECC-E0356 attach-adapter: an adapter for depth 1 of [(4, 4), (4, 4), (2,)] does not fit""",
    )
