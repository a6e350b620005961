"""Chat templates: what transformers renders, in a sandbox."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from specc.errors import ArtifactError, RequestError
from specc.templates import ChatTemplate

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BLOCKS = """\
{{ bos_token }}
{%- set ns = namespace(last='') %}
{% for m in messages %}
    {% if m.role == 'system' %}
        {% continue %}
    {% endif %}
    {% set ns.last = m.role %}
    {% generation %}
[{{ m.role | upper }}] {{ m.content | trim }} {{ m | tojson }}
    {% endgeneration %}
{% endfor %}
{{ ns.last }}{{ eos_token }}"""
TALK = [
    {"role": "system", "content": "short"},
    {"role": "user", "content": " <é> & 日本 "},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "more"},
]


@pytest.mark.parametrize("source", [CHATML, BLOCKS])
@pytest.mark.parametrize("messages", [TALK, TALK[1:2], TALK[:2]])
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers(source: str, messages: Any, prompt: bool) -> None:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    expected, _ = render_jinja_template(
        [messages], chat_template=source, add_generation_prompt=prompt, **tokens
    )
    template = ChatTemplate(source, tokens)
    assert template.render(messages, add_generation_prompt=prompt) == expected[0]


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{% set x = messages.append(1) %}",
        "{{ 'a' * 100000000000 }}",
        "{{ [0] * 100000000000 }}",
        "{{ 9 ** 9 ** 9 ** 9 ** 9 ** 9 }}",
        "{{ '%999999999d' % 1 }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxx{% endfor %}{% endfor %}",
        "{% for a in range(999999999) %}{% endfor %}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ unknown.field }}",
        "{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ messages[99].content.x }}",
        "{{ 'x' + 1 }}",
        "{% include '/etc/passwd' %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_hostile_or_broken_template_is_a_coded_error(source: str) -> None:
    with pytest.raises(RequestError, match="SPECC-E0107"):
        ChatTemplate(source).render(TALK)


@pytest.mark.parametrize("source", ["{% endfor %}", "{{ tools", "{{ " + "(" * 9999])
def test_a_broken_template_takes_nothing(source: str) -> None:
    """Asked before it is rendered, for a request with tools."""
    with pytest.raises(RequestError, match="SPECC-E0107"):
        ChatTemplate(source).takes("tools")


def test_what_a_template_mentions() -> None:
    source = "{% for m in messages %}{{ m.a }}{{ m['b'] }}{{ m.get('c') }}{{ d }}{% endfor %} e"
    mentioned = ChatTemplate(source).mentioned
    assert {"messages", "a", "b", "c", "d"} <= mentioned
    assert "e" not in mentioned
    with pytest.raises(RequestError, match="SPECC-E0107"):
        assert ChatTemplate("{% endfor %}").mentioned


def test_what_the_template_says_reaches_the_user() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(TALK)


def write(artifact: Path, config: object, jinja: str | None = None) -> Path:
    folder = artifact / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja)
    return artifact


def test_found_in_the_configuration(tmp_path: Path) -> None:
    config = {"chat_template": "{{ bos_token }}!", "bos_token": {"content": "<s>"}}
    assert ChatTemplate.of_artifact(write(tmp_path, config)).render(TALK) == "<s>!"


def test_a_file_goes_first(tmp_path: Path) -> None:
    made = write(tmp_path, {"chat_template": "a", "eos_token": "</s>"}, "b{{ eos_token }}")
    assert ChatTemplate.of_artifact(made).render(TALK) == "b</s>"


def test_the_default_of_several(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert ChatTemplate.of_artifact(write(tmp_path, {"chat_template": named})).render(TALK) == "d"


def test_several_without_a_default_are_none(tmp_path: Path) -> None:
    """transformers takes none of them either."""
    named = [{"name": "rag", "template": "r"}, {"name": "tool_use", "template": "t"}]
    with pytest.raises(RequestError, match="SPECC-E0620"):
        ChatTemplate.of_artifact(write(tmp_path, {"chat_template": named}))


def test_none_is_a_coded_error(tmp_path: Path) -> None:
    for artifact in (tmp_path, write(tmp_path, {"bos_token": "<s>"})):
        with pytest.raises(RequestError, match="SPECC-E0620"):
            ChatTemplate.of_artifact(artifact)


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": b"\xff"},
        {"tokenizer_config.json": b"{"},
        {"tokenizer_config.json": b"[" * 100000},
    ],
)
def test_a_damaged_file_is_a_coded_error(files: dict[str, bytes]) -> None:
    with pytest.raises(ArtifactError, match="SPECC-E0502"):
        ChatTemplate.of_files(files, "here")
