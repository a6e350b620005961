"""What a text's tokens stand for, one after the other, is the text: for each way to write tokens."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from specc.errors import ModelError
from specc.ir.importers.token_bytes import decoded_bytes, token_bytes

TEXT = "caf\u00e9 \u6771\U0001f642  two\n spaces"
HEX = {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}


def byte_level() -> Tokenizer:
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: index for index, name in enumerate([*names, "sp", "\u0120tw"])}
    merges = [("s", "p"), ("\u0120", "t"), ("\u0120t", "w")]
    made = Tokenizer(models.BPE({**vocabulary, "\u0120t": len(vocabulary)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def byte_fallback() -> Tokenizer:
    """As Gemma's: spaces are written as \u2581, and what has no token goes byte by byte."""
    letters = ["\u2581", *"acefnopstw"]
    vocabulary = {"<unk>": 0, **HEX, **{name: 257 + i for i, name in enumerate(letters)}}
    vocabulary |= {"\u2581t": 300, "<0x": 301}
    made = Tokenizer(
        models.BPE(vocabulary, [("\u2581", "t")], unk_token="<unk>", byte_fallback=True)
    )
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return made


def metaspace() -> Tokenizer:
    """As in T5 or Llama 1 through `Unigram`."""
    pieces = [("<unk>", -9.0), *((name, -5.0) for name in HEX), ("\u2581", -2.0), ("spaces", -1.0)]
    made = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    made.decoder = decoders.Sequence(
        [decoders.Metaspace(prepend_scheme="never"), decoders.ByteFallback(), decoders.Fuse()]
    )
    return made


@pytest.mark.parametrize("make", [byte_level, byte_fallback, metaspace])
def test_bytes_of_a_texts_tokens_are_the_text(make: object) -> None:
    tokenizer: Tokenizer = make()  # type: ignore[operator]
    found = token_bytes(tokenizer.to_str())
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert b"".join(found.text[i] for i in ids) == TEXT.encode()
    assert any(len(found.text[i]) > 1 for i in ids)


def test_a_pattern_is_refused() -> None:
    tokenizer = byte_fallback()
    tokenizer.decoder = decoders.Replace(Regex("\u2581+"), " ")
    with pytest.raises(ModelError, match="SPECC-E0231"):
        token_bytes(tokenizer.to_str())


def test_special_tokens_are_names() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.add_tokens([AddedToken("caf\u00e9", special=False)])
    found = token_bytes(tokenizer.to_str())
    assert found.special == {tokenizer.token_to_id("<end>"): "<end>"}
    assert found.text[tokenizer.token_to_id("caf\u00e9")] == "caf\u00e9".encode()


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_decoded_bytes_are_what_tokenizers_decodes(make: object) -> None:
    tokenizer: Tokenizer = make()  # type: ignore[operator]
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.add_tokens(
        [AddedToken("\u2581\u2581", special=False), AddedToken("caf\u00e9", special=False)]
    )
    found = decoded_bytes(tokenizer.to_str())
    assert tokenizer.token_to_id("<end>") not in found
    around = tokenizer.encode("spaces", add_special_tokens=False).ids
    for name in ("\u2581\u2581", "caf\u00e9"):
        ids = [*around, tokenizer.token_to_id(name), *around]
        text = b"".join(found[i] for i in ids).decode(errors="replace")
        assert text == tokenizer.decode(ids)
