"""The engine's sampler from Python: choose as the engine does, or play every outcome of chance."""

import ctypes
import dataclasses
import hashlib
import pathlib
import subprocess

import numpy as np
from filelock import FileLock

from specc import cache

HERE = pathlib.Path(__file__).parent
CPP = HERE.parents[2] / "runtime/cpp"
SOURCES = [
    HERE / "driver.cpp",
    *sorted((CPP / "core/sampling").glob("*.cpp")),
    CPP / "core/error.cpp",
]
FLAGS = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Werror",
    f"-I{CPP.parent / 'include'}",
]
RULES = {"match": 0, "rejection": 1, "block": 2}
LAWS = {"certain": 0, "temperature": 1, "processed": 2}
P, I64, F64 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
OUTCOME = ctypes.CFUNCTYPE(None, F64, I64, ctypes.POINTER(I64), ctypes.POINTER(ctypes.c_int32))


class _Params(ctypes.Structure):
    _fields_ = [
        *((name, F64) for name in ("temperature", "top_p", "min_p")),
        *((name, F64) for name in ("repetition", "frequency", "presence")),
        *((name, I64) for name in ("top_k", "min_tokens", "seed", "logprobs", "rule")),
        *((name, I64) for name in ("n_bias", "n_banned", "n_eos")),
        *((name, P) for name in ("bias_ids", "banned", "eos", "bias")),
    ]


class _Round(ctypes.Structure):
    _fields_ = [
        *((name, I64) for name in ("vocab_size", "prompt", "count", "stride", "draft_count")),
        *((name, I64) for name in ("allowed_words", "columns", "draft_stride", "ids_stride")),
        ("law", I64),
        *((name, P) for name in ("text", "drafts", "ids", "parents", "allowed")),
        *((name, P) for name in ("logits", "draft_logits")),
    ]


class SamplerError(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Params:
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    banned: tuple[int, ...] = ()
    min_tokens: int = 0
    eos: tuple[int, ...] = ()
    seed: int = 0
    logprobs: int = -1
    rule: str = "match"


@dataclasses.dataclass(frozen=True)
class Round:
    """`text`: the prompt's tokens, then `output`; `draft_law` as in sampler.h, `allowed`: bool [K+1, V]."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    logits: np.ndarray
    drafts: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    allowed: np.ndarray | None = None
    draft_logits: np.ndarray | None = None
    ids: np.ndarray | None = None
    law: str = "certain"


@dataclasses.dataclass(frozen=True)
class Sampled:
    tokens: list[int]
    rows: list[int]
    logprobs: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray

    @property
    def accepted(self):
        return len(self.tokens) - 1


class Sampler:
    def __init__(self, library):
        self.library = ctypes.CDLL(str(library))
        self.library.error_text.restype = ctypes.c_char_p
        for name in [
            "choose",
            "outcomes",
            "draft_outcomes",
            "keyed_choose",
            "keyed_pick",
            "draw_at",
        ]:
            getattr(self.library, name).restype = I64

    def _told(self, status):
        if status == -2:
            raise SamplerError(self.library.error_text().decode())
        return status

    def choose(self, params, around):
        rows, top = len(around.drafts) + 1, max(0, params.logprobs)
        tokens, at = np.zeros(rows, np.int64), np.zeros(rows, np.int32)
        logprobs, top_ids = np.zeros(rows, np.float32), np.zeros((rows, top), np.int64)
        top_logprobs = np.zeros((rows, top), np.float32)
        held, p, r = _structures(params, around)
        arrays = (tokens, at, logprobs, top_ids, top_logprobs)
        count = 1 + self._told(
            self.library.choose(p, r, *(P(array.ctypes.data) for array in arrays))
        )
        del held
        return Sampled(
            tokens[:count].tolist(), at[:count].tolist(), *(array[:count] for array in arrays[2:])
        )

    def outcomes(self, params, around, *, greedy_residual=False):
        """[(probability, tokens, rows)] of all ways that chance can decide."""
        found = []

        def note(probability, accepted, tokens, rows):
            found.append((probability, tuple(tokens[: accepted + 1]), tuple(rows[: accepted + 1])))

        held, p, r = _structures(params, around)
        self._told(self.library.outcomes(p, r, int(greedy_residual), OUTCOME(note)))
        del held
        return found

    def draft_law(self, params, around, j):
        """The law f64 [V] of the draft that follows around.drafts[:j], as Sampler::draft draws it."""
        law = np.zeros(around.logits.shape[1])

        def note(probability, _accepted, tokens, _rows):
            law[tokens[0]] += probability

        held, p, r = _structures(params, around)
        self._told(self.library.draft_outcomes(p, r, I64(j), OUTCOME(note)))
        del held
        return law

    def processed(self, params, around):
        row = np.zeros(around.logits.shape[1], np.float32)
        held, p, r = _structures(params, around)
        self.library.processed(p, r, P(row.ctypes.data))
        del held
        return row

    def law_of_row(self, params, row):
        """f64 [V]: after temperature, min_p, top_k and top_p."""
        row, law = np.ascontiguousarray(row, np.float32), np.zeros(len(row))
        around = Round((0,), (), row[None])
        held, p, _ = _structures(params, around)
        self.library.law_of_row(p, P(row.ctypes.data), I64(len(row)), P(law.ctypes.data))
        del held
        return law

    def keyed_choose(self, seed, row, temperature, position):
        row = np.ascontiguousarray(row, np.float32)
        return self.library.keyed_choose(
            I64(seed), P(row.ctypes.data), I64(len(row)), F64(temperature), I64(position)
        )

    def keyed_happens(self, seed, root, probability, j):
        return bool(self.library.keyed_happens(I64(seed), I64(root), F64(probability), I64(j)))

    def keyed_pick(self, seed, root, mass, purpose, index):
        """The place in `mass` of the token picked."""
        mass = np.ascontiguousarray(mass, np.float64)
        token = self.library.keyed_pick(
            I64(seed), I64(root), P(mass.ctypes.data), I64(len(mass)), I64(purpose), I64(index)
        )
        return token // 10

    def draw_at(self, mass, u):
        mass = np.ascontiguousarray(mass, np.float64)
        return self.library.draw_at(P(mass.ctypes.data), I64(len(mass)), F64(u))


def _structures(params, around):
    """The C structures, and what must be kept alive for them."""
    held = []

    def address(values, dtype):
        if values is None:
            return None
        array = np.ascontiguousarray(values, dtype)
        held.append(array)
        return array.ctypes.data

    p = _Params(
        *(params.temperature, params.top_p, params.min_p),
        *(params.repetition, params.frequency, params.presence),
        *(params.top_k, params.min_tokens, params.seed, params.logprobs, RULES[params.rule]),
        *(len(params.bias), len(params.banned), len(params.eos)),
        address([token for token, _ in params.bias], np.int64),
        address(params.banned, np.int64),
        address(params.eos, np.int64),
        address([bias for _, bias in params.bias], np.float32),
    )
    vocab_size = around.logits.shape[1]
    words = -(-vocab_size // 32)
    draft = around.draft_logits
    r = _Round(
        *(vocab_size, len(around.prompt), len(around.prompt) + len(around.output)),
        *(vocab_size, len(around.drafts), words),
        *((0, 0) if draft is None else (draft.shape[1], draft.shape[1])),
        *(
            0 if around.ids is None or around.ids.ndim == 1 else around.ids.shape[1],
            LAWS[around.law],
        ),
        address((*around.prompt, *around.output), np.int64),
        address(around.drafts, np.int64),
        address(around.ids, np.int64),
        address(around.parents, np.int32),
        address(None if around.allowed is None else packed(around.allowed), np.uint32),
        address(around.logits, np.float32),
        address(draft, np.float32),
    )
    return (held, p, r), ctypes.byref(p), ctypes.byref(r)


def packed(allowed):
    """bool [rows, V] -> u32 [rows, words], a bit for each token."""
    rows, vocab_size = allowed.shape
    wide = np.zeros((rows, -(-vocab_size // 32) * 32), bool)
    wide[:, :vocab_size] = allowed
    return np.packbits(wide, axis=1, bitorder="little").view("<u4")


def built():
    """The library, compiled once for these sources."""
    digest = hashlib.sha256(repr(FLAGS).encode())
    watched = [
        *HERE.glob("*.cpp"),
        *(CPP / "core/sampling").iterdir(),
        *(CPP / "model").glob("*.h"),
    ]
    for path in sorted(watched):
        digest.update(path.read_bytes())
    library = cache.folder() / "test-sampling" / f"{digest.hexdigest()[:32]}.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{library}.lock"):
        if not library.exists():
            made = library.with_suffix(".part")
            command = ["g++", *FLAGS, *SOURCES, "-o", made]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            made.rename(library)
    return library
