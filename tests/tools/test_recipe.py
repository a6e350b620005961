"""`--recipe`: what a file says is what could be typed, and what was typed comes first."""

from pathlib import Path
from typing import Any

import pytest

from specc import cli
from specc.errors import UsageError
from specc.verbs import VERBS, verbs

EXAMPLE = Path(__file__).parents[2] / "examples/smollm2.toml"


def parsed(*words: object) -> dict[str, Any]:
    """The flags that a verb would be called with."""
    _, bound, _ = verbs().parse_args(list(map(str, words)), exit_on_error=False, print_error=False)
    return {k: v for k, v in bound.arguments.items() if k != "recipe"}


def recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_as_if_it_had_been_typed(tmp_path: Path) -> None:
    path = recipe(
        tmp_path,
        '[compile]\nmethod = "layerskip"\ndraft-layers = "0,2"\nmax-model-len = 77\nforce = true\noutput = "a.specc"\n'
        '[run]\nmax-tokens = 3\ntemperature = 0.5\nignore-eos = true\nprompt = "--x"\n',
    )
    typed = [
        "--method",
        "layerskip",
        "--draft-layers",
        "0,2",
        "--max-model-len",
        77,
        "--force",
        "-o",
        "a.specc",
    ]
    assert parsed("compile", "m", "--recipe", path) == parsed("compile", "m", *typed)
    assert parsed("run", "a", "--recipe", path) == parsed(
        "run", "a", "--max-tokens", 3, "--temperature", 0.5, "--ignore-eos", "--prompt", "--x"
    )


def test_the_command_line_comes_first(tmp_path: Path) -> None:
    path = recipe(tmp_path, '[compile]\nmethod = "ngram"\nquant = "int8"\noutput = "a.specc"\n')
    found = parsed("compile", "m", "--recipe", path, "--quant", "int4", "-o", "b.specc")
    given = found["given"]
    assert (given.method, given.quant, found["artifact"]) == (
        "ngram",
        "int4",
        Path("b.specc"),
    )


@pytest.mark.parametrize(
    ("text", "code", "hint"),
    [
        ("[run]\nmax-tokns = 3\n", "SPECC-E0102", "max-tokns"),
        ('[run]\nartifact = "a"\n', "SPECC-E0102", "artifact"),
        ('[run]\nmax-tokens = "many"\n', "SPECC-E0103", "many"),
        ("[run]\nmax-tokens = [1, 2]\n", "SPECC-E0103", "max-tokens"),
        ("[run]\nmax-tokens = -1\n", "SPECC-E0103", "--max-tokens"),
        ("[rnu]\nmax-tokens = 3\n", "SPECC-E0132", "rnu"),
        ("max-tokens = 3\n", "SPECC-E0132", "max-tokens"),
        ("[compile]\nforce = true\n", "SPECC-E0132", "[run]"),
        ('[run]\nrecipe = "b.toml"\n', "SPECC-E0132", "another"),
        ("run = 3\n", "SPECC-E0132", "[run]"),
        ("[run\n", "SPECC-E0132", "TOML"),
        ("\xff", "SPECC-E0132", "TOML"),
        ("a = " + "[" * 100000, "SPECC-E0132", "TOML"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: str, hint: str
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(text.encode("latin-1"))
    assert cli.main(["run", "/nowhere", "--prompt", "x", "--recipe", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {code} ")
    assert hint in err


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="SPECC-E0132"):
        parsed("run", "a", "--recipe", tmp_path / "nothing")


def test_the_example_is_a_recipe_for_all_its_verbs() -> None:
    tables = {
        line.strip("[]\n ") for line in EXAMPLE.read_text().splitlines() if line.startswith("[")
    }
    assert tables <= set(VERBS)
    assert parsed("compile", "m", "--recipe", EXAMPLE)["artifact"] == Path("smol.specc")
    assert parsed("serve", "smol.specc", "--recipe", EXAMPLE)["port"] == 8000
