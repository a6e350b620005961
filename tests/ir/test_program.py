import pytest
import torch

from specc.errors import InvalidProgramError
from specc.ir import Function, Role, StateBuffer, StateKind, TensorType, Weight, WeightStore
from specc.ir.graphs import Builder
from tests.passes import toy


def _function(name: str) -> Function:
    builder = Builder()
    return Function(
        name, Role.LEAF, builder.output(builder.input("x", TensorType("f32", (1,)))), ("x",)
    )


def test_adding_does_not_replace() -> None:
    program, other = toy.decoder(), _function("target")
    assert program.with_functions(program.functions["target"]).functions == program.functions
    with pytest.raises(InvalidProgramError, match="SPECC-E0304"):
        program.with_functions(other)
    with pytest.raises(InvalidProgramError, match="SPECC-E0304"):
        program.with_functions(_function("new"), _function("new")).with_functions(other)
    assert program.replacing(other).functions["target"] is other


def test_a_buffer_is_not_declared_twice() -> None:
    buffer = StateBuffer("s", TensorType("f32", (2,)), StateKind.HIDDEN_STATES)
    program = toy.decoder().with_state(buffer)
    assert program.with_state(buffer).state == program.state
    other = StateBuffer("s", TensorType("f32", (3,)), StateKind.HIDDEN_STATES)
    with pytest.raises(InvalidProgramError, match="SPECC-E0304"):
        program.with_state(other)


def test_a_weight_is_not_overwritten() -> None:
    store = WeightStore({"a": Weight.of(torch.ones(2))})
    assert store.added({"a": Weight.of(torch.ones(2))})["a"] is store["a"]
    for other in (torch.zeros(2), torch.ones(3)):
        with pytest.raises(InvalidProgramError, match="SPECC-E0303"):
            store.added({"a": Weight.of(other)})
    assert store.replaced({"a": Weight.of(torch.zeros(2))})["a"].load().sum() == 0
