"""Tokens to text while they come: never part of a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Turns tokens into pieces of text whose concatenation is the text of all of them.

    A token may hold part of a character, and a token's text may depend on its neighbours. So what
    is decoded is the tokens since the last whole piece, together with the piece before it, and text
    that ends in U+FFFD waits for more.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._context = 0  # tokens from here on are decoded
        self._shown = 0  # tokens before this were given out

    def push(self, token: int) -> str:
        """Text that became whole with `token`; often empty."""
        self._ids.append(token)
        before = self._decode(self._ids[self._context : self._shown])
        text = self._decode(self._ids[self._context :])
        if len(text) <= len(before) or text.endswith(_UNFINISHED):
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        return text[len(before) :]

    def finish(self) -> str:
        """The rest, whole or not."""
        before = self._decode(self._ids[self._context : self._shown])
        text = self._decode(self._ids[self._context :])
        self._context = self._shown = len(self._ids)
        return text[len(before) :]
