"""A chat template as MLC has them: fixed texts around what system, user and assistant say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specc.errors import RequestError
from specc.progress import Progress
from specc.templates import ChatTemplate

if TYPE_CHECKING:
    from specc.backends.tvm.mlc.configs import Chat
    from specc.ir.importers.source import ImportedModel

_SAID = ("specc-first", "specc-second", "specc-third")
_ASKED = "specc-system"


def chat_of(model: ImportedModel, progress: Progress) -> Chat:
    """MLC's form of a model's chat template, or plain text where it has none that is text around messages alone."""
    from specc.backends.tvm.mlc.configs import Chat

    info = model.program.model
    plain = Chat(stop_token_ids=info.eos_token_ids, prefix_token_ids=_prefix(model))
    try:
        template = ChatTemplate.of_files(model.tokenizer_files, "the model")
    except RequestError:  # it has none
        return plain
    found = _around(template, plain)
    if found is None:
        progress.note(
            "the chat template is more than text around messages: conv_template in mlc-chat-config.json is plain text"
        )
        return plain
    if "{system_message}" not in found.system:
        progress.note(
            "MLC cannot leave a system message out as the chat template does: it takes none"
        )
    return found


def prompt(chat: Chat, messages: Sequence[tuple[str, str]], system: str | None = None) -> str:
    """What MLC makes of a conversation that ends with the user (cpp/json_ffi/conv_template.cc)."""
    text = chat.system.replace(
        "{system_message}", chat.system_message if system is None else system
    )
    for role, content in messages:
        user = role == "user"
        text += content if user else chat.before_answer + content
        text += chat.after_user if user else chat.after_assistant
    return text + chat.ask


def _around(template: ChatTemplate, plain: Chat) -> Chat | None:
    """The texts, found by rendering words that stand nowhere else; None where other words come out otherwise."""
    try:
        pieces = _split(_render(template, _SAID), _SAID)
        if pieces is None:
            return None
        begin, to_assistant, to_user, end = pieces
        common = end if to_assistant.startswith(end) else to_assistant
        if not end.startswith(common):
            return None
        chat = replace(
            plain, system=begin, after_user=common, before_answer=to_assistant[len(common) :],
            after_assistant=to_user, ask=end[len(common) :], prefix_token_ids=(),
        )  # fmt: skip
        asked = _with_system(template, chat)
        other = ("Why? 1 < 2", "So.\nIt is.", "and {} then")
        same = prompt(chat, _conversation(other)) == _render(template, other)
    except RequestError:
        return None
    return (asked or chat) if same else None


def _with_system(template: ChatTemplate, chat: Chat) -> Chat | None:
    """`chat` with a place for a system message, if one is always there: the template's own, say."""
    try:
        pieces = _split(_render(template, _SAID, _ASKED), (_ASKED, *_SAID))
    except RequestError:
        return None
    inside = [
        chat.after_user + chat.before_answer,
        chat.after_assistant,
        chat.after_user + chat.ask,
    ]
    if pieces is None or pieces[2:] != inside:
        return None
    before, after = pieces[:2]
    default = chat.system[len(before) : len(chat.system) - len(after)]
    if len(before) + len(after) > len(chat.system) or before + default + after != chat.system:
        return None
    return replace(chat, system=f"{before}{{system_message}}{after}", system_message=default)


def _conversation(said: Sequence[str]) -> list[tuple[str, str]]:
    return [("assistant" if i % 2 else "user", text) for i, text in enumerate(said)]


def _render(template: ChatTemplate, said: Sequence[str], system: str | None = None) -> str:
    messages = [{"role": r, "content": c} for r, c in _conversation(said)]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return template.render(messages)


def _split(text: str, words: Sequence[str]) -> list[str] | None:
    """The texts before, between and after `words`, each of which must stand there once and in order."""
    found = []
    for word in words:
        before, there, text = text.partition(word)
        if not there or word in text:
            return None
        found.append(before)
    return [*found, text]


def _prefix(model: ImportedModel) -> tuple[int, ...]:
    """The token that the tokenizer begins every text with, if it does: MLC adds none by itself."""
    if model.tokenizer_json is None or model.program.model.bos_token_id is None:
        return ()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(model.tokenizer_json)
    first = tokenizer.encode("a", add_special_tokens=True).ids[:1]
    return tuple(first) if first == [model.program.model.bos_token_id] else ()
