"""`specc opt` and `specc cache`."""

import importlib
import json
import pkgutil
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from specc import cli, explain, passes
from specc.errors import UsageError
from specc.ir.importers.drafters import Kind
from specc.method_table import METHODS, TRAINED
from specc.passes import Pass, pipelines
from specc.passes.keep_structure import Basis
from specc.passes.plan_arena import PlanArena
from tests.passes import toy

DRAFTING = list(METHODS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("tiny_llama")
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    return str(folder)


def opt(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = cli.main(["opt", *map(str, arguments)])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("method", DRAFTING)
def test_list(capsys: pytest.CaptureFixture[str], method: str) -> None:
    code, out = opt(capsys, "--list", "--method", method)
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()] == [*map(_name, _run(method).passes)]


def _name(pass_: Pass | type[Pass]) -> str:
    return pass_.name


def _run(method: str) -> pipelines.Pipeline:
    """What compile runs for `method`, with toys for what it would measure or read."""
    shape = pipelines.Shape()
    made = {
        "layerskip": lambda: pipelines.layerskip(shape, (0,)),
        "eagle:adaptive": lambda: pipelines.eagle_adaptive(shape, 2, toy.adapters(1)),
        "draft_model": lambda: pipelines.draft_model(shape, toy.empty()),
        "mtp:structure": lambda: pipelines.structure(
            shape, Basis(torch.eye(2), torch.zeros(2)), {}
        ),
        **{
            m: partial(pipelines.trained, shape, Kind(m), toy.checkpoint(Kind.EAGLE3))
            for m in TRAINED
        },
        **{m: partial(pipelines.host, m, shape, {}) for m in ("none", "ngram", "suffix")},
    }
    return pipelines.placed(made[method](), PlanArena())


@pytest.mark.parametrize("method", DRAFTING)
def test_every_pass_can_be_explained(method: str) -> None:
    for pass_ in explain.pipeline_of(method).passes:
        text = explain.describe(type(pass_))
        assert text.startswith(pass_.name)
        for part in ("options:", "requires, beyond ir.check:", "ensures, beyond ir.check:"):
            assert part in text


def test_every_pass_there_is_can_be_explained() -> None:
    """Whichever flag or engine asks for it, with some method."""
    for module in pkgutil.iter_modules(passes.__path__):
        importlib.import_module(f"specc.passes.{module.name}")
    known = {_name(c) for c in Pass.__subclasses__() if c.__module__.startswith("specc.passes.")}
    found = set()
    for name, method in product(known, DRAFTING):
        with suppress(UsageError):
            found.add(_name(explain.find_pass(name, method, beside=True)))
    assert found == known
    for name, method in (("translate-tokens", "draft_model"), ("split-ends", "ngram")):
        with pytest.raises(UsageError, match="no pass"):  # which opt does not run
            explain.find_pass(name, method)


def test_passes_that_run_when_asked_for_can_be_explained_and_seen(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    for name in ("quantise-weights", "trim-draft-vocabulary"):
        assert "Before:" in explain.describe(explain.find_pass(name, "layerskip"))
    code, out = opt(capsys, model, *SMALL, "--quant", "bf16", "--print-after", "quantise-weights")
    assert code == 0
    assert "specc.linear" in out
    assert "#bf16" in out


def test_caches_of_another_type_are_shown(capsys: pytest.CaptureFixture[str], model: str) -> None:
    code, out = opt(
        capsys, model, *SMALL, "--kv-cache-dtype", "bf16", "--print-after", "plan-state"
    )
    assert code == 0
    assert "state $target.k.0: bf16[" in out
    code, out = opt(capsys, model, *SMALL, "--kv-cache-dtype", "f16", "--bisect", "--json")
    assert code == 2
    assert "leave out --kv-cache-dtype" in json.loads(out)["error"]["cure"]


def test_a_draft_vocabulary_that_trims_nothing(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    code, out = opt(capsys, model, "--method", "layerskip", "--draft-vocab-size", 64, "--json")
    assert code != 0
    assert json.loads(out)["error"]["code"] == "SPECC-E0238"


def test_explain_shows_options_and_promises() -> None:
    text = explain.describe(explain.find_pass("plan-state", "ngram"))
    assert "max_model_len: int = 2048" in text
    assert "promise(" in text


def test_a_wrong_pass_is_refused_before_the_model_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for flag in ("--print-after", "--stop-after"):
        code, out = opt(capsys, "/nowhere", flag, "plan-stat", "--json")
        assert code == 2
        error = json.loads(out)["error"]
        assert (error["code"], error["cure"]) == ("SPECC-E0110", "did you mean plan-state?")


def test_diffs_are_cut() -> None:
    before, after = "\n".join(map(str, range(500))), "\n".join(map(str, range(1, 1000, 2)))
    lines = explain.diff(before, after).splitlines()
    assert len(lines) == explain.LONGEST_DIFF + 1
    assert "more lines" in lines[-1]
    assert explain.diff("a", "a") == ""


def test_placeholders_name_real_pipelines() -> None:
    assert explain.pipeline_of("ngram").name == pipelines.host("ngram", pipelines.Shape(), {}).name
    with pytest.raises(UsageError, match="no pass"):
        explain.find_pass("prune-layers", "ngram")


SMALL = ("--max-model-len", 32, "--num-speculative-tokens", "0,2")


def test_prints_the_program(capsys: pytest.CaptureFixture[str], model: str) -> None:
    code, out = opt(capsys, model, *SMALL)
    assert code == 0
    assert out.startswith("program ")
    assert "fn round_2(" in out
    _, stopped = opt(capsys, model, *SMALL, "--stop-after", "make-stateful")
    assert "fn round_2(" not in stopped
    assert "cached_attention" in stopped
    _, printed = opt(capsys, model, *SMALL, "--print-after", "make-stateful")
    assert printed == stopped
    code, out = opt(capsys, model, *SMALL, "--print-after", "build-score", "--json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "SPECC-E0110")


def test_dumps_every_stage(capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path) -> None:
    code, out = opt(capsys, model, *SMALL, "--dump-dir", tmp_path / "d")
    assert code == 0
    names = [p.name for p in explain.pipeline_of("ngram").passes]
    files = sorted((tmp_path / "d").iterdir())
    assert [f.name for f in files] == [f"{i:02}-{n}.txt" for i, n in enumerate(names, 1)]
    assert out.splitlines() == [str(f) for f in files]
    _, text = opt(capsys, model, *SMALL)
    assert files[-1].read_text() == text


@pytest.mark.parametrize("name", ["canonicalise", "plan-state"])
def test_explains_on_a_model(capsys: pytest.CaptureFixture[str], model: str, name: str) -> None:
    code, out = opt(capsys, model, *SMALL, "--explain", name, "--json")
    assert code == 0
    payload: dict[str, Any] = json.loads(out)
    assert payload["modified"] is True
    assert payload["diff"].startswith("--- before\n+++ after")


@pytest.mark.parametrize("method", ["ngram", "layerskip"])
def test_bisect_of_a_sound_pipeline(
    capsys: pytest.CaptureFixture[str], model: str, method: str
) -> None:
    more = ["--draft-layers", "0,2"] if method == "layerskip" else []
    code, out = opt(capsys, model, *SMALL, "--method", method, *more, "--bisect", "--json")
    assert code == 0, out
    names = [p.name for p in explain.pipeline_of(method).passes]
    assert json.loads(out)["agrees_after"] == ["import", *names]


def test_bisect_names_a_broken_pass(
    capsys: pytest.CaptureFixture[str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specc.passes.plan_state import PlanState
    from tests.tools.test_bisect import Scramble

    sound = PlanState.call
    monkeypatch.setattr(PlanState, "call", lambda self, p: sound(self, Scramble().call(p).program))
    code, out = opt(capsys, model, *SMALL, "--bisect", "--json")
    assert code == 1
    error = json.loads(out)["error"]
    assert error["code"] == "SPECC-E0339"
    assert "after plan-state" in error["what"]
