import re
from dataclasses import replace

import pytest
import torch
from expecttest import assert_expected_inline

from specc.ir import Function, TensorType, Weight, WeightStore
from specc.ir.graphs import copy_graph
from tests.passes import toy

METHODS = ["ngram", "layerskip", "draft_model", "eagle:adaptive"]


@pytest.mark.parametrize("method", METHODS)
def test_a_copy_prints_the_same(method: str) -> None:
    program = toy.after("fuse-round", method=method)
    copies = [
        Function(f.name, f.role, copy_graph(f.graph)[0], f.outputs)
        for f in program.functions.values()
    ]
    assert str(program.replacing(*copies)) == str(program)
    assert str(toy.after("fuse-round", method=method)) == str(program)


@pytest.mark.parametrize("method", METHODS)
def test_total_and_without_identities(method: str) -> None:
    text = str(toy.after("fuse-round", method=method))
    assert not re.search(r"0x[0-9a-f]{4,}|<|object at|undefined", text)
    defined = set(re.findall(r"^  (%\d+) =", text, re.MULTILINE))
    assert set(re.findall(r"%\d+\b", text)) <= defined


def test_the_head_of_a_program() -> None:
    lines = [str(toy.after("fuse-round", method=m)).splitlines()[2] for m in METHODS]
    assert_expected_inline(
        "\n".join(lines),
        """\
drafter ngram K=[0, 2] on the host prompt_lookup_max=4 prompt_lookup_min=2
drafter layerskip K=[0, 2] layers=[0]
drafter draft_model K=[0, 2] with own state lag=1
drafter eagle:adaptive K=[0, 2] depths=[1] taps=[1]""",
    )
    assert_expected_inline(
        "\n".join(str(toy.decoder(1)).splitlines()[:9]),
        """\
program toy S=0 chunk=0
model toy vocab=6 hidden=4 layers=1 positions=16 eos=[]
drafter none K=[0] on the host
weight @head: f32[6, 4]
weight @w0: f32[4, 4]
weight @wpe: f32[16, 4]
weight @wte: f32[6, 4]
fn target(%tokens: i64[T], %positions: i64[T]) {target}:
  %0 = aten.unsqueeze(%tokens, 0) : i64[1, T]""",
    )


def test_weights() -> None:
    """Which are derived, from what, and which are the same; contents are not read for it."""

    def never() -> torch.Tensor:
        raise AssertionError

    matrix = Weight.of(torch.ones(2, 3))
    turned = TensorType("f32", (3, 2))
    store = {
        "b": matrix, "a": matrix, "c": matrix.derive("transpose", turned, torch.t),
        "d": matrix.derive("transpose", turned, torch.t), "e": Weight(turned, never),
    }  # fmt: skip
    program = replace(toy.empty(), weights=WeightStore(store))
    assert_expected_inline(
        str(program),
        """\
program empty S=0 chunk=0
model toy vocab=6 hidden=4 layers=0 positions=16 eos=[]
drafter none K=[0] on the host
weight @a: f32[2, 3]
weight @b: f32[2, 3] = @a
weight @c: f32[3, 2] = transpose(a6f87984)
weight @d: f32[3, 2] = @c
weight @e: f32[3, 2]
""",
    )


def test_the_text_of_a_call_says_which_part_it_is() -> None:
    text = toy.text(toy.after("fuse-round", method="eagle:adaptive"), "draft_d1")
    calls = re.findall(r"call [\w.]+ {.*?}", text)
    assert calls == [
        "call embed {embed}", "call adapter {adapter}", "call layer.0 {layer 1}",
        "call head {head}",
    ]  # fmt: skip


def test_lists_and_nones() -> None:
    assert "specc.attention(%5, %5, %5, None, 0.5, 0, 0.0, 0)" in str(toy.decoder(1))
