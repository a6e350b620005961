"""`specc compile --format mlc`: what is refused by name, and how a chat template is said in MLC's form."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specc.backends.tvm.mlc.configs import MODES
from specc.cli import main
from specc.errors import ModelError, UsageError
from specc.ir import ModelInfo, SpeculativeProgram
from specc.ir.importers.source import ImportedModel
from specc.judge import check_request
from specc.method_table import METHODS, MLC_METHODS
from specc.mlc import compile_folder
from specc.mlc_chat import chat_of, prompt
from specc.progress import NotingProgress, SilentProgress
from specc.request import CompileRequest
from specc.templates import ChatTemplate
from tests.conftest import CHAT_TEMPLATE


def request(**values: Any) -> CompileRequest:
    return replace(CompileRequest("m", Path("o"), "none", format="mlc"), **values)


def refusal(**values: Any) -> UsageError:
    with pytest.raises(UsageError) as refused:
        check_request(request(**values))
    return refused.value


def test_each_method_that_the_command_takes_has_a_mode_of_the_engine() -> None:
    assert set(MODES) == set(MLC_METHODS)


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(MLC_METHODS)))
def test_methods_that_mlc_cannot_express_are_refused_with_the_way_through(method: str) -> None:
    error = refusal(method=method, drafter="d")
    assert (error.code, error.what) == (
        "SPECC-E0114",
        f"MLC's engine cannot express --method {method}",
    )
    assert error.found, "why"
    assert "--backend tvm" in error.cure


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"device": "onnx"}, "--device"), ({"backend": "reference"}, "--backend"), ({"quant": "int4"}, "--quant"),
        ({"kv_cache_dtype": "f16"}, "--kv-cache-dtype"), ({"kv_arena": "30:70"}, "--kv-arena"),
        ({"method": "medusa", "tree": 8, "drafter": "d"}, "--tree"),
        ({"method": "eagle", "host_drafter": "suffix", "drafter": "d"}, "--host-drafter"),
        ({"mlc_target": "android", "isa": "avx2"}, "--isa"),
    ],
)  # fmt: skip
def test_flags_that_have_no_meaning_there_are_refused(change: dict[str, Any], flag: str) -> None:
    error = refusal(**change)
    assert error.code == "SPECC-E0104"
    assert error.what.startswith(flag)
    assert error.cure == f"leave out {flag}"


def test_what_the_engine_would_hang_on_is_refused() -> None:
    """A round has K + 1 rows, and MLC plays one K."""
    drafting = {"method": "draft_model", "drafter": "d"}
    check_request(request(**drafting, num_speculative_tokens=(0, 4), prefill_chunk=5))
    assert (
        "waits for ever"
        in refusal(**drafting, num_speculative_tokens=(0, 4), prefill_chunk=4).expected
    )
    assert "waits for ever" in refusal(**drafting, prefill_chunk=4).expected
    assert "one spec_draft_length" in refusal(**drafting, num_speculative_tokens=(0, 2, 4)).expected


def test_a_short_context_makes_chunks_as_short(tiny_model: Path, tmp_path: Path) -> None:
    """The engine hangs on those as well, though --prefill-chunk is long enough."""
    drafting = request(
        model=str(tiny_model), output=tmp_path / "o", method="draft_model", drafter=str(tiny_model),
        num_speculative_tokens=(0, 4), max_model_len=4,
    )  # fmt: skip
    check_request(drafting)
    with pytest.raises(UsageError, match="waits for ever") as refused:
        compile_folder(drafting, SilentProgress())
    assert (refused.value.code, refused.value.found) == ("SPECC-E0103", "4")
    assert not (tmp_path / "o").exists()


def test_a_drafter_of_a_shorter_context_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "short")
    config = json.loads((tiny_model / "config.json").read_text())
    (tmp_path / "short/config.json").write_text(
        json.dumps({**config, "max_position_embeddings": 24})
    )
    drafting = request(
        model=str(tiny_model), output=tmp_path / "o", method="draft_model", drafter=str(tmp_path / "short"),
        max_model_len=32,
    )  # fmt: skip
    with pytest.raises(ModelError, match="SPECC-E0232") as refused:
        compile_folder(drafting, SilentProgress())
    assert refused.value.found == "24"


def test_a_method_must_be_named() -> None:
    assert (
        refusal(method="auto").what
        == "--format mlc measures nothing: it is MLC's engine that plays"
    )


def test_a_phone_needs_the_format() -> None:
    assert refusal(format="specc", mlc_target="iphone").code == "SPECC-E0104"


def test_the_command_writes_the_folder(
    tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Refused before anything is written; what is there is replaced only if it is such a folder."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other/manifest.json").write_text("{}")
    command = ["compile", str(tiny_model), "--format", "mlc", "--method", "none", "--force", "-o"]
    assert main([*command, str(tmp_path / "other")]) == 2
    assert "is not a folder for MLC" in capfd.readouterr().err


CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UPPER = CHATML.replace("{{ m.content }}", "{{ m.content | upper }}")
NO_SYSTEM = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}</s>{% else %}{{ raise_exception('no system') }}{% endif %}"
    "{% endfor %}"
)
TALK = [
    ("user", "Hi {there}"),
    ("assistant", "Yes?"),
    ("user", "1 < 2?\nSo"),
    ("assistant", ""),
    ("user", "x"),
]


def model(template: str | None) -> ImportedModel:
    info = ModelInfo("llama", 32, 8, 1, 64, eos_token_ids=(2,), bos_token_id=1)
    program = SpeculativeProgram("m", info)
    config = {"bos_token": "<s>", **({} if template is None else {"chat_template": template})}
    files = {"tokenizer_config.json": json.dumps(config).encode()}
    return ImportedModel(program, None, files, {}, None)


@pytest.mark.parametrize("template", [CHATML, NO_SYSTEM, CHAT_TEMPLATE])
def test_a_chat_is_written_as_the_template_writes_it(template: str) -> None:
    chat = chat_of(model(template), SilentProgress())
    jinja = ChatTemplate(template, {"bos_token": "<s>"})
    want = jinja.render([{"role": r, "content": c} for r, c in TALK])
    assert prompt(chat, TALK) == want
    assert chat.stop_token_ids == (2,)
    if template is CHATML:
        told = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}]
        assert prompt(chat, TALK[-1:], "Be brief.") == jinja.render(told)


@pytest.mark.parametrize(
    "template", [UPPER, "{{ messages | length }}", "{{ raise_exception('no') }}", None]
)
def test_a_template_that_is_more_than_text_is_not_imitated(template: str | None) -> None:
    progress = NotingProgress(SilentProgress())
    chat = chat_of(model(template), progress)
    assert prompt(chat, [("user", "as it is")]) == "as it is"
    assert any("plain text" in note for note in progress.notes) == (template is not None)
