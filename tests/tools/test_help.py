"""`specc help`: pages, verbs and codes in the terminal; `specc completion`: in bash as bash does it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from specc import cli
from specc.topics import plain, topic, topics
from specc.verbs import VERBS

DOCS = Path(__file__).parents[2] / "docs"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_topics_are_the_pages(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "help")
    assert code == 0
    listed = {line.split()[0] for line in out.splitlines() if line.startswith("  ")}
    assert listed == {p.stem for p in DOCS.glob("*.md")} - {"index"}
    assert {"methods", "lossless", "slow", "quantisation", "serve", "errors"} <= listed
    assert json.loads(run(capsys, "help", "--json")[1])["topics"] == topics()


@pytest.mark.parametrize("name", sorted(topics()))
def test_a_page_is_text(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = run(capsys, "help", name)
    assert code == 0
    assert out.startswith(f"# {topics()[name]}\n")
    assert not any(mark in out for mark in ("```", "<!--", "](", "\\<"))


def test_what_a_terminal_does_not_need() -> None:
    page = (
        "<!-- note -->\n# A\n\n![A b](p/c.svg) and [see](slow.md#x), [out](https://a.b), [one](g/o.html)\n\n"
        "```sh\nspecc  run\n```\n- \\<x\\>\n"
    )
    assert plain(page) == (
        "# A\n\n(a picture, in docs/: A b) and see (specc help slow), [out](https://a.b), one (docs/g/o.html)\n\n"
        "    specc  run\n- <x>\n"
    )


@pytest.mark.parametrize("name", ["SPECC-E0203", "E0203", "specc-e0203"])
def test_the_code_of_an_error(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = run(capsys, "help", name)
    assert code == 0
    assert out.startswith("SPECC-E0203\n")
    assert "cure: " in out
    assert out.count("SPECC-E") == 1


def test_every_code_of_the_catalogue_has_help() -> None:
    headings = [h for h in (DOCS / "errors.md").read_text().splitlines() if h.startswith("### ")]
    assert len(headings) > 100
    for heading in headings:
        assert topic(heading.removeprefix("### ")).startswith(heading.removeprefix("### "))


@pytest.mark.parametrize(
    ("name", "hint"), [("metods", "methods"), ("E0999", "SPECC-E0"), ("zzzzz", "specc help")]
)
def test_no_such_topic(capsys: pytest.CaptureFixture[str], name: str, hint: str) -> None:
    code, out, err = run(capsys, "help", name)
    assert (code, out) == (2, "")
    assert "SPECC-E0131" in err
    assert hint in err


def test_help_on_a_verb_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "help", "compile")[1] == run(capsys, "compile", "--help")[1]


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    return {
        shell: subprocess.run(
            ["specc", "completion", shell], check=True, capture_output=True, text=True, env={"PATH": _path()}
        ).stdout
        for shell in ("bash", "zsh", "fish")
    }  # fmt: skip


def _path() -> str:
    import os
    import sys

    return f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["com"], {"compile", "completion"}),
        (["compile", "m", "--kv"], {"--kv-arena", "--kv-cache-dtype", "--kv-shards"}),
        (["compile", "m", "--isa", "avx"], {"avx2", "avx512"}),
        (["cache", "tr"], {"trim"}),
    ],
)  # fmt: skip
def test_bash_completes(scripts: dict[str, str], words: list[str], expected: set[str]) -> None:
    ask = f"COMP_WORDS=(specc {' '.join(words)}); COMP_CWORD={len(words)}; _specc; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{scripts['bash']}\n{ask}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_verbs_and_flags(scripts: dict[str, str], shell: str) -> None:
    assert [v for v in VERBS if v not in scripts[shell]] == []
    assert "kv-cache-dtype" in scripts[shell]
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=scripts[shell], text=True, check=True)
