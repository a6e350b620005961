"""libspecc.so through ctypes: prototypes, and C failures as coded errors."""

from __future__ import annotations

import ctypes as c
import hashlib
import os
import re
import threading
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specc.errors import ArtifactError, RequestError, SpeccError

INTERFACE_VERSION = 9
"""SPECC_INTERFACE_VERSION of the header that this binding was written for."""

OK, DONE, CANCELLED, INVALID, ARTIFACT, MEMORY, RUNTIME = range(7)
"""specc_result."""

Ids = c.POINTER(c.c_int64)
Floats = c.POINTER(c.c_float)
DrafterFunction = c.CFUNCTYPE(c.c_size_t, c.c_void_p, Ids, c.c_size_t, c.c_size_t, Ids)

MaskFunction = c.CFUNCTYPE(
    c.c_size_t, c.c_void_p, Ids, c.c_size_t, c.c_size_t, Ids, c.c_size_t, c.c_void_p, c.c_size_t
)

_ID_LIST = [c.c_void_p, Ids, c.c_size_t]
_DOUBLES = [c.POINTER(c.c_double)] * 3
PROTOTYPES: dict[str, tuple[object, list[object]]] = {
    "specc_version": (c.c_char_p, []),
    "specc_last_error": (c.c_char_p, []),
    "specc_artifact_load": (c.c_int, [c.c_char_p, c.c_int32, c.POINTER(c.c_void_p)]),
    "specc_artifact_free": (None, [c.c_void_p]),
    "specc_artifact_manifest": (c.c_char_p, [c.c_void_p]),
    "specc_artifact_threads": (c.c_int32, [c.c_void_p]),
    "specc_artifact_use_threads": (c.c_int, [c.c_void_p, c.c_int32]),
    "specc_tokenize": (
        c.c_int,
        [
            c.c_void_p, c.c_char_p, c.c_size_t, c.c_int32, c.c_int32, Ids, c.c_size_t,
            c.POINTER(c.c_size_t),
        ],
    ),
    "specc_detokenize": (
        c.c_int,
        [*_ID_LIST, c.c_int32, c.c_char_p, c.c_size_t, c.POINTER(c.c_size_t)],
    ),
    "specc_session_open": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "specc_session_close": (None, [c.c_void_p]),
    "specc_batch_open": (c.c_int, [c.c_void_p, c.c_int32, c.POINTER(c.c_void_p)]),
    "specc_batch_close": (None, [c.c_void_p]),
    "specc_batch_session": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "specc_batch_step": (c.c_int, [c.c_void_p, c.POINTER(c.c_void_p), c.c_size_t]),
    "specc_batch_stat": (c.c_int, [c.c_void_p, c.c_char_p, c.POINTER(c.c_double)]),
    "specc_session_set_int": (c.c_int, [c.c_void_p, c.c_char_p, c.c_int64]),
    "specc_session_set_float": (c.c_int, [c.c_void_p, c.c_char_p, c.c_double]),
    "specc_session_set_text": (c.c_int, [c.c_void_p, c.c_char_p, c.c_char_p]),
    "specc_session_set_ids": (c.c_int, [c.c_void_p, c.c_char_p, Ids, c.c_size_t]),
    "specc_session_set_logit_bias": (c.c_int, [c.c_void_p, Ids, Floats, c.c_size_t]),
    "specc_session_set_mask": (c.c_int, [c.c_void_p, MaskFunction, c.c_void_p]),
    "specc_session_logprobs": (
        c.c_int, [c.c_void_p, Floats, Ids, Floats, c.c_size_t, c.POINTER(c.c_size_t)],
    ),
    "specc_session_prompt_logprobs": (
        c.c_int,
        [c.c_void_p, c.c_size_t, Floats, Ids, Ids, Floats, c.c_size_t, c.POINTER(c.c_size_t)],
    ),
    "specc_session_set_stop_tokens": (c.c_int, _ID_LIST),
    "specc_session_set_drafter": (c.c_int, [c.c_void_p, DrafterFunction, c.c_void_p]),
    "specc_session_append": (c.c_int, _ID_LIST),
    "specc_session_rewind": (c.c_int, [c.c_void_p, c.c_size_t]),
    "specc_session_next": (c.c_int, [c.c_void_p, Ids]),
    "specc_session_generate": (c.c_int, [c.c_void_p, Ids, c.c_size_t, c.POINTER(c.c_size_t)]),
    "specc_session_finish_reason": (c.c_char_p, [c.c_void_p]),
    "specc_session_cancel": (None, [c.c_void_p]),
    "specc_session_stat": (c.c_int, [c.c_void_p, c.c_char_p, _DOUBLES[0]]),
    "specc_session_stat_position": (c.c_int, [c.c_void_p, c.c_size_t, *_DOUBLES[:2]]),
    "specc_session_stat_k": (c.c_int, [c.c_void_p, c.c_size_t, *_DOUBLES]),
    "specc_session_run": (
        c.c_int,
        [
            c.c_void_p, c.c_char_p, c.POINTER(Ids), c.POINTER(c.c_size_t), c.c_size_t, c.c_void_p,
            c.c_size_t, c.POINTER(c.c_size_t),
        ],
    ),
}  # fmt: skip


_lock = threading.Lock()
_loaded: dict[tuple[int, ...], c.CDLL] = {}
"""Libraries by the file they came from; they stay for good, as Python never unloads any."""


def map_library(path: Path) -> c.CDLL:
    """The library in this very file.

    By its path the dynamic linker would hand out what it loaded from there before, even if another
    file has that name since. So it gets a path by way of a descriptor, spelt as for no other file:
    "a//b" and "a/./b" mean the same, which gives a bit to spell at every slash.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        about = os.fstat(descriptor)
        key = (about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size)
        with _lock:
            if key not in _loaded:
                digest = hashlib.sha256(repr(key).encode()).digest()
                bits = f"{int.from_bytes(digest[:8], 'big'):064b}"
                spelling = "".join("./" if bit == "1" else "/" for bit in bits)
                unique = f"/proc/self/fd/{spelling}{descriptor}"
                # Without /proc (not Linux) by its path.
                _loaded[key] = c.CDLL(unique if os.path.exists(unique) else str(path))
            return _loaded[key]
    finally:
        os.close(descriptor)


def load_library(path: Path) -> c.CDLL:
    """Open libspecc.so, and check its interface version before anything else of it is touched."""
    try:
        library = map_library(path)
        version_of = library.specc_interface_version
    except (OSError, AttributeError) as error:
        raise ArtifactError(
            "SPECC-E0506", "the runtime library cannot be loaded", where=str(path),
            found=str(error), cure="compile the artifact again on this kind of machine",
        ) from error  # fmt: skip
    version_of.restype, version_of.argtypes = c.c_int32, []
    if (version := version_of()) != INTERFACE_VERSION:
        newer = version > INTERFACE_VERSION
        raise ArtifactError(
            "SPECC-E0503", "the runtime library speaks another interface version", where=str(path),
            expected=str(INTERFACE_VERSION), found=str(version),
            cure="update specc" if newer else "compile the artifact again",
        )  # fmt: skip
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def check(library: c.CDLL, result: int) -> int:
    """Pass on success (OK, DONE, CANCELLED); raise what specc_last_error says otherwise.

    The text belongs to the thread that made the call, so this must run on it, right after.
    """
    if result in (OK, DONE, CANCELLED):
        return result
    text: bytes = library.specc_last_error()
    raise error_from(text.decode("utf-8", "replace"), result)


_CODE = re.compile(r"(SPECC-E(\d{4})) ?(.*)")
_DETAIL = re.compile(r"  (where|expected|found|cure): ?(.*)")


def error_from(text: str, result: int = RUNTIME) -> SpeccError:
    """The error in specc_last_error's text; `result` decides its class if no code is in it."""
    lines = text.splitlines() or [""]
    head = _CODE.fullmatch(lines[0])
    details = {"where": "", "expected": "", "found": "", "cure": ""}
    last = ""
    for line in lines[1:]:
        if match := _DETAIL.fullmatch(line):
            last = match[1]
            details[last] = match[2]
        elif last:
            details[last] += f"\n{line}"
    if head is None:
        kind = ArtifactError if result == ARTIFACT else RequestError
        code = "SPECC-E0501" if result == ARTIFACT else "SPECC-E0600"
        return kind(code, lines[0] or f"the runtime failed with result {result}", **details)
    kind = ArtifactError if head[2].startswith("05") else RequestError
    return kind(head[1], head[3], **details)


def text(word: str) -> bytes:
    """A name for C, which reads it up to the first NUL: that, and what is no character, is never a name's."""
    return word.replace("\0", "\ufffd").encode("utf-8", "replace")


def int32(name: str, value: int) -> int:
    """`value`, if C's int holds it, which ctypes would cut. Raises RequestError (SPECC-E0601)."""
    if not -(1 << 31) <= value < 1 << 31:
        raise out_of_range(name, value, "a whole number of 32 bits")
    return value


def out_of_range(name: str, value: object, expected: str) -> RequestError:
    """The error (SPECC-E0601) for what the option `name` cannot be."""
    return RequestError(
        "SPECC-E0601", "an option is out of range", where=name, expected=expected,
        found=str(value)[:40], cure="choose another value",
    )  # fmt: skip


def id_array(ids: Iterable[Any], count: int) -> c.Array[c.c_int64]:
    """`count` token ids for C. Raises RequestError (SPECC-E0602) for what is no 64-bit integer."""
    try:
        # (ctypes alone would take an integer of more bits, and cut it.)
        return (c.c_int64 * count).from_buffer(array("q", list(ids)))
    except (TypeError, OverflowError) as error:
        raise RequestError(
            "SPECC-E0602", "token ids are integers of 64 bits", found=str(error),
            cure="pass a list of integers",
        ) from error  # fmt: skip
