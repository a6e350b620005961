"""Text to train a drafter on: the target's own.

A drafter is right when it says what the target would, so the target writes its own lessons. It also makes up the
questions, by completing the beginning of a user's message (as Magpie does, arXiv 2406.08464): no text of others is
needed. Every sample is a line of JSON: `{"prompt": ids, "ids": ids of the answer, "kind": str}`.

Many samples are written at once, a pass for all: lessons want throughput, which an artifact that serves one reader does
not have.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import DynamicCache

from specc.distill.target import Teacher
from specc.errors import ModelError
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


ROWS = 192
"""Samples that are written at once."""


@dataclass(frozen=True)
class Sample:
    """A prompt, template and all, and what the target says to it."""

    prompt: list[int]
    ids: list[int]
    kind: str

    def line(self) -> str:
        """This sample as a line of a corpus file."""
        return json.dumps(asdict(self), separators=(",", ":"))


def write(
    teacher: Teacher, *, seed: int, answer_tokens: int = 256, rows: int = ROWS
) -> Iterator[Sample]:
    """Samples without end; the same seed gives the same ones on the same machine.

    Raises RequestError (SPECC-E0620) without a chat template, ModelError (SPECC-E0281) without a tokenizer.
    """
    text = teacher.imported.tokenizer_json
    if text is None:
        raise ModelError(
            "SPECC-E0281", "no drafter can be distilled from this target",
            where=teacher.imported.program.name, expected="a tokenizer", found="none",
            cure="write a corpus elsewhere and pass it with --corpus",
        )  # fmt: skip
    tokenizer: Any = Tokenizer.from_str(text)
    template = ChatTemplate.of_files(
        teacher.imported.tokenizer_files, teacher.imported.program.name
    )
    before, after = _user_turn(template)
    closing = tokenizer.encode(after, add_special_tokens=False).ids
    ends = teacher.imported.program.model.eos_token_ids
    choices = random.Random(seed)
    noise = torch.Generator(teacher.device).manual_seed(seed)
    while True:
        # One kind a time: answers of one kind are of about one length.
        (kind,) = choices.choices(list(WEIGHTS), list(WEIGHTS.values()))
        begun = [tokenizer.encode(before + choices.choice(SEEDS[kind])).ids for _ in range(rows)]
        asking = [QUESTION_TEMPERATURE] * rows
        questions = continued(teacher, begun, asking, QUESTION_TOKENS[kind], ends, noise)
        prompts = [
            [*start, *(t for t in question if t not in ends), *closing]
            for start, question in zip(begun, questions, strict=True)
        ]
        answering = [choices.choice(ANSWER_TEMPERATURES) for _ in range(rows)]
        answers = continued(teacher, prompts, answering, answer_tokens, ends, noise)
        for prompt, answer in zip(prompts, answers, strict=True):
            if len(answer) >= LEAST_ANSWER:
                yield Sample(prompt, answer, kind)


@torch.no_grad()
def continued(
    teacher: Teacher, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], most: int,
    ends: Sequence[int], noise: torch.Generator,
) -> list[list[int]]:  # fmt: skip
    """What the target says after each of `prompts`: up to `most` tokens, or up to one of `ends`, which is kept.

    Row i is drawn at temperatures[i]; 0 takes the likeliest token.
    """
    device, body = teacher.device, teacher.model.base_model
    longest = max(map(len, prompts))
    # Prompts end together, so that all rows take their next token at the same place.
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=device)
    seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    positions = (seen.cumsum(-1) - 1).clamp_min(0)
    heat = torch.tensor(temperatures, device=device)[:, None]
    head = teacher.head[: teacher.facts.vocab_size].to(teacher.dtype)
    said: list[list[int]] = [[] for _ in prompts]
    open_rows, cache = list(range(len(prompts))), DynamicCache()
    for _ in range(most):
        states: Any = body(
            input_ids=ids, attention_mask=seen, position_ids=positions, cache=cache, use_cache=True
        )
        tokens = _drawn((states.last_hidden_state[:, -1] @ head.T).float(), heat, noise)
        for row, token in zip(open_rows, tokens.tolist(), strict=True):
            said[row].append(token)
        going = [i for i, row in enumerate(open_rows) if said[row][-1] not in ends]
        if not going:
            break
        if len(going) < len(open_rows):
            kept = torch.tensor(going, device=device)
            open_rows = [open_rows[i] for i in going]
            cache.batch_select_indices(kept)
            tokens, seen, positions, heat = (x[kept] for x in (tokens, seen, positions, heat))
        ids, positions = tokens[:, None], positions[:, -1:] + 1
        seen = torch.cat([seen, seen.new_ones(len(seen), 1)], -1)
    return said


def _drawn(logits: Tensor, heat: Tensor, noise: torch.Generator) -> Tensor:
    """A token i64[B] of logits f32[B, V], by the inverse of its distribution; the likeliest where heat [B, 1] is 0."""
    tokens, hot = torch.argmax(logits, -1), heat[:, 0] > 0
    if hot.any():
        mass = torch.softmax(logits[hot] / heat[hot], -1).cumsum_(-1)
        at = torch.rand(len(mass), 1, device=mass.device, generator=noise) * mass[:, -1:]
        tokens[hot] = torch.searchsorted(mass, at, right=True)[:, 0].clamp_max(logits.shape[1] - 1)
    return tokens


def _user_turn(template: ChatTemplate) -> tuple[str, str]:
    """What stands before and after a user's message in a prompt."""
    mark = "\N{SNOWMAN}message\N{SNOWMAN}"
    text = template.render([{"role": "user", "content": mark}])
    before, _, after = text.partition(mark)
    return before, after
