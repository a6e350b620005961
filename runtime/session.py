"""One text in the making, over the C ABI."""

from __future__ import annotations

import ctypes as c
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeVar

from specc.errors import RequestError
from specc.runtime import native
from specc.runtime.manifest import Function, Manifest
from specc.runtime.owned import Owned
from specc.runtime.stats import LengthStats, PositionStats, Stats

ADAPTIVE = -1
"""The value of num_speculative_tokens and draft_depth that leaves the choice to the engine."""

AT_ONCE = 64
"""Tokens before the engine comes back to `generate`, so that Python hears of signals."""

Drafter = Callable[[list[int], int], Sequence[int]]
"""(committed ids, k) -> at most k ids that may follow."""

_N = TypeVar("_N", int, float)

Option = int | float | bool | str | Sequence[int] | Mapping[int, float]
"""A value of an option of specc.h: a number, a word, token ids, or a bias by token id."""


class TokenMask(Protocol):
    """What lets a token follow, a grammar for one."""

    def __call__(self, new: list[int], drafts: list[int], rows: list[memoryview[int]]) -> int:
        """How many of `drafts` may follow the `new` tokens of the text, one after the other.

        `rows`, one more than drafts, are bytes, all ones: bit v of row r (little-endian, by words of 32 bits)
        lets token v follow the first r drafts. Rows up to the answer must be filled in.
        """
        ...


@dataclass(frozen=True)
class Logprobs:
    """Natural logarithms of probabilities: of a token, and of the best ones by id, best first.

    `rank` is told of a prompt's tokens alone: 1 is the best.
    """

    token: float
    top: tuple[tuple[int, float], ...]
    rank: int = 0


COUNTS = (
    "rounds", "drafts", "draft_tokens", "accepted_tokens", "new_tokens", "prefill_tokens",
    "k_current", "depth_current", "cut_mismatch", "cut_grammar", "cut_confidence", "cut_stop",
    "cut_length", "found_drafts", "launches", "host_syncs", "thread_syncs",
)  # fmt: skip
_FLOATS = frozenset((
    "confidence_threshold", "draft_weight", "frequency_penalty", "min_p", "presence_penalty", "repetition_penalty",
    "temperature", "top_p",
))  # fmt: skip
NUMBERS = ("prefill_s", "decode_s", "draft_s", "round_s", "acceptance_ewma")


class Session(Owned):
    """Belongs to one thread at a time; only `cancel` may come from any.

    Closing it frees its state.
    """

    def __init__(
        self, library: c.CDLL, handle: int, manifest: Manifest, runner: object = None
    ) -> None:
        super().__init__(library, handle, library.specc_session_close)
        self._manifest = manifest
        self._runner = runner  # of graphs: as long as this session may call them
        self._tokens: list[int] = []
        self._appended = 0  # tokens, last
        self._cancelled = False
        self._callback: Any = None  # ctypes would let it be collected under C's feet
        self._mask_callback: Any = None
        self._callback_error: BaseException | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The committed text: prompts, and what `next` returned."""
        return tuple(self._tokens)

    def configure(self, **options: Option) -> None:
        """Set options by their names in specc.h: max_tokens, ignore_eos, seed, logit_bias, ..."""
        for name, value in options.items():
            self.set(name, value)

    def set(self, name: str, value: Option) -> None:
        """Set one option; raises RequestError SPECC-E0601 if it is unknown or out of range."""
        encoded, library = native.text(name), self._library
        if isinstance(value, str):
            self._check(library.specc_session_set_text(self.handle, encoded, native.text(value)))
            return
        if isinstance(value, Mapping):
            if name != "logit_bias":
                raise RequestError(
                    "SPECC-E0601", "there is no such option", expected="logit_bias", found=name,
                    cure="give numbers by token id to logit_bias alone",
                )  # fmt: skip
            ids = native.id_array(value.keys(), len(value))
            bias = (c.c_float * len(value))(*(_converted(float, name, v) for v in value.values()))
            self._check(library.specc_session_set_logit_bias(self.handle, ids, bias, len(value)))
            return
        if isinstance(value, Sequence):
            ids = native.id_array(value, len(value))
            self._check(library.specc_session_set_ids(self.handle, encoded, ids, len(value)))
            return
        if name in _FLOATS:
            real = _converted(float, name, value)
            self._check(library.specc_session_set_float(self.handle, encoded, real))
            return
        number = _converted(int, name, value)
        if number != value or not -(1 << 63) <= number < 1 << 63:
            raise native.out_of_range(name, value, "a whole number of 64 bits")
        self._check(library.specc_session_set_int(self.handle, encoded, number))

    def set_stop_tokens(self, ids: Sequence[int]) -> None:
        """Ids that end generation and are not returned."""
        self.set("stop_token_ids", ids)

    def set_mask(self, mask: TokenMask | None) -> None:
        """Let `mask` say in every row what may follow; None lets everything.

        What it raises, `next` raises.
        """

        def call(
            _user: object, committed: Any, prompt: int, count: int, drafts: Any, n: int,
            words: int, width: int,
        ) -> int:  # fmt: skip
            try:
                assert mask is not None
                block = memoryview((c.c_uint8 * ((n + 1) * width * 4)).from_address(words)).cast(
                    "B"
                )
                rows = [block[r * width * 4 : (r + 1) * width * 4] for r in range(n + 1)]
                return operator.index(mask(committed[prompt:count], drafts[:n], rows))
            except BaseException as error:
                self._callback_error = error
                return n + 1  # which the engine refuses

        wrapped = native.MaskFunction(call) if mask is not None else native.MaskFunction()
        self._check(self._library.specc_session_set_mask(self.handle, wrapped, None))
        self._mask_callback = wrapped if mask is not None else None

    def set_drafter(self, drafter: Drafter | None) -> None:
        """Draft with `drafter` in place of the artifact's own; None gives that back.

        What it raises, `next` raises; a token that was committed all the same is in `tokens`.
        """

        def call(_user: object, committed: Any, count: int, k: int, draft: Any) -> int:
            try:
                proposed = drafter(committed[:count], k) if drafter is not None else ()
                some = proposed[:k]
                for place, token in enumerate(native.id_array(some, len(some))):
                    draft[place] = token
                return len(proposed)  # too many is for the engine to refuse
            except BaseException as error:
                self._callback_error = error
                return 0

        wrapped = native.DrafterFunction(call) if drafter is not None else native.DrafterFunction()
        self._check(self._library.specc_session_set_drafter(self.handle, wrapped, None))
        self._callback = wrapped if drafter is not None else None

    def append(self, ids: Sequence[int]) -> bool:
        """Add prompt tokens and prefill. False if cancelled: then the text is as before."""
        array = native.id_array(ids, len(ids))
        result = self._check(self._library.specc_session_append(self.handle, array, len(ids)))
        self._cancelled = result == native.CANCELLED
        if not self._cancelled:
            self._tokens.extend(ids)
            self._appended = len(ids)
        return not self._cancelled

    def next(self) -> int | None:
        """The next committed token; None at the end, see `finish_reason`."""
        token = c.c_int64()
        result = self._library.specc_session_next(self.handle, c.byref(token))
        if result == native.OK:  # committed, whatever the drafter said
            self._tokens.append(token.value)
        self._heard(result)
        return token.value if result == native.OK else None

    def _heard(self, result: int) -> None:
        self._cancelled = result == native.CANCELLED
        if (error := self._callback_error) is not None:
            self._callback_error = None
            raise error
        self._check(result)

    def generate(self) -> list[int]:
        """Tokens until the end: rounds follow each other in the engine, which comes back after AT_ONCE tokens.

        Where something of the caller's drafts or masks, for each token, since that may fail.
        """
        if self._callback is not None or self._mask_callback is not None:
            return list(self.iterate())
        before = len(self._tokens)
        some, count, result = (c.c_int64 * AT_ONCE)(), c.c_size_t(), native.OK
        while result == native.OK:
            result = self._library.specc_session_generate(
                self.handle, some, AT_ONCE, c.byref(count)
            )
            self._tokens += some[: count.value]
            self._heard(result)
        return self._tokens[before:]

    def logprobs(self) -> Logprobs:
        """Of the token that `next` returned last, with the option `logprobs`; else RequestError (SPECC-E0607)."""
        token, count = c.c_float(), c.c_size_t()
        call = self._library.specc_session_logprobs
        self._check(call(self.handle, c.byref(token), None, None, 0, c.byref(count)))
        ids, best = (c.c_int64 * count.value)(), (c.c_float * count.value)()
        self._check(call(self.handle, c.byref(token), ids, best, count.value, c.byref(count)))
        return Logprobs(token.value, tuple(zip(ids, best, strict=True)))

    def prompt_logprobs(self) -> tuple[Logprobs | None, ...]:
        """Of each token of the last `append`, with the option `prompt_logprobs`; else RequestError (SPECC-E0607).

        None for the text's first token, which follows nothing.
        """
        token, rank, count = c.c_float(), c.c_int64(), c.c_size_t()
        own = c.byref(token), c.byref(rank)
        call = self._library.specc_session_prompt_logprobs
        told: list[Logprobs | None] = []
        ids, best, most = None, None, 0
        for index in range(self._appended):
            if not most:  # (the text's first token has none of the best)
                self._check(call(self.handle, index, *own, None, None, 0, c.byref(count)))
                most = count.value
                ids, best = (c.c_int64 * most)(), (c.c_float * most)()
            self._check(call(self.handle, index, *own, ids, best, most, c.byref(count)))
            top = tuple(zip(ids or (), best or (), strict=True))
            told.append(Logprobs(token.value, top, rank.value) if rank.value else None)
        return tuple(told)

    def iterate(self) -> Iterator[int]:
        """Tokens until the end."""
        while (token := self.next()) is not None:
            yield token

    def round(self) -> Iterator[int]:
        """The tokens of one round, which is played now if no batch played it; none at the end of the text."""
        while (token := self.next()) is not None:
            yield token
            if not self.stat("unread_tokens"):
                return

    def rewind(self, count: int) -> None:
        """Keep the first `count` tokens."""
        if not 0 <= count < 1 << 63:  # (ctypes would take others, and cut them)
            raise native.out_of_range("rewind", count, f"0 to {len(self._tokens)}")
        self._check(self._library.specc_session_rewind(self.handle, count))
        del self._tokens[count:]

    def cancel(self) -> None:
        """Stop at the next round boundary or prefill chunk; from any thread."""
        self._library.specc_session_cancel(self.handle)

    @property
    def finish_reason(self) -> str:
        """Why generation ended: stop, length, context, cancelled; empty while it goes on."""
        if self._cancelled:
            return "cancelled"
        text: bytes = self._library.specc_session_finish_reason(self.handle)
        return text.decode()

    def stat(self, name: str) -> float:
        """One statistic by the name of specc.h."""
        value = c.c_double()
        self._check(
            self._library.specc_session_stat(self.handle, native.text(name), c.byref(value))
        )
        return value.value

    @property
    def stats(self) -> Stats:
        """All statistics since the last append."""
        counts: dict[str, Any] = {name: int(self.stat(name)) for name in COUNTS}
        numbers: dict[str, Any] = {name: self.stat(name) for name in NUMBERS}
        lengths = self._manifest.num_speculative_tokens
        return Stats(
            **counts,
            **numbers,
            by_position=tuple(self._position(p) for p in range(lengths[-1])),
            per_k=tuple(self._length(i, k) for i, k in enumerate(lengths)),
        )

    def run(self, function: str, inputs: Mapping[str, Sequence[int]]) -> memoryview[Any]:
        """Run one function of the plan on this session's state, for tools.

        `inputs` by name, whole numbers alone. Returns its first output, shaped, as f32 or i64;
        empty if it has none.
        """
        declared = self._function(function)
        names = [value.name for value in declared.inputs]
        if set(inputs) != set(names):
            raise RequestError(
                "SPECC-E0601", f"{function} has other inputs", where=function,
                expected=", ".join(names), found=", ".join(inputs), cure="name each input once",
            )  # fmt: skip
        arrays = [native.id_array(inputs[n], len(inputs[n])) for n in names]
        pointers = (native.Ids * len(arrays))(*(c.cast(a, native.Ids) for a in arrays))
        counts = (c.c_size_t * len(arrays))(*map(len, arrays))
        buffer, dtype, shape = _output_of(declared, inputs)
        size = c.c_size_t()
        capacity = len(buffer)
        target = (c.c_char * capacity).from_buffer(buffer) if capacity else None
        self._check(
            self._library.specc_session_run(
                self.handle, function.encode(), pointers, counts, len(arrays), target, capacity,
                c.byref(size),
            )
        )  # fmt: skip
        view: memoryview[Any] = memoryview(buffer)
        if not capacity:
            return view
        return view.cast("f", shape) if dtype == "f32" else view.cast("q", shape)

    def _function(self, name: str) -> Function:
        if name not in self._manifest.functions:
            raise RequestError(
                "SPECC-E0601", f"the artifact has no function {name}",
                expected=", ".join(self._manifest.functions), cure="name one of these",
            )  # fmt: skip
        return self._manifest.functions[name]

    def _position(self, position: int) -> PositionStats:
        drafted, accepted = c.c_double(), c.c_double()
        call = self._library.specc_session_stat_position
        self._check(call(self.handle, position, c.byref(drafted), c.byref(accepted)))
        return PositionStats(int(drafted.value), int(accepted.value))

    def _length(self, index: int, k: int) -> LengthStats:
        rounds, seconds, tokens = c.c_double(), c.c_double(), c.c_double()
        call = self._library.specc_session_stat_k
        references = c.byref(rounds), c.byref(seconds), c.byref(tokens)
        self._check(call(self.handle, index, *references))
        return LengthStats(k, int(rounds.value), seconds.value, int(tokens.value))

    def _closed(self) -> RequestError:
        return RequestError("SPECC-E0607", "the session is closed", cure="open another one")


def _converted(kind: type[_N], name: str, value: Any) -> _N:
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError) as error:
        wanted = "a whole number of 64 bits" if kind is int else "a number"
        raise native.out_of_range(name, value, wanted) from error


def _output_of(
    function: Function, inputs: Mapping[str, Sequence[int]]
) -> tuple[bytearray, str, tuple[int, ...]]:
    """Room for the first output: its bytes, type and shape, with T from the inputs."""
    if not function.outputs:
        return bytearray(), "", ()
    output = function.outputs[0]
    rows = next((len(inputs[v.name]) for v in function.inputs if "T" in v.shape), 1)
    shape = tuple(rows if d == "T" else int(d) for d in output.shape)
    size = 4 if output.dtype == "f32" else 8
    return bytearray(prod(shape) * size), output.dtype, shape
