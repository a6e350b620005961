import re

import pytest
from expecttest import assert_expected_inline

from specc.ir import Function
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
    assert str(program.with_functions(*copies)) == str(program)
    assert str(toy.after("fuse-round", method=method)) == str(program)


@pytest.mark.parametrize("method", METHODS)
def test_total_and_without_identities(method: str) -> None:
    text = str(toy.after("fuse-round", method=method))
    assert not re.search(r"0x[0-9a-f]{4,}|<|object at|undefined", text)
    defined = set(re.findall(r"^  (%\d+) =", text, re.MULTILINE))
    assert set(re.findall(r"%\d+\b", text)) <= defined


def test_the_head_of_a_program() -> None:
    lines = [str(toy.after("fuse-round", method=m)).splitlines()[1] for m in METHODS]
    assert_expected_inline(
        "\n".join(lines),
        """\
drafter ngram K=[0, 2] on the host prompt_lookup_max=4 prompt_lookup_min=2
drafter layerskip K=[0, 2] layers=[0]
drafter draft_model K=[0, 2]
drafter eagle:adaptive K=[0, 2] depths=[1] taps=[1]""",
    )
    assert_expected_inline(
        "\n".join(str(toy.decoder(1)).splitlines()[:4]),
        """\
program toy S=0 chunk=0
drafter none K=[0] on the host
fn target(%tokens: i64[T], %positions: i64[T]) {target}:
  %0 = aten.unsqueeze(%tokens, 0) : i64[1, T]""",
    )


def test_lists_and_nones() -> None:
    assert "specc.attention(%5, %5, %5, None, 0.5, 0, 0.0, 0)" in str(toy.decoder(1))
