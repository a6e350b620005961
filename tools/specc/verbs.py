"""The verbs of the `specc` command, each imported when it is called."""

from __future__ import annotations

from functools import partial
from importlib.metadata import PackageNotFoundError, version

from cyclopts import App

from specc.recipe import fill

VERBS = {
    "compile": "Turn a model into a speculative artifact.",
    "run": "Continue a prompt with an artifact.",
    "chat": "Talk with an artifact.",
    "serve": "Serve an artifact over OpenAI's HTTP interface.",
    "draft-service": "Draft for servers in other processes.",
    "inspect": "Show what is in an artifact, without running it.",
    "verify": "Compare an artifact with plain decoding and with the original model.",
    "bench": "Measure an artifact against its own plain decoding.",
    "advise": "Say which method fits a model and a use.",
    "doctor": "Say what this machine can compile and run.",
    "distill": "Train a drafter for a model.",
    "opt": "Show what the passes make of a model.",
    "cache": "List, trim or clear the compile cache.",
    "help": "Explain a topic, a verb or an error's code.",
    "completion": "Print what a shell needs to complete verbs and flags.",
}
"""Each is the function `main` of specc.commands.<verb>_, with _ for -."""


def verbs() -> App:
    """The application, with no verb imported yet."""
    found = App(
        name="specc", version=_version, version_flags=["--version"], config=partial(fill, VERBS),
        suppress_keyboard_interrupt=False,  # an interrupted verb is reported like any other failure
        help="Compile LLMs into speculative-decoding artifacts, and run them.",
        help_epilogue="Topics, from methods to the codes of errors: specc help",
    )  # fmt: skip
    for name, text in VERBS.items():
        found.command(f"specc.commands.{name.replace('-', '_')}_:main", name=name, help=text)
    return found


def _version() -> str:
    try:
        return f"specc {version('specc-compiler')}"
    except PackageNotFoundError:
        return "specc (not installed)"
