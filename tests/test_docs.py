"""The documents say what is so: links, commands, quoted code, lists, and the pages made from the code."""

import re
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from pages import __main__ as pages
from pages import quick_start
from pages.errors import meanings
from pages.raised import Raised, everywhere
from specc.checks import WORKING
from specc.runtime import Artifact
from specc.verbs import VERBS, verbs

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
ELSEWHERE = {"--merge", "--version", "--force-reinstall", "--into", "--no-deps"}
"""Flags of other programs that cures name."""


@pytest.fixture(scope="module")
def raised() -> list[Raised]:
    return everywhere(ROOT)


def name(path: Path) -> str:
    return path.name


def test_pages_made_from_the_code_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.main(check=True) == 0, capsys.readouterr().out


def test_every_code_has_one_meaning(raised: list[Raised]) -> None:
    """A new code needs a line in tools/pages/meanings.toml; one that nobody raises any more keeps none."""
    told = {code: text for _, codes in meanings().values() for code, text in codes.items()}
    assert {r.code for r in raised} == set(told)
    assert [text for text, count in Counter(told.values()).items() if count > 1] == []
    assert all(
        code.startswith(family) for family, (_, codes) in meanings().items() for code in codes
    )


def test_a_code_is_one_kind_of_error(raised: list[Raised]) -> None:
    """The same class from every place in Python, the same enumerator from every place in C++: so exit codes agree."""
    kinds = defaultdict(set)
    for place in filter(lambda r: r.kind, raised):
        kinds[place.code, place.path.endswith(".py")].add(place.kind)
    assert {where: k for where, k in kinds.items() if len(k) > 1} == {}


def flags_of(verb: str) -> set[str]:
    arguments = verbs()[verb].assemble_argument_collection(parse_docstring=False)
    return {n for a in arguments for n in a.names}


def test_cures_name_flags_that_exist(raised: list[Raised]) -> None:
    known = {"--help", *ELSEWHERE}.union(*map(flags_of, VERBS))
    wrong = {
        (r.code, f) for r in raised for f in FLAG.findall(f"{r.what} {r.cure}") if f not in known
    }
    assert wrong == set()


def commands(path: Path) -> list[list[str]]:
    """The lines of shell code on a page that call specc."""
    blocks = re.findall(r"^```sh\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    lines = [part for b in blocks for line in b.splitlines() for part in re.split(r"&&|>", line)]
    words = [
        shlex.split(line, comments=True)
        for line in lines
        if re.match(r"\s*(\.venv/bin/)?specc ", line)
    ]
    return [w[1:] for w in words]


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_can_be_typed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is parsed to its end: verb, flags and the kinds of their values."""
    monkeypatch.chdir(ROOT)  # where recipes are
    for words in commands(path):
        verbs().parse_args(words, exit_on_error=False, print_error=False)


def test_the_pages_have_commands() -> None:
    assert sum(len(commands(path)) for path in PAGES) > 20


def test_quoted_code_is_the_code() -> None:
    quoted = [
        (source, text) for path in PAGES
        for source, text in re.findall(r"<!-- from (\S+) -->\n```\w+\n(.*?)```", path.read_text(), re.DOTALL)
    ]  # fmt: skip
    assert len(quoted) > 8
    for source, text in quoted:
        assert text in (ROOT / source).read_text(), (source, text)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize("program", blocks("embedding.md", "c"), ids=["one text", "a batch"])
def test_the_c_programs_compile(program: str) -> None:
    command = [
        "g++",
        "-x",
        "c",
        "-std=c99",
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        "runtime/include",
        "-",
    ]
    done = subprocess.run(command, cwd=ROOT, input=program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_python_program_runs(
    tiny_artifact: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (program,) = blocks("quick-start.md", "python")
    (tmp_path / "smol.specc").symlink_to(tiny_artifact)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "quick-start.md", "exec"), {})
    with Artifact.load(tiny_artifact) as model:
        made = model.generate(model.tokenize("The sea is"), max_tokens=32)
        assert capsys.readouterr().out == model.detokenize(made.token_ids) + "\n"


def test_the_quick_start_is_followed_to_the_letter(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Blocks in one shell, until a line fails; `python -m pages.quick_start` plays the page itself."""
    code = "```{}\n{}\n```\n"
    page = code.format("sh", "place=$HOME\npython() { python3; }") + "```c\nfalse\n```\n"
    page += code.format("sh", "cd $place && pwd") + code.format("python", "print('text')")
    first, second, last = quick_start.follow(page, ROOT, tmp_path)
    assert (first.strip(), second.strip(), last.strip()) == ("", str(tmp_path), "text")
    with pytest.raises(subprocess.CalledProcessError):
        quick_start.follow(
            page + code.format("sh", "false") + code.format("sh", "echo on"), ROOT, tmp_path
        )
    assert "on" not in capfd.readouterr().out.splitlines()


def test_the_architectures_are_those_of_the_tests() -> None:
    """README, `specc doctor` and the page of what is tested (which is made from the tests' own list)."""
    rows = re.findall(r"^\| (\w+) \|", (ROOT / "docs/support.md").read_text(), re.MULTILINE)[1:]
    assert sorted(WORKING) == rows
    readme = re.search(r"tested are ([\w,\s]+)\.", (ROOT / "README.md").read_text())
    assert readme is not None
    assert set(re.split(r",\s*", readme[1])) == set(WORKING)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """`strict`: a link or an anchor that leads nowhere, or a page that nothing leads to, fails."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "site/errors/index.html").is_file()
    assert (tmp_path / "site/pictures/round.svg").is_file()
    for page in (tmp_path / "site").rglob("*.html"):
        # Nothing is loaded from another host.
        assert not re.search(r'(src|rel="stylesheet" href)="(https?:)?//', page.read_text()), page
