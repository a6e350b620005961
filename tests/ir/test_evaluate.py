import pytest
import torch

from specc.ir import SpeculativeProgram
from specc.ir.evaluate import evaluate, fresh_state
from tests.passes import toy


def test_state_is_written_in_place_and_calls_nest() -> None:
    program = toy.after("fuse-round")
    state = fresh_state(program)
    before = {n: t.data_ptr() for n, t in state.items()}
    at = torch.arange(3)
    evaluate(program, "prefill", [toy.TOKENS[:3], at, at], state)
    assert {n: t.data_ptr() for n, t in state.items()} == before
    assert state["target.k.1"][:, :3].abs().min() > 0
    assert state["target.k.1"][:, 3:].abs().max() == 0


def test_fresh_state_takes_a_length_before_plan_state() -> None:
    program = toy.after("make-stateful")
    assert {t.shape for t in fresh_state(program, 9).values()} == {(1, 9, 4)}


def test_each_weight_is_loaded_once_for_a_call() -> None:
    loads: list[str] = []
    program = toy.after("fuse-round")

    def counted(name: str) -> object:
        weight = program.weights[name]
        return type(weight)(weight.type, lambda: (loads.append(name), weight.load())[1])

    store = program.weights.replaced({n: counted(n) for n in program.weights})  # type: ignore[misc]
    counting = SpeculativeProgram(**{**vars(program), "weights": store})
    at = torch.arange(3)
    evaluate(counting, "verify_2", [toy.TOKENS[:3], at, at], fresh_state(counting))
    assert sorted(loads) == sorted(program.weights)


def test_a_wrong_number_of_inputs_is_refused() -> None:
    with pytest.raises(TypeError, match="target takes 2 inputs, not 1"):
        evaluate(toy.decoder(), "target", [toy.TOKENS], {})


def test_no_gradients() -> None:
    (logits,) = evaluate(toy.decoder(), "target", [toy.TOKENS, torch.arange(7)], {})
    assert not logits.requires_grad
