"""A graph that was traced for one model serves another of the same code and sizes, with that one's weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, difference, eager_logits, logits_of, prompt, tiny
from transformers import PreTrainedModel

from specc.ir.importers import huggingface, traced
from specc.ir.importers.huggingface import import_model


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of models that were traced, from nothing known on."""
    monkeypatch.setattr(traced, "_known", type(traced._known)())
    found, trace = [], huggingface._trace

    def noting(model: PreTrainedModel, name: str) -> Any:
        found.append(name)
        return trace(model, name)

    monkeypatch.setattr(huggingface, "_trace", noting)
    return found


@pytest.mark.parametrize("family", ["llama-mqa-bias-tied", "gemma3", "mixtral"])
def test_models_that_differ_in_weights_alone_have_one_graph(family: str, traces: list[str]) -> None:
    kind, values = FAMILIES[family]
    first, second = tiny(kind, **values), tiny(kind, **values)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(1.25)
    programs = [import_model(first, "first"), import_model(second, "second")]
    assert traces == ["first"]
    wanted = [eager_logits(model, prompt()) for model in (first, second)]
    assert difference(*wanted) > 1e-2
    for program, want in zip(programs, wanted, strict=True):
        assert difference(logits_of(program, prompt()), want) < 1e-5


def scaled(model: Any) -> None:
    model.model.layers[1].self_attn.scaling *= 2


def untied(model: Any) -> None:
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def replaced(model: Any) -> None:
    model.model.layers[1].mlp.act_fn = torch.nn.Tanh()


@pytest.mark.parametrize("change", [scaled, untied, replaced])
def test_what_differs_otherwise_is_traced_again(
    change: Callable[[Any], None], traces: list[str]
) -> None:
    kind, values = FAMILIES["llama-mqa-bias-tied"]
    first, second = tiny(kind, **values), tiny(kind, **values)
    change(second)
    import_model(first, "first")
    program = import_model(second, "second")
    assert traces == ["first", "second"]
    assert difference(logits_of(program, prompt()), eager_logits(second, prompt())) < 1e-5


def test_longer_texts_have_other_frequencies(traces: list[str]) -> None:
    """longrope takes one of two sets of factors, whatever was traced before."""
    kind, values = FAMILIES["phi3-longrope"]
    model = tiny(kind, **values)
    programs = [import_model(model, "m", length) for length in (16, 64, 16, 64)]
    assert len(traces) <= 2
    short, long, *again = (logits_of(program, prompt()) for program in programs)
    assert difference(short, long) > 1e-4
    assert torch.equal(torch.stack(again), torch.stack([short, long]))
