"""`--recipe FILE`: flags from a TOML file, a table for each verb. What the command line says comes first."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Toml

from specc.errors import UsageError

FLAG = "--recipe"
Recipe = Annotated[Path | None, Parameter(name=FLAG)]
"""The parameter of a verb that takes one. By the time the verb runs, `fill` has read the file."""


def fill(
    verbs: Collection[str], app: App, commands: tuple[str, ...], arguments: ArgumentCollection
) -> None:
    """Give the flags that the command line leaves out the values that the recipe has, as cyclopts' configuration.

    `verbs` may have tables in it. Raises UsageError (SPECC-E0132) for what is no recipe for this verb. Keys that are no
    flags of it, and values that a flag cannot have, are cyclopts' to refuse, as if they had been typed.
    """
    tokens = [t for a in arguments if FLAG in a.names for t in a.tokens]
    if not tokens:
        return
    path, (verb, *_) = Path(tokens[-1].value), commands
    tables = _tables(path)
    if strange := sorted(tables.keys() - set(verbs)):
        raise _refused(
            path,
            f"the recipe has {strange[0]}, which is no verb",
            "a table for each verb, as [compile]",
        )
    table = tables.get(verb)
    if not isinstance(table, dict):
        raise _refused(path, f"the recipe says nothing about {verb}", f"a table [{verb}]")
    if "recipe" in table:
        raise _refused(path, "a recipe cannot name another recipe", "flags")
    Toml(path, must_exist=True)(app, commands, arguments)


def _tables(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise _refused(
            path, "the recipe cannot be read", "a TOML file", error.strerror or str(error)
        ) from error
    except (ValueError, RecursionError) as error:
        raise _refused(
            path, "the recipe is not TOML", "a TOML file in UTF-8", str(error)
        ) from error


def _refused(path: Path, what: str, expected: str, found: str = "") -> UsageError:
    return UsageError(
        "SPECC-E0132", what, where=f"{FLAG} {path}", expected=expected, found=found, cure="specc help recipes"
    )  # fmt: skip
