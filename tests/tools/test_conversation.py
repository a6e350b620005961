"""Conversations: only the new part is prefilled, and the text is that of a fresh run (B08)."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.commands.run_ import has_tokenizer
from specc.conversation import Conversation, common_prefix, interrupting
from specc.errors import RequestError
from specc.runtime import Artifact
from specc.templates import ChatTemplate

TEMPLATE = ChatTemplate(
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)
TOKENS = st.lists(st.integers(0, 3))


@given(TOKENS, TOKENS, TOKENS)
def test_common_prefix(shared: list[int], left: list[int], right: list[int]) -> None:
    a, b = shared + left, shared + right
    count = common_prefix(a, b)
    assert count >= len(shared)
    assert a[:count] == b[:count]
    assert count in (len(a), len(b)) or a[count] != b[count]


def open_artifact(path: Path) -> Artifact:
    artifact = Artifact.load(path)
    if not has_tokenizer(artifact):
        artifact.close()
        pytest.skip("the artifact has no tokenizer")
    return artifact


def test_turns_equal_fresh_runs(tiny_artifact: Path) -> None:
    with open_artifact(tiny_artifact) as artifact, artifact.session() as session:
        session.configure(max_tokens=6, ignore_eos=True)
        talk = Conversation(artifact, session, TEMPLATE, system="be kind")
        shown: list[str] = []
        for number, text in enumerate(("hi", "and?", "so")):
            del shown[:]
            answer = talk.ask(text, shown.append)
            assert answer.text == "".join(shown)
            assert (answer.reused_tokens > 0) is (number > 0)
            rendered = TEMPLATE.render(talk.messages[:-1])
            ids = artifact.tokenize(rendered, add_special=False, parse_special=True)
            assert len(ids) == answer.prompt_tokens
            fresh = artifact.generate(ids, max_tokens=6, ignore_eos=True)
            assert answer.token_ids == fresh.token_ids
        assert [m["role"] for m in talk.messages] == ["system", *["user", "assistant"] * 3]
        talk.reset()
        assert [m["role"] for m in talk.messages] == ["system"]


def test_a_question_that_does_not_fit_is_not_kept(tiny_artifact: Path) -> None:
    with open_artifact(tiny_artifact) as artifact, artifact.session() as session:
        session.configure(max_tokens=4, ignore_eos=True)
        talk = Conversation(artifact, session, TEMPLATE)
        with pytest.raises(RequestError, match="SPECC-E0603"):
            talk.ask("x" * 50000, print)
        assert talk.messages == []
        assert talk.ask("hi", lambda piece: None).token_ids


def test_interrupting_an_answer_keeps_what_was_said(tiny_artifact: Path) -> None:
    with open_artifact(tiny_artifact) as artifact, artifact.session() as session:
        session.configure(max_tokens=40, ignore_eos=True)
        talk = Conversation(artifact, session, TEMPLATE)
        answer = talk.ask("hi", lambda piece: os.kill(os.getpid(), signal.SIGINT))
        assert answer.finish_reason == "cancelled"
        assert 0 < len(answer.token_ids) < 40
        assert talk.messages[-1]["content"] == answer.text
        assert len(talk.ask("again", lambda piece: None).token_ids) == 40


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A process started in the background ignores SIGINT, and tests may be."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_handled_while_another_thread_works() -> None:
    cancelled = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert cancelled.wait(60)

    with interrupting(cancelled.set):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert cancelled.is_set()
    with pytest.raises(KeyboardInterrupt):
        _interrupt()


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)
