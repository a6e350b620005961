"""One list of inputs: what the IR says, the engine's table, and the README."""

import re
from pathlib import Path

from specc.ir import TensorType
from specc.ir.round_inputs import (
    EXTEND_INPUTS,
    PREFILL_INPUTS,
    commit_inputs,
    round_inputs,
    verify_inputs,
)
from tests.passes import toy

RUNTIME = Path(__file__).parents[2] / "runtime"
DIMS = {"kRows": "T", "kDrafts": 7, "kBlock": 8}


def _table(name: str) -> dict[str, TensorType]:
    """A table of the engine's inputs, as C++ text."""
    text = (RUNTIME / "cpp/core/engine/inputs.cpp").read_text()
    (body,) = re.findall(rf"{name} = \{{\n(.*?)\n\}};", text, re.DOTALL)
    rows = re.findall(r'\{"(\w+)", SPECC_(\w+), (\w+)\}', body)
    return {n: TensorType(dtype.lower(), (DIMS.get(dim) or int(dim),)) for n, dtype, dim in rows}


def test_the_engine_has_the_same_table() -> None:
    assert _table("kPrefillInputs") == PREFILL_INPUTS
    assert _table("kExtendInputs") == EXTEND_INPUTS
    assert _table("kRoundInputs") == round_inputs(7)
    assert _table("kVerifyInputs") == verify_inputs(7)
    assert _table("kCommitInputs") == commit_inputs(7)


def test_the_readme_tells_of_each() -> None:
    text = (RUNTIME / "README.md").read_text()
    for name, type_ in round_inputs(7).items():
        dims = {1: "1", 7: "K", 8: "K+1"}[type_.shape[0]]
        assert f"`{name}` {type_.dtype}[{dims}]" in text
    pairs = ", ".join(f"{name} {type_}" for name, type_ in EXTEND_INPUTS.items())
    assert f"`extend({pairs})`" in text
    prompt = ", ".join(f"{name} {type_}" for name, type_ in PREFILL_INPUTS.items())
    assert f"`prefill({prompt})`" in text
    block = ", ".join(f"{name} i64[K+1]" for name in verify_inputs(7))
    assert f"`verify({block})`" in text
    path = ", ".join(f"{name} i64[K+1]" for name in commit_inputs(7))
    assert f"`commit({path})`" in text


def test_verify_and_rounds_take_what_is_agreed() -> None:
    program = toy.after("fuse-round", method="eagle3")
    for played in program.rounds:
        known = round_inputs(played.k) | EXTEND_INPUTS
        for name in (played.function, *([played.propose] if played.propose else [])):
            for node in program.functions[name].inputs:
                assert node.meta["type"] == known[node.name], node
        verify = {n.name: n.meta["type"] for n in program.functions[played.verify].inputs}
        known = verify_inputs(played.k)
        del known["parents"]  # of a chain
        assert verify == known
