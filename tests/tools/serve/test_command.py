"""The verb itself: what it refuses before it listens, what it is told by flags; tools, and the dashboard."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from transformers import AutoTokenizer

from specc import cli
from specc.errors import UsageError
from specc.runtime import Artifact, Manifest
from specc.serve.server import listen
from tests.tools.serve.conftest import Server, running
from tests.tools.serve.test_http import PROMPT, REPORT, ask, code_of

ROOT = Path(__file__).parents[3]
TEMPLATE = (
    "{% for tool in tools or [] %}<tool>{{ tool.function | tojson }}</tool>{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% if m.role == 'alien' %}{{ raise_exception('not of this world') }}{% endif %}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"city": {"type": "string"}}},
}
CALL = {"name": "weather", "arguments": '{"city": "Paris"}'}
TALK: list[Any] = [
    {"role": "user", "content": "What is it like?"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": CALL}]},
    {"role": "tool", "content": "sunny", "tool_call_id": "1"},
]  # fmt: skip


def refused(capsys: pytest.CaptureFixture[str], *flags: object) -> tuple[int, str]:
    code = cli.main(["serve", *map(str, flags), "--json"])
    return code, json.loads(capsys.readouterr().out)["error"]["code"]


def test_without_its_packages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_artifact: Path
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "specc.serve.server", raising=False)
    assert cli.main(["serve", str(tiny_artifact), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "SPECC-E0701"
    assert error["cure"] == "pip install 'specc-compiler[serve]'"


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--max-sessions", 0], "SPECC-E0103"), (["--timeout", -1], "SPECC-E0103"), (["--max-body", 0], "SPECC-E0103"),
        (["--metrics-prefix", "a b"], "SPECC-E0103"), (["--api-key", ""], "SPECC-E0103"),
        (["--num-speculative-tokens", 3], "SPECC-E0103"), (["--state-memory", 10], "SPECC-E0714"),
        (["--metrics-prefix", "é"], "SPECC-E0103"), (["--api-key", "\n"], "SPECC-E0103"),
        (["--served-model-name", ""], "SPECC-E0103"), (["--host", ""], "SPECC-E0103"),
        (["--port", 70000], "SPECC-E0103"), (["--host", "no.such.host.invalid"], "SPECC-E0715"),
    ],
)  # fmt: skip
def test_flags_that_cannot_be(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, flags: list[object], code: str
) -> None:
    port = [] if "--port" in flags else ["--port", 0]
    assert refused(capsys, tiny_artifact, *port, *flags) == (2, code)


def test_why_an_address_cannot_be_had() -> None:
    """A port in use, a name that is nobody's, an address of another machine: each is cured in another way."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for host, number, cure in (
            ("127.0.0.1", port, "choose another --port"), ("no.such.host.invalid", 0, "correct --host"),
            ("192.0.2.1", 0, "choose a --host that this machine has"),
        ):  # fmt: skip
            with pytest.raises(UsageError, match="SPECC-E0715") as refusal:
                listen(host, number)
            assert refusal.value.cure.startswith(cure)


def test_a_key_of_any_letters_with_a_newline_behind(tiny_artifact: Path) -> None:
    """As a file of a secret has it; the last byte of an à would be a blank in Latin-1."""
    with running(tiny_artifact, "--api-key", "clé à\n") as server:
        for key, status in (("clé à", 200), ("clé à ", 200), ("clé", 401), ("cle a", 401)):
            header = {"Authorization": f"Bearer {key}".encode().decode("latin-1")}
            assert ask(server, "GET", "/v1/models", **header)[0] == status, key


def with_template(artifact: Path, place: Path, template: str) -> Path:
    """The same artifact with another chat template."""
    shutil.copytree(artifact, place)
    file = place / "tokenizer" / "chat_template.jinja"
    file.write_text(template)
    manifest = json.loads((place / "manifest.json").read_text())
    entry = manifest["files"].setdefault("tokenizer/chat_template.jinja", {"sha256": "0" * 64})
    entry["bytes"] = len(template)
    (place / "manifest.json").write_text(json.dumps(manifest))
    return place


def test_tools_memory_and_names(
    tiny_artifact: Path, tiny_model: Path, artifact: Artifact, tmp_path: Path
) -> None:
    """As transformers renders them."""
    state = Manifest.read(tiny_artifact).state_bytes
    place = with_template(tiny_artifact, tmp_path / "tools.specc", TEMPLATE)
    flags = ["--state-memory", 3 * state + 1, "--metrics-prefix", "vllm", "--served-model-name", "mine",
             "--num-speculative-tokens", 2]  # fmt: skip
    with running(place, *flags) as server:
        assert (server.model, server.slots) == ("mine", 3)
        create = server.client().chat.completions.create
        for choice, tools in (("auto", [TOOL]), ("none", None)):
            rendered = AutoTokenizer.from_pretrained(tiny_model).apply_chat_template(
                [TALK[0], {**TALK[1], "tool_calls": [{"function": {"arguments": {"city": "Paris"}}}]}, TALK[2]],
                tools=tools, chat_template=TEMPLATE, tokenize=False, add_generation_prompt=True,
            )  # fmt: skip
            answer = create(
                model="mine", messages=TALK, tools=[TOOL], tool_choice=choice, max_tokens=9,  # type: ignore[list-item]
                temperature=0, extra_body=REPORT,
            )  # fmt: skip
            ids = artifact.tokenize(rendered, add_special=False, parse_special=True)
            alone = artifact.generate(ids, max_tokens=9, ignore_eos=True, num_speculative_tokens=2)
            (report,) = answer.specc["choices"]  # type: ignore[union-attr]
            assert report["token_ids"] == list(alone.token_ids)
            assert answer.usage is not None  # type: ignore[union-attr]
            assert answer.usage.prompt_tokens == len(ids)  # type: ignore[union-attr]
            assert report["stats"]["per_k"][2]["rounds"] == 0
        with pytest.raises(openai.BadRequestError, match="not of this world") as strange:
            create(model="mine", messages=[{"role": "alien", "content": ""}])  # type: ignore[list-item]
        assert code_of(strange.value) == "SPECC-E0107"
        assert str(place) not in str(strange.value)
        assert lost_field(server, "reasoning_content", "hm") == "messages.1.reasoning_content"
        page = ask(server, "GET", "/metrics")[1]
        assert 'vllm:generation_tokens_total{model_name="mine"} 18.0' in page
        assert "specc:" not in page


def lost_field(server: Server, field: str, value: object) -> str | None:
    """Where the server says that an answer of before has a field that the template has no place for."""
    answer = {"role": "assistant", "content": "x", field: value}
    messages: list[Any] = [TALK[0], answer, TALK[0]]
    try:
        server.client().chat.completions.create(model=server.model, messages=messages, max_tokens=1)
    except openai.BadRequestError as error:
        return error.param if code_of(error) == "SPECC-E0703" else code_of(error)
    return None


def test_what_the_template_would_not_read_of_a_message_is_refused(server: Server) -> None:
    calls = TALK[1]["tool_calls"]
    for field, value in (
        ("name", "x"), ("reasoning_content", "x"), ("tool_calls", calls), ("tool_call_id", "1"),
    ):  # fmt: skip
        assert lost_field(server, field, value) == f"messages.1.{field}"
        assert lost_field(server, field, None) is None
        assert lost_field(server, field, value[:0]) is None


def test_a_template_that_writes_messages_whole_reads_all(
    tiny_artifact: Path, tmp_path: Path
) -> None:
    source = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
    with running(with_template(tiny_artifact, tmp_path / "whole.specc", source)) as server:
        assert lost_field(server, "name", "x") is None
        assert lost_field(server, "tool_calls", TALK[1]["tool_calls"]) is None


def test_the_dashboard_asks_for_what_there_is(server: Server) -> None:
    """Each metric of examples/grafana.json is on /metrics, with the labels it is grouped by."""
    server.client().completions.create(model=server.model, prompt=PROMPT, max_tokens=5)
    ask(server, "POST", "/v1/completions", b"{")
    page = ask(server, "GET", "/metrics")[1]
    board = json.loads((ROOT / "examples" / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) > 20
    for query in queries:
        for by, name in re.findall(r"sum(?: by \((\w+)\))? \((?:rate\()?(specc:\w+)", query):
            shown = re.search(rf"^{name}{{(.*)}} \S+$", page, re.M)
            assert shown, name
            labels = set(re.findall(r'(\w+)="', shown[1]))
            assert {"model_name", *([by] if by else [])} <= labels, query
    named = set(re.findall(r"specc:\w+", " ".join(queries)))
    assert all(re.search(rf"^{name}{{", page, re.M) for name in named)
    shown_metrics = set(re.findall(r"^# TYPE (specc:\w+) (?:counter|gauge|histogram)", page, re.M))
    unused = {m for m in shown_metrics if not any(n.startswith(m) for n in named)}
    assert {m for m in unused if not m.endswith("_created")} == {"specc:request_success_total"}
