"""Tokens to text while they come: never part of a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_MOST_WAITING = 3
"""Bytes, and so U+FFFD, at the end of a text that more tokens may make a character: UTF-8 has at most 4."""


class TextStream:
    """Turns tokens into pieces of text whose concatenation is the text of all of them.

    A token may hold part of a character, and a token's text may depend on its neighbours. So what
    is decoded is the tokens since the last whole piece, together with the piece before it, and text
    that ends in U+FFFD waits for more; of bytes that are no character, those that none can become are given out.
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
        if text.endswith(_UNFINISHED):
            return self._hopeless(before, text)
        if len(text) <= len(before):
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        return text[len(before) :]

    def _hopeless(self, before: str, text: str) -> str:
        """Of `text`, what follows `before` and comes too early to be part of an unfinished character."""
        final = len(text) - _MOST_WAITING
        if final <= len(before):
            return ""
        for end in range(len(self._ids) - 1, self._shown, -1):
            part = self._decode(self._ids[self._context : end])
            if len(before) < len(part) <= final and text.startswith(part):
                # (A character's bytes are told from stray ones by what stands before them.)
                self._context, self._shown = max(self._context, end - _MOST_WAITING - 1), end
                return part[len(before) :]
        return ""

    def finish(self) -> str:
        """The rest, whole or not."""
        before = self._decode(self._ids[self._context : self._shown])
        text = self._decode(self._ids[self._context :])
        self._context = self._shown = len(self._ids)
        return text[len(before) :]


class StopStrings:
    """Ends a text where a stop string begins, however the text comes in pieces.

    The stop string that is complete first counts, of several complete at once the longest. What
    may still become one is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """Text that is sure, and whether a stop string ended it."""
        self._held += piece
        found = [(at + len(s), at) for s in self._stops if (at := self._held.find(s)) >= 0]
        if found:
            _, at = min(found)
            shown, self._held = self._held[:at], ""
            return shown, True
        kept = max((_overlap(self._held, s) for s in self._stops), default=0)
        sure = len(self._held) - kept
        shown, self._held = self._held[:sure], self._held[sure:]
        return shown, False

    def finish(self) -> str:
        """What was held back and became no stop string."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next(
        (n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0
    )
