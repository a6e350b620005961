"""Tokenizers of every family in use, trained on the corpus by the `tokenizers` library."""

# ruff: noqa: RUF001 (letters that look alike are what tokenizers are about)

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI_WORDS = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
)

Make = Callable[[list[str]], Tokenizer]
FAMILIES: dict[str, Make] = {}


def family(make: Make) -> Make:
    FAMILIES[make.__name__] = make
    return make


def _changed(tokenizer: Tokenizer, **model: Any) -> Tokenizer:
    """The tokenizer with other settings of its model."""
    document = json.loads(tokenizer.to_str())
    document["model"].update(model)
    return Tokenizer.from_str(json.dumps(document))


def _byte_level(
    corpus: list[str],
    splits: list[pre_tokenizers.PreTokenizer],
    *,
    size: int = 1200,
    use_regex: bool = False,
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, last])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def _split(pattern: str, behavior: str = "isolated") -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior)


@family
def gpt2(corpus: list[str]) -> Tokenizer:
    tokenizer = _byte_level(corpus, [], use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


@family
def smollm(corpus: list[str]) -> Tokenizer:
    return _byte_level(corpus, [pre_tokenizers.Digits(individual_digits=True)], use_regex=True)


@family
def cl100k(corpus: list[str]) -> Tokenizer:
    return _byte_level(corpus, [pre_tokenizers.Split(Regex(CL100K), "removed", invert=True)])


@family
def llama3(corpus: list[str]) -> Tokenizer:
    tokenizer = _changed(_byte_level(corpus, [_split(LLAMA3)]), ignore_merges=True)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|> $B",
        special_tokens=[("<|begin_of_text|>", begin)],
    )
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template]
    )
    return tokenizer


@family
def llama3_words_without_merges(corpus: list[str]) -> Tokenizer:
    """Words of the vocabulary that no merge makes are found whole only when merges are ignored."""
    document = json.loads(llama3(corpus).to_str())
    for word in ("Ġquick", "Ġbrown", "12"):
        document["model"]["vocab"].setdefault(word, len(document["model"]["vocab"]) + 10)
    return Tokenizer.from_str(json.dumps(document))


@family
def qwen2(corpus: list[str]) -> Tokenizer:
    tokenizer = _byte_level(corpus, [_split(QWEN2)])
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


@family
def o200k(corpus: list[str]) -> Tokenizer:
    return _byte_level(corpus, [_split(O200K)])


@family
def deepseek(corpus: list[str]) -> Tokenizer:
    splits = [_split(r"\p{N}{1,3}"), _split("[一-龥぀-ゟ゠-ヿ]+"), _split(DEEPSEEK_WORDS)]
    return _byte_level(corpus, splits)


@family
def kimi(corpus: list[str]) -> Tokenizer:
    return _byte_level(corpus, [_split(KIMI_WORDS)])


@family
def falcon(corpus: list[str]) -> Tokenizer:
    digits = pre_tokenizers.Digits(individual_digits=False)
    splits = [
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(False),
        digits,
        _split("[0-9][0-9][0-9]"),
    ]
    tokenizer = _byte_level(corpus, splits[:1], use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)  # ByteLevel is not the last
    return tokenizer


@family
def command_r(corpus: list[str]) -> Tokenizer:
    tokenizer = _byte_level(corpus, [pre_tokenizers.Digits(individual_digits=True)], use_regex=True)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["<BOS_TOKEN>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<BOS_TOKEN> $A <|endoftext|>",
        special_tokens=[
            ("<BOS_TOKEN>", tokenizer.token_to_id("<BOS_TOKEN>")),
            ("<|endoftext|>", 0),
        ],
    )
    return tokenizer


def _with_bytes(corpus: list[str], size: int, *, fuse: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, limit_alphabet=150, show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def _begin(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


@family
def llama2(corpus: list[str]) -> Tokenizer:
    return _begin(_with_bytes(corpus, 1200))


@family
def mistral_metaspace(corpus: list[str]) -> Tokenizer:
    tokenizer = _begin(_with_bytes(corpus, 1200))
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    tokenizer.decoder = decoders.Metaspace("▁", "first")
    tokenizer.add_tokens(
        [AddedToken("[TOOL]", normalized=False), AddedToken("  ", normalized=False)]
    )
    return tokenizer


@family
def gemma(corpus: list[str]) -> Tokenizer:
    tokenizer = _with_bytes(corpus, 1200)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(2, 12)])
    tokenizer.add_tokens([AddedToken("▁" * n, normalized=False) for n in range(2, 8)])
    tokenizer.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    return tokenizer


@family
def bpe_unknown(corpus: list[str]) -> Tokenizer:
    """Some bytes are missing, unknown characters stay apart; the decoder only joins."""
    document = json.loads(_with_bytes(corpus, 900, fuse=False).to_str())
    for byte in range(0x90, 0xA0):
        document["model"]["vocab"].pop(f"<0x{byte:02X}>")
    document["decoder"] = None
    return Tokenizer.from_str(json.dumps(document))


@family
def bpe_unknown_fused(corpus: list[str]) -> Tokenizer:
    return _changed(bpe_unknown(corpus), fuse_unk=True)


def _unigram(corpus: list[str], *, byte_fallback: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=700,
        special_tokens=["<unk>", "<s>", "</s>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator([text[:300] for text in corpus[:60]], trainer)
    tokenizer.decoder = decoders.Metaspace()
    document = json.loads(tokenizer.to_str())
    if byte_fallback:
        document["model"]["byte_fallback"] = True
        document["model"]["vocab"] += [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]
    return _begin(Tokenizer.from_str(json.dumps(document)))


@family
def unigram(corpus: list[str]) -> Tokenizer:
    return _unigram(corpus, byte_fallback=False)


@family
def unigram_bytes(corpus: list[str]) -> Tokenizer:
    tokenizer = _unigram(corpus, byte_fallback=True)
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(right=False),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
    )
    return tokenizer


@family
def added_tokens(corpus: list[str]) -> Tokenizer:
    tokenizer = _byte_level(corpus, [_split(QWEN2)])
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_tokens(
        [
            AddedToken("<Left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("<Both>", lstrip=True, rstrip=True, normalized=True),
            AddedToken("word", single_word=True, normalized=False),
            AddedToken("Wörd", single_word=True, normalized=True),
            AddedToken("<a", normalized=False),
            AddedToken("<ab>", normalized=False),
            AddedToken("É È", normalized=True),
            AddedToken("日", normalized=False),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<SP>", lstrip=True, normalized=True, special=True)])
    return tokenizer


@family
def plain_words(corpus: list[str]) -> Tokenizer:
    """Splitting by words, decoding with spaces, and the remaining normalizers."""
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.NFKD(),
            normalizers.Nmt(),
            normalizers.Strip(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["?"], limit_alphabet=80, show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


@family
def delimiters(corpus: list[str]) -> Tokenizer:
    tokenizer = plain_words(corpus)
    tokenizer.normalizer = normalizers.Replace(Regex(r"(?<=\d),(?=\d)|(?<!a)\bb|^#|o$"), "é")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Punctuation("merged_with_next"),
            pre_tokenizers.CharDelimiterSplit("x"),
            pre_tokenizers.Split("a", "merged_with_previous"),
            pre_tokenizers.Split(Regex("(?>ab|a)c??(?:de){1,2}?|f{2}"), "contiguous"),
            pre_tokenizers.BertPreTokenizer(),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(Regex("[aeiou]+"), "*"), decoders.Fuse()]
    )
    return tokenizer
