"""Verbs on a real artifact: what they print, and their exit codes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specc import cli
from specc.runtime import Manifest

IDS = "5,6,7,5,6,7,5"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, out
    assert err == ""
    payload: dict[str, Any] = json.loads(out)
    assert payload["schema"] == 1
    return payload


def texts(tiny_artifact: Path) -> None:
    if "tokenizer.bin" not in Manifest.read(tiny_artifact).files:
        pytest.skip("the artifact has no tokenizer")


def test_run_prints_one_object(capsys: pytest.CaptureFixture[str], tiny_artifact: Path) -> None:
    payload = as_json(capsys, "run", tiny_artifact, "--token-ids", IDS, "--max-tokens", 9,
                      "--ignore-eos")  # fmt: skip
    assert payload["prompt_token_ids"] == [5, 6, 7, 5, 6, 7, 5]
    assert len(payload["token_ids"]) == 9
    assert payload["finish_reason"] == "length"
    assert payload["speculation"] == "ngram, K adaptive, lossless"
    stats = payload["stats"]
    assert stats["tokens_per_s"] > 0
    assert stats["mean_acceptance_length"] >= 1
    assert stats["rounds"] >= 1
    assert isinstance(stats["acceptance_by_position"], list)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ([], "speculation: ngram, K adaptive, lossless"),
        (["--num-speculative-tokens", 2], "speculation: ngram, K=2, lossless"),
        (["--num-speculative-tokens", 0], "speculation: off (K=0 was asked for)"),
    ],
)
def test_run_says_first_whether_it_speculates(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, flags: list[object], line: str
) -> None:
    code, out, err = run(capsys, "run", tiny_artifact, "--token-ids", IDS, "--max-tokens", 4,
                         *flags)  # fmt: skip
    assert code == 0
    assert out.endswith("\n")
    first, last = err.splitlines()
    assert first == line
    assert "finish: length" in last


def test_run_streams_what_json_tells(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path
) -> None:
    texts(tiny_artifact)
    arguments = ["run", tiny_artifact, "--prompt", "hello 日本", "--max-tokens", 30, "--ignore-eos"]
    payload = as_json(capsys, *arguments)
    _, out, _ = run(capsys, *arguments)
    assert out == payload["text"] + "\n"


def test_run_feeds_a_file_as_it_is(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, tmp_path: Path
) -> None:
    texts(tiny_artifact)
    (tmp_path / "p").write_text("hello\n")
    file = as_json(capsys, "run", tiny_artifact, "--prompt-file", tmp_path / "p", "--max-tokens", 1)
    text = as_json(capsys, "run", tiny_artifact, "--prompt", "hello\n", "--max-tokens", 1)
    assert file["prompt_token_ids"] == text["prompt_token_ids"]


def test_run_samples_by_seed(capsys: pytest.CaptureFixture[str], tiny_artifact: Path) -> None:
    def tokens(*flags: object) -> Any:
        arguments = ["run", tiny_artifact, "--token-ids", IDS, "--max-tokens", 12, *flags]
        return as_json(capsys, *arguments)["token_ids"]

    hot = ["--temperature", 1.5, "--seed", 3]
    assert tokens(*hot) == tokens(*hot, "--num-speculative-tokens", 0)
    assert tokens(*hot) != tokens("--temperature", 1.5, "--seed", 4)


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["--num-speculative-tokens", 3], 2, "SPECC-E0103"),
        (["--num-speculative-tokens", -2], 2, "SPECC-E0103"),
        (["--token-ids", "99999999"], 1, "SPECC-E0602"),
    ],
)
def test_run_refuses(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, arguments: list[object], status: int,
    code: str,
) -> None:  # fmt: skip
    base = [] if "--token-ids" in arguments else ["--token-ids", IDS]
    found, out, _ = run(capsys, "run", tiny_artifact, *base, *arguments, "--json")
    assert (found, json.loads(out)["error"]["code"]) == (status, code)


def test_an_empty_prompt_is_a_coded_error(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path
) -> None:
    texts(tiny_artifact)
    code, out, _ = run(capsys, "run", tiny_artifact, "--prompt", "", "--json")
    if not Manifest.read(tiny_artifact).model.add_bos:
        assert (code, json.loads(out)["error"]["code"]) == (1, "SPECC-E0607")


def test_inspect(capsys: pytest.CaptureFixture[str], tiny_artifact: Path) -> None:
    payload = as_json(capsys, "inspect", tiny_artifact, "--check-hash", "--memory")
    assert payload["problems"] == []
    assert payload["lossless"] is True
    assert payload["num_speculative_tokens"] == [0, 2, 4]
    held = sum(b["bytes"] for b in payload["state"])
    assert held < payload["memory"]["state_bytes"] < 1.1 * held  # with guards
    assert payload["bytes"] == sum(
        (tiny_artifact / name).stat().st_size for name in payload["files"]
    )
    held = sum(t["bytes"] for t in payload["weights"]["by_dtype"].values())
    assert 0 < held <= payload["weights"]["bytes"]
    _, out, _ = run(capsys, "inspect", tiny_artifact, "--memory")
    assert "zone target" in out
    assert "provenance" in out


def test_inspect_finds_damage(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, tmp_path: Path
) -> None:
    art = tmp_path / "art"
    shutil.copytree(tiny_artifact, art)
    data = bytearray((art / "model.so").read_bytes())
    data[-1] ^= 1
    (art / "model.so").write_bytes(data)
    assert run(capsys, "inspect", art)[0] == 0
    code, out, _ = run(capsys, "inspect", art, "--check-hash", "--json")
    assert (code, json.loads(out)["problems"]) == (1, ["SPECC-E0505 model.so was altered"])
    code, _, told = run(capsys, "verify", str(art), "--no-eager")
    assert code == 1
    assert "SPECC-E0505" in told
    assert "model.so was altered" in told
    (art / "weights.safetensors").unlink()
    code, out, _ = run(capsys, "inspect", art)
    assert code == 1
    assert "PROBLEM: SPECC-E0505 weights.safetensors is missing" in out


@pytest.mark.parametrize(
    ("change", "code"),
    [({"schema_version": 9}, "SPECC-E0503"), ({"device": 1}, "SPECC-E0502"),
     ({"abi": 99}, "SPECC-E0503")],
)  # fmt: skip
def test_run_of_other_versions(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, tmp_path: Path,
    change: dict[str, Any], code: str,
) -> None:  # fmt: skip
    art = tmp_path / "art"
    shutil.copytree(tiny_artifact, art)
    manifest = json.loads((art / "manifest.json").read_text())
    (art / "manifest.json").write_text(json.dumps(manifest | change))
    status, out, _ = run(capsys, "run", art, "--token-ids", IDS, "--json")
    assert (status, json.loads(out)["error"]["code"]) == (1, code)


def test_verify_without_eager(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "p.jsonl"
    lines = [{"token_ids": [5, 6, 7] * n} for n in (1, 2, 9)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    arguments = ["verify", tiny_artifact, "--prompts", prompts, "--no-eager", "--ignore-eos",
                 "--max-tokens", 20]  # fmt: skip
    payload = as_json(capsys, *arguments)
    assert (payload["exact"], payload["ties"], payload["mismatches"]) == (3, 0, 0)
    assert payload["first_divergence"] is None
    assert payload["tokens"] == 60
    assert {"plain", "K=2", "K=4", "adaptive", "K=4 planted"} <= set(payload["arms"])
    assert "3 exact" in run(capsys, *arguments)[1]


def test_verify_with_eager(
    capsys: pytest.CaptureFixture[str], tiny_artifact: Path, tmp_path: Path
) -> None:
    source = Manifest.read(tiny_artifact).source_model
    if source is None or not Path(source).exists():
        pytest.skip("the model that the artifact was compiled from is gone")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"token_ids": [5, 6, 7, 5, 6, 7]}')
    code, out, _ = run(capsys, "verify", tiny_artifact, "--prompts", prompts, "--max-tokens", 20,
                       "--json")  # fmt: skip
    payload = json.loads(out)
    assert code == 0, payload
    assert payload["exact"] + payload["ties"] == 1
    assert "eager" in payload["arms"]


def test_bench(capsys: pytest.CaptureFixture[str], tiny_artifact: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"token_ids": [5, 6, 7, 5, 6, 7], "kind": "copy"}')
    arguments = ["bench", tiny_artifact, "--prompts", prompts, "--max-tokens", 16, "--repeats", 2]
    payload = as_json(capsys, *arguments)
    assert payload["plain"]["tokens_per_s"] > 0
    assert payload["speculative"]["tokens_per_s"] > 0
    assert payload["speculative"]["arm"] == "adaptive"
    assert set(payload["arms"]) == {"plain", "K=2", "K=4", "adaptive"}
    assert payload["semantic"] is True
    assert payload["verdict"]
    code, out, _ = run(capsys, *arguments, "--synthetic-acceptance", "0.9,0.5")
    assert code == 0
    assert "NOT SEMANTIC" in out
    assert "break-even" in out
    assert "of plain" in out


def test_the_built_in_prompts_fit(capsys: pytest.CaptureFixture[str], tiny_artifact: Path) -> None:
    texts(tiny_artifact)
    payload = as_json(capsys, "bench", tiny_artifact, "--max-tokens", 8, "--repeats", 1)
    assert set(payload["kinds"]) == {"chat", "code", "copy"}


def test_chat_reuses_state(tiny_artifact: Path) -> None:
    texts(tiny_artifact)
    if "tokenizer/tokenizer_config.json" not in Manifest.read(tiny_artifact).files:
        pytest.skip("the artifact has no chat template")
    command = [sys.executable, "-m", "specc", "chat", tiny_artifact, "--max-tokens", "4", "--json"]
    done = subprocess.run(
        command, input="hi\nand?\n/reset\nhi\n/exit\nhi\n", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    if "error" in turns[0]:
        pytest.skip("the artifact has no chat template")
    first, second, again = turns
    assert second["reused_tokens"] > 0
    assert again["token_ids"] == first["token_ids"]
