"""Logprobs in OpenAI's forms, and a prompt's in vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specc.runtime import Logprobs
from specc.serve.bodies import Body, ChatBody, CompletionBody
from specc.serve.scheduler import Event

Decode = Callable[[Sequence[int]], str]
"""Text of token ids, special ones too."""

_LEAST = -9999.0
"""JSON has no infinity: what vLLM says of a token that cannot be."""


class Told:
    """The logprobs of one choice that were not sent yet."""

    def __init__(self, decode: Decode, body: Body, prompt_ids: Sequence[int]) -> None:
        """`prompt_ids` are told of as `body` asks: among what is said if they are echoed, or in `of_prompt`."""
        self._decode, self._prompt_ids = decode, prompt_ids
        self._chat = isinstance(body, ChatBody)
        self._echoed = isinstance(body, CompletionBody) and body.echo and body.most_logprobs >= 0
        self._most, self._most_of_prompt = body.most_logprobs, body.prompt_logprobs
        self._waiting: list[tuple[int, Logprobs | None]] = []
        self._offset = 0
        self.of_prompt: dict[str, Any] = {}
        """vLLM's field `prompt_logprobs`, once it is known; nothing if it was not asked for."""

    def add(self, event: Event) -> None:
        """Those of a choice's prompt and next tokens."""
        prompt = list(zip(self._prompt_ids, event.prompt_logprobs, strict=False))
        if self._echoed:
            self._waiting += prompt
        if prompt and self._most_of_prompt is not None:
            told = [self._ranked(*each, self._most_of_prompt) for each in prompt]
            self.of_prompt = {"prompt_logprobs": told}
        self._waiting += zip(event.token_ids, event.logprobs, strict=False)

    def take(self) -> dict[str, Any] | None:
        """Those that wait, in the form for their place in an answer; None if there are none."""
        taken, self._waiting = self._waiting, []
        if not taken:
            return None
        return self._chat_form(taken) if self._chat else self._completion_form(taken)

    def _chat_form(self, taken: list[tuple[int, Logprobs | None]]) -> dict[str, Any]:
        content = [
            self._entry(token, found.token)
            | {"top_logprobs": [self._entry(other, value) for other, value in found.top]}
            for token, found in taken
            if found is not None
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._decode([token])
        return {"token": text, "logprob": max(logprob, _LEAST), "bytes": list(text.encode())}

    def _completion_form(self, taken: list[tuple[int, Logprobs | None]]) -> dict[str, Any]:
        """`text_offset`: where each token's text begins, counted over tokens' texts one by one."""
        texts = [self._decode([token]) for token, _ in taken]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [f if f is None else max(f.token, _LEAST) for _, f in taken],
            "top_logprobs": [self._best(*each) for each in taken],
            "text_offset": offsets,
        }

    def _best(self, token: int, found: Logprobs | None) -> dict[str, float] | None:
        if found is None:
            return None
        best: dict[str, float] = {}
        for other, value in (*found.top[: self._most], (token, found.token)):  # the likeliest first
            # Pieces of characters share one text. Its likeliest counts: harnesses look for the best of all.
            best.setdefault(self._decode([other]), max(value, _LEAST))
        return best

    def _ranked(self, token: int, found: Logprobs | None, most: int) -> dict[str, Any] | None:
        """By token id, as vLLM has it: the token of the prompt, and the best in its place."""
        if found is None:
            return None
        best = [(token, found.token, found.rank)]
        best += [(other, value, place + 1) for place, (other, value) in enumerate(found.top[:most])]
        return {
            str(other): {
                "logprob": max(value, _LEAST), "rank": rank, "decoded_token": self._decode([other])
            }
            for other, value, rank in best
        }  # fmt: skip
