"""Prompts for measuring, as token ids: the same for every engine."""

from __future__ import annotations

import bisect
import inspect
from dataclasses import dataclass
from pydoc_data import topics

from specc import prompts
from specc.runtime import Engine

LENGTHS = (30, 500, 1500)


@dataclass(frozen=True)
class Text:
    """A prompt. `name`: its length, or what kind of text it is."""

    name: str
    ids: tuple[int, ...]


def prose(engine: Engine, length: int) -> list[int]:
    """`length` tokens of English prose: Python's own language reference, which every Python has."""
    words = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return prompts.encode(engine, words[: 12 * length + 200])[:length]


def by_length(engine: Engine, new_tokens: int) -> list[Text]:
    """Prompts of 30, 500 and 1,500 tokens, as far as the artifact's context has room."""
    room = engine.manifest.model.max_model_len - new_tokens
    return [Text(str(n), tuple(prose(engine, n))) for n in LENGTHS if n <= room]


def copying(engine: Engine) -> list[Text]:
    """Prompts whose continuation is mostly in them: prose and code to be copied, 300 tokens each."""
    found = []
    for kind, source in (("prose", prose(engine, 4000)[-240:]), ("code", _code(engine)[:240])):
        asked = prompts.encode(engine, "\n\nThe same once more, with nothing changed:\n\n")
        found.append(Text(f"copy {kind}", (*source, *asked, *source[:40])))
    return found


def chatting(engine: Engine, new_tokens: int) -> list[Text]:
    """One of specc's built-in questions, where an n-gram drafter finds little."""
    chat = next(p for p in prompts.built_in() if p.kind == "chat")
    return [Text(chat.name, tuple(chat.ids(engine, new_tokens)))]


def _code(engine: Engine) -> list[int]:
    """The source of a module that changes little from one Python to the next."""
    return prompts.encode(engine, inspect.getsource(bisect))
