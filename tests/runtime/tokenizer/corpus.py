"""Texts that tokenizers get wrong, and plain ones."""

# ruff: noqa: RUF001 (letters that look alike are what tokenizers are about)

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

SCRIPTS = [
    "The quick brown fox jumps over the lazy dog. It's 1,234,567.89 they'LL we'Ve I'm can'T don’t",
    "Größe, naïve façade; Ångström — „Zitat“ … ½ × ² № ™",
    "Привет, мир! Это проверка токенизатора. Ёлка",
    "Γειά σου Κόσμε ΟΔΟΣ οδός",
    "नमस्ते दुनिया क्षत्रिय १२३",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง ๑๒๓",
    "مرحبا بالعالم ١٢٣ لا إله",
    "שלום עולם, זה מבחן",
    "日本語のテキスト、カタカナ・ひらがな。全角ＡＢＣ１２３",
    "中文文本测试，没有空格的句子。龘",
    "한국어 텍스트 테스트 각",
    "🎉🔥 ∑ 👩‍👩‍👧‍👦 🇩🇪🇫🇷 👍🏽 ❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "e\u0301 a\u0308\u0323 a\u0323\u0308 \u1e69 s\u0307\u0323 ﬁ ﬃ ĳ Ⅷ ㎏ ｶﾞ Å \u212b \u0344 \u0958 ﷺ",
    'def f(x: int) -> str:\n    return f"{x!r:>10}"  # comment\n\n\n\tif a<=b&&c!=d: pass\r\n',
    "   leading  and   trailing   ",
    "\n\n\n  \n \t \r\n\r \u00a0\u2003\u3000x\u200b\u2028y\u0085z",
    "<s>[INST] not special [/INST]</s> <|im_start|>user\nhi<|im_end|>",
    "0123456789 12 345 6789 1.5e-10 0xFF １２３ ②③ ൰ Ⅳ",
    "'s 'S 'ſ 'T 're 'RE 'lL 'Ve 'd'm'x",
    "HTTPServerXMLParser camelCase SCREAMING_SNAKE ǅ ǈabc ʰʱ ªº",
    "▁ ▁▁ a▁b <0x41> <0xZZ> <unk> Ġ Ċ",
    "http://example.com/a/b?c=d&e=f#g user@example.org C:\\path\\to",
    "\x00\x01\x02\x7f\x80\x9f\ufffe\uffff\ufffd\ufeff",
]


def random_text(rng: random.Random, length: int) -> str:
    """Code points of all planes, many of them unassigned, and runs of the same kind."""
    pools = [
        (0x20, 0x7E),
        (0x00, 0x24F),
        (0x300, 0x36F),
        (0x370, 0x1FFF),
        (0x2000, 0x2BFF),
        (0x3040, 0x9FFF),
        (0xAC00, 0xD7A3),
        (0xE000, 0xFFFF),
        (0x10000, 0x1FFFF),
        (0x1F300, 0x1FAFF),
        (0x20000, 0x10FFFF),
    ]
    parts = []
    while len(parts) < length:
        low, high = rng.choice(pools)
        for _ in range(rng.randint(1, 6)):
            parts.append(chr(rng.randint(low, high)))
        if rng.random() < 0.4:
            parts.append(rng.choice(["", " ", "  ", "\n", " \n", "\t", "\r\n", "\u00a0", "'"]))
    return "".join(parts)


def shuffled_text(rng: random.Random, words: list[str]) -> str:
    """Snippets of real texts glued in ways that no writer would."""
    glue = ["", " ", "  ", "\n", "\n\n", "\t", " \n ", "0", "-", "'s", "▁"]
    return "".join(rng.choice(words) + rng.choice(glue) for _ in range(rng.randint(1, 12)))


def library_text(limit: int) -> str:
    """Texts that come with Python: prose, code, tables."""
    root = Path(sysconfig.get_paths()["stdlib"])
    names = [
        "LICENSE.txt",
        "this.py",
        "textwrap.py",
        "pydoc_data/topics.py",
        "turtledemo/wikipedia.py",
    ]
    texts = [(root / name).read_text(encoding="utf-8") for name in names if (root / name).exists()]
    return "\n".join(text[:limit] for text in texts)


def texts(added: list[str] | None = None, seed: int = 7) -> list[str]:
    """The corpus; `added` tokens are put between all kinds of neighbours."""
    rng = random.Random(seed)
    words = [word for line in SCRIPTS for word in line.split(" ")]
    library = library_text(12_000)
    result = ["", " ", "  ", "a", "\n", *SCRIPTS]
    result += [library[i : i + 1500] for i in range(0, len(library), 1500)]
    result += [random_text(rng, rng.randint(1, 60)) for _ in range(250)]
    result += [shuffled_text(rng, words) for _ in range(250)]
    result += [chr(rng.randrange(0xE000, 0x110000)) * rng.randint(1, 5) for _ in range(50)]
    result += [
        "x" * 3000,
        "ab" * 2000,
        " " * 2000,
        "\n" * 999,
        "é" * 1000,
        "日" * 700,
        "A" * 500 + "b",
    ]
    for token in added or []:
        for left, right in [
            ("", ""),
            ("a", "b"),
            (" ", " "),
            ("x  ", "  y"),
            ("é\n", "\n日"),
            ("<", ">"),
        ]:
            result.append(left + token + right)
        result.append(token * 3)
        result.append(f"Hi {token} {rng.choice(added or [])}{token}\t{token}s")
    return result


def broken_bytes(seed: int = 3) -> list[bytes]:
    """Bytes that are not UTF-8."""
    rng = random.Random(seed)
    result = [
        b"\xff",
        b"a\xc3",
        b"\xe2\x82b",
        b"\xf0\x9f\x98",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
    ]
    result += [bytes(rng.choices(range(256), k=rng.randint(1, 40))) for _ in range(100)]
    whole = "".join(SCRIPTS).encode()
    for _ in range(100):
        start = rng.randrange(len(whole))
        result.append(whole[start : start + rng.randint(1, 30)])
    return result
