"""One text in the making, over the C ABI."""

from __future__ import annotations

import ctypes as c
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from types import TracebackType
from typing import Any, Self

from specc.errors import RequestError
from specc.runtime import native
from specc.runtime.manifest import Function, Manifest
from specc.runtime.stats import LengthStats, PositionStats, Stats

ADAPTIVE = -1
"""The value of num_speculative_tokens and draft_depth that leaves the choice to the engine."""

Drafter = Callable[[list[int], int], Sequence[int]]
"""(committed ids, k) -> at most k ids that may follow."""

_COUNTS = (
    "rounds", "drafts", "draft_tokens", "accepted_tokens", "new_tokens", "prefill_tokens",
    "k_current", "depth_current",
)  # fmt: skip
_NUMBERS = ("prefill_s", "decode_s", "draft_s", "round_s", "acceptance_ewma")


class Session:
    """Belongs to one thread at a time; only `cancel` may come from any.

    Close it, or use it in `with`.
    """

    def __init__(
        self, library: c.CDLL, handle: int, manifest: Manifest, runner: object = None
    ) -> None:
        self._library, self._handle, self._manifest = library, handle, manifest
        self._runner = runner  # of graphs: as long as this session may call them
        self._close = weakref.finalize(self, library.specc_session_close, handle)
        self._tokens: list[int] = []
        self._cancelled = False
        self._callback: Any = None  # ctypes would let it be collected under C's feet
        self._callback_error: BaseException | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The committed text: prompts, and what `next` returned."""
        return tuple(self._tokens)

    def configure(self, **options: int | float | bool) -> None:
        """Set options by their names in specc.h: max_tokens, ignore_eos, seed, ..."""
        for name, value in options.items():
            self.set(name, value)

    def set(self, name: str, value: int | float | bool) -> None:
        """Set one option; raises RequestError SPECC-E0601 if it is unknown or out of range."""
        encoded = name.encode()
        if name == "temperature":
            self._check(self._library.specc_session_set_float(self._open(), encoded, float(value)))
            return
        number = int(value)
        if number != value or not -(1 << 63) <= number < 1 << 63:
            raise RequestError(
                "SPECC-E0601", "an option is out of range", where=name,
                expected="a whole number of 64 bits", found=str(value), cure="choose another value",
            )  # fmt: skip
        self._check(self._library.specc_session_set_int(self._open(), encoded, number))

    def set_stop_tokens(self, ids: Sequence[int]) -> None:
        """Ids that end generation and are not returned."""
        array = native.id_array(ids, len(ids))
        self._check(self._library.specc_session_set_stop_tokens(self._open(), array, len(ids)))

    def set_drafter(self, drafter: Drafter | None) -> None:
        """Draft with `drafter` in place of the artifact's own; None gives that back.

        What it raises, `next` raises; a token that was committed all the same is in `tokens`.
        """

        def call(_user: object, committed: Any, count: int, k: int, draft: Any) -> int:
            try:
                proposed = drafter(committed[:count], k) if drafter is not None else ()
                for place, token in enumerate(proposed[:k]):
                    draft[place] = token
                return len(proposed)  # too many is for the engine to refuse
            except BaseException as error:
                self._callback_error = error
                return 0

        wrapped = native.DrafterFunction(call) if drafter is not None else native.DrafterFunction()
        self._check(self._library.specc_session_set_drafter(self._open(), wrapped, None))
        self._callback = wrapped

    def append(self, ids: Sequence[int]) -> bool:
        """Add prompt tokens and prefill. False if cancelled: then the text is as before."""
        array = native.id_array(ids, len(ids))
        result = self._check(self._library.specc_session_append(self._open(), array, len(ids)))
        self._cancelled = result == native.CANCELLED
        if not self._cancelled:
            self._tokens.extend(ids)
        return not self._cancelled

    def next(self) -> int | None:
        """The next committed token; None at the end, see `finish_reason`."""
        token = c.c_int64()
        result = self._library.specc_session_next(self._open(), c.byref(token))
        if result == native.OK:  # committed, whatever the drafter said
            self._tokens.append(token.value)
        self._cancelled = result == native.CANCELLED
        if (error := self._callback_error) is not None:
            self._callback_error = None
            raise error
        self._check(result)
        return token.value if result == native.OK else None

    def iterate(self) -> Iterator[int]:
        """Tokens until the end."""
        while (token := self.next()) is not None:
            yield token

    def rewind(self, count: int) -> None:
        """Keep the first `count` tokens."""
        self._check(self._library.specc_session_rewind(self._open(), count))
        del self._tokens[count:]

    def cancel(self) -> None:
        """Stop at the next round boundary or prefill chunk; from any thread."""
        self._library.specc_session_cancel(self._open())

    @property
    def finish_reason(self) -> str:
        """Why generation ended: stop, length, context, cancelled; empty while it goes on."""
        if self._cancelled:
            return "cancelled"
        text: bytes = self._library.specc_session_finish_reason(self._open())
        return text.decode()

    def stat(self, name: str) -> float:
        """One statistic by the name of specc.h."""
        value = c.c_double()
        self._check(self._library.specc_session_stat(self._open(), name.encode(), c.byref(value)))
        return value.value

    @property
    def stats(self) -> Stats:
        """All statistics since the last append."""
        counts: dict[str, Any] = {name: int(self.stat(name)) for name in _COUNTS}
        numbers: dict[str, Any] = {name: self.stat(name) for name in _NUMBERS}
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
                self._open(), function.encode(), pointers, counts, len(arrays), target, capacity,
                c.byref(size),
            )
        )  # fmt: skip
        view: memoryview[Any] = memoryview(buffer)
        if not capacity:
            return view
        return view.cast("f", shape) if dtype == "f32" else view.cast("q", shape)

    def close(self) -> None:
        """Free its state."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

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
        self._check(call(self._open(), position, c.byref(drafted), c.byref(accepted)))
        return PositionStats(int(drafted.value), int(accepted.value))

    def _length(self, index: int, k: int) -> LengthStats:
        rounds, seconds, tokens = c.c_double(), c.c_double(), c.c_double()
        call = self._library.specc_session_stat_k
        references = c.byref(rounds), c.byref(seconds), c.byref(tokens)
        self._check(call(self._open(), index, *references))
        return LengthStats(k, int(rounds.value), seconds.value, int(tokens.value))

    def _open(self) -> int:
        if not self._close.alive:
            raise RequestError("SPECC-E0607", "the session is closed", cure="open another one")
        return self._handle

    def _check(self, result: int) -> int:
        return native.check(self._library, result)


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
