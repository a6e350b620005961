"""Logprobs in OpenAI's forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specc.runtime import Logprobs
from specc.serve.scheduler import Event

Decode = Callable[[Sequence[int]], str]
"""Text of token ids, special ones too."""


class Told:
    """The logprobs of one choice that were not sent yet."""

    def __init__(self, decode: Decode, *, chat: bool) -> None:
        self._decode, self._chat = decode, chat
        self._waiting: list[tuple[int, Logprobs]] = []
        self._offset = 0

    def add(self, event: Event) -> None:
        """Those of a choice's next tokens."""
        self._waiting += zip(event.token_ids, event.logprobs, strict=False)

    def take(self) -> dict[str, Any] | None:
        """Those that wait, in the form for their place in an answer; None if there are none."""
        taken, self._waiting = self._waiting, []
        if not taken:
            return None
        return self._chat_form(taken) if self._chat else self._completion_form(taken)

    def _chat_form(self, taken: list[tuple[int, Logprobs]]) -> dict[str, Any]:
        content = [
            self._entry(token, found.token)
            | {"top_logprobs": [self._entry(other, value) for other, value in found.top]}
            for token, found in taken
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def _completion_form(self, taken: list[tuple[int, Logprobs]]) -> dict[str, Any]:
        """`text_offset`: where each token's text begins, counted over tokens' texts one by one."""
        texts = [self._decode([token]) for token, _ in taken]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [found.token for _, found in taken],
            "top_logprobs": [
                {
                    self._decode([other]): value
                    for other, value in (*found.top, (token, found.token))
                }
                for token, found in taken
            ],
            "text_offset": offsets,
        }
