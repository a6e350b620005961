"""Text to train a drafter on: the target's own.

A drafter is right when it says what the target would, so the target writes its own lessons. It also makes up the
questions, by completing the beginning of a user's message (as Magpie does, arXiv 2406.08464): no text of others is
needed. Every sample is a line of JSON: `{"prompt": ids, "ids": ids of the answer, "kind": str}`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from specc.runtime import Artifact
from specc.templates import ChatTemplate

SEEDS: Mapping[str, Sequence[str]] = {
    "chat": (
        "", "What", "How", "How do I", "How can I", "Why", "Why do", "Explain", "Describe", "Give me", "Tell me about",
        "Can you", "Could you explain", "I want to", "I need", "I'm planning", "What is the difference between",
        "What are the benefits of", "Write a short story about", "Write a poem about", "Write an email", "List five",
        "Help me", "Who was", "When did", "Create a", "Suggest", "Imagine", "Please", "My friend",
    ),
    "code": (
        "Write a Python function that", "Write a function to", "Write a Python class", "Write a program in C that",
        "Write a JavaScript function that", "Write an SQL query that", "Explain this code:\n```python\ndef",
        "Fix the bug in this code:\n```python\n", "Write unit tests for", "How do I use Python to",
        "Complete this function:\n```python\ndef", "Write a bash script that", "Implement", "Rewrite this loop",
    ),
    "summary": (
        "Summarize the following text:\n\n", "Summarize this article in two sentences:\n\n",
        "Give the main points of:\n\n",
        "Rewrite this paragraph in simple words:\n\n", "What is this text about?\n\n", "Correct the grammar of:\n\n",
        "Turn this into a bullet list:\n\n",
    ),
}  # fmt: skip
"""Beginnings of what a user says, by kind; the target completes them."""

QUESTION_TOKENS: Mapping[str, int] = {"chat": 48, "code": 64, "summary": 160}
"""The most tokens of a made-up question beyond its beginning."""

WEIGHTS: Mapping[str, int] = {"chat": 2, "code": 1, "summary": 1}
"""How often each kind is asked."""

QUESTION_TEMPERATURE = 0.8

ANSWER_TEMPERATURES = (0.0, 0.0, 0.7)
"""Answers take one of these: drafters meet greedy and sampled text."""

LEAST_ANSWER = 8
"""Shorter answers teach nothing."""


@dataclass(frozen=True)
class Sample:
    """A prompt, template and all, and what the target says to it."""

    prompt: list[int]
    ids: list[int]
    kind: str

    def line(self) -> str:
        """This sample as a line of a corpus file."""
        return json.dumps(asdict(self), separators=(",", ":"))


def write(artifact: Artifact, *, seed: int, answer_tokens: int = 256) -> Iterator[Sample]:
    """Samples without end. The same artifact and seed give the same ones, whatever drafts for it."""
    before, after = _user_turn(ChatTemplate.of_artifact(artifact.path))
    choices = random.Random(seed)
    ends = set(artifact.manifest.model.eos_token_ids)
    with artifact.session() as session:
        while True:
            (kind,) = choices.choices(list(WEIGHTS), list(WEIGHTS.values()))
            prompt = artifact.tokenize(before + choices.choice(SEEDS[kind]))
            session.rewind(0)
            session.configure(
                seed=choices.getrandbits(62), temperature=QUESTION_TEMPERATURE,
                max_tokens=QUESTION_TOKENS[kind],
            )  # fmt: skip
            session.append(prompt)
            question = [token for token in session.iterate() if token not in ends]
            prompt += question
            # What was asked is in the state; only what closes the turn is new.
            session.rewind(len(prompt))
            closing = artifact.tokenize(after, add_special=False)
            session.configure(
                temperature=choices.choice(ANSWER_TEMPERATURES), max_tokens=answer_tokens
            )
            session.append(closing)
            answer = list(session.iterate())
            if len(answer) >= LEAST_ANSWER:
                yield Sample([*prompt, *closing], answer, kind)


def _user_turn(template: ChatTemplate) -> tuple[str, str]:
    """What stands before and after a user's message in a prompt."""
    mark = "\N{SNOWMAN}message\N{SNOWMAN}"
    text = template.render([{"role": "user", "content": mark}])
    before, _, after = text.partition(mark)
    return before, after
