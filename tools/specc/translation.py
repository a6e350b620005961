"""`--translate-tokens`: which of the drafter's tokens stands for each of the target's."""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Tokenizer

from specc.errors import ModelError
from specc.ir.importers.source import ImportedModel
from specc.ir.importers.token_bytes import token_bytes
from specc.passes.translate_tokens import TranslateTokens

LEAST_COMMON = 0.05
"""Of the smaller vocabulary, how much the other must have too: below, something else is wrong."""


def translation(target: ImportedModel, drafter: ImportedModel) -> TranslateTokens:
    """Compare the two vocabularies, by bytes.

    A token says the same as one of equal bytes; a special one as that of the same name, and the end and the
    beginning of a text as each other whatever they are called. What the drafter has no token for is read as the last
    piece that its tokenizer makes of the same bytes.

    Raises ModelError: SPECC-E0233 where one has no tokenizer, E0240 where too few tokens are common, or all.
    """
    if target.tokenizer_json is None or drafter.tokenizer_json is None:
        raise ModelError(
            "SPECC-E0233", "only one of target and drafter has a tokenizer, so there is nothing to translate by"
            if target.tokenizer_json or drafter.tokenizer_json else "neither target nor drafter has a tokenizer",
            cure="add tokenizer.json beside each",
        )  # fmt: skip
    ours, theirs = token_bytes(target.tokenizer_json), token_bytes(drafter.tokenizer_json)
    if ours == theirs:
        raise ModelError(
            "SPECC-E0240", "target and drafter have the same tokens, so there is nothing to translate",
            cure="leave out --translate-tokens",
        )  # fmt: skip
    count, known = target.program.model.vocab_size, drafter.program.model.vocab_size
    # (Of equal pieces the first counts.)
    pieces = {piece: token for token, piece in sorted(theirs.text.items(), reverse=True)}
    names = {name: token for token, name in sorted(theirs.special.items(), reverse=True)}
    same = {t: pieces[p] for t, p in ours.text.items() if p in pieces}
    same |= {t: names[n] for t, n in ours.special.items() if n in names}
    for token, other in _ends(target, drafter):
        same.setdefault(token, other)
    said = tuple(i if i < known else -1 for i in (same.get(t, -1) for t in range(count)))
    common, least = sum(i >= 0 for i in said), int(LEAST_COMMON * min(count, known))
    if common < least:
        raise ModelError(
            "SPECC-E0240", "target and drafter have too few tokens in common", expected=f"at least {least}",
            found=str(common), cure="choose another drafter",
        )  # fmt: skip
    tokenizer = Tokenizer.from_str(drafter.tokenizer_json)
    start = drafter.program.model.bos_token_id or 0
    read = tuple(
        i if i >= 0 else _near(ours.text.get(t, b""), tokenizer, pieces, start) for t, i in enumerate(said)
    )  # fmt: skip
    return TranslateTokens(read, said)


def _ends(target: ImportedModel, drafter: ImportedModel) -> Iterator[tuple[int, int]]:
    """Beginning and ends of a text, in the target's tokens and the drafter's."""
    here, there = target.program.model, drafter.program.model
    if here.bos_token_id is not None and there.bos_token_id is not None:
        yield here.bos_token_id, there.bos_token_id
    if there.eos_token_ids:
        yield from ((end, there.eos_token_ids[0]) for end in here.eos_token_ids)


def _near(piece: bytes, tokenizer: Tokenizer, pieces: dict[bytes, int], start: int) -> int:
    """The last token that the drafter would make of `piece`; `start` where there is no text in it."""
    try:
        found: list[int] = tokenizer.encode(piece.decode(), add_special_tokens=False).ids
    except UnicodeDecodeError:  # a part of a character
        return pieces.get(piece[-1:], start)
    return found[-1] if found else start
