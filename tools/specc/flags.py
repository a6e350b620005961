"""Values that several verbs take, and lists written as text."""

from __future__ import annotations

import ast
import difflib
import math
import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from cyclopts import Parameter

from specc import cache
from specc.errors import UsageError
from specc.runtime import ADAPTIVE, Manifest, Option

Json = Annotated[bool, Parameter(name="--json", negative="")]
Switch = Annotated[bool, Parameter(negative="")]
"""A flag without a `--no-` form."""

MOST_NODES = 256
"""Of a token tree; ir/trees.py says the same."""
_LONGEST_TREE = 1 << 16
MOST_SHARDS = 16
"""Devices of the largest server that specc knows."""

Isa = Literal["native", "avx2", "avx512", "neon"]


def bad_value(flag: str, expected: str, found: object, cure: str = "") -> UsageError:
    """The error for a value that a flag does not take."""
    return UsageError(
        "SPECC-E0103", f"{flag} has a value it cannot have", where=flag, expected=expected,
        found=str(found), cure=cure or f"correct {flag}",
    )  # fmt: skip


def conflict(what: str, cure: str, *, expected: str = "", found: str = "") -> UsageError:
    """The error for flags that do not go together, or of which one is missing."""
    return UsageError("SPECC-E0104", what, expected=expected, found=found, cure=cure)


def without_effect(when: str, given: Mapping[str, bool], instead: str = "") -> None:
    """Raise UsageError (SPECC-E0104) for the first flag that was given: none has an effect `when` it is so."""
    if found := next((flag for flag, is_there in given.items() if is_there), None):
        raise conflict(f"{found} has no effect {when}", f"{instead}leave out {found}")


def refused_by_mlc(what: str, *, expected: str = "", found: str = "") -> UsageError:
    """The error for what an MLC engine cannot do, with the way through specc's own library."""
    return UsageError(
        "SPECC-E0114", what, expected=expected, found=found,
        cure="leave out --format: specc's own library, which an app links by its C ABI, can (--backend tvm)",
    )  # fmt: skip


def integers(flag: str, text: str, least: int, most: int) -> tuple[int, ...]:
    """`0,2,4` as numbers within the bounds."""
    expected = f"numbers from {least} to {most} with commas between"
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise bad_value(flag, expected, text) from error
    if any(not least <= n <= most for n in numbers):
        raise bad_value(flag, expected, text)
    return numbers


def number_set(flag: str, text: str, least: int, most: int) -> tuple[int, ...]:
    """The same, ascending and each once."""
    return tuple(sorted(set(integers(flag, text, least, most))))


def probabilities(flag: str, text: str) -> tuple[float, ...]:
    """`0.8,0.6` as numbers from 0 to 1."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise bad_value(flag, "numbers from 0 to 1 with commas between", text) from error
    if any(not 0 <= v <= 1 for v in values):
        raise bad_value(flag, "numbers from 0 to 1 with commas between", text)
    return values


def options(flag: str, text: str) -> dict[str, float]:
    """`name=1,other=0.5` as numbers by name."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not equals or not name.strip() or not math.isfinite(number) or name.strip() in found:
            raise bad_value(flag, "NAME=NUMBER,NAME=NUMBER,...", text)
        found[name.strip()] = number
    return found


def tree(flag: str, text: str) -> int | tuple[tuple[int, ...], ...]:
    """How many nodes, or which: `24`, or paths of ranks, as in `[(0,), (1,), (0, 0)]`, vLLM's form."""
    expected = (
        f"a number from 1 to {MOST_NODES} (32 for drafts found in the text), or up to as many paths, "
        "as in [(0,), (1,), (0, 0)], for trained drafters"
    )
    wrong = bad_value(flag, expected, text if len(text) < 80 else text[:77] + "...")
    if text.strip().isdecimal():
        found = int(text) if len(text) < 9 else 0
        if not 1 <= found <= MOST_NODES:
            raise wrong
        return found
    if len(text) > _LONGEST_TREE:
        raise wrong
    try:
        paths = ast.literal_eval(text.strip())  # reads literals alone, runs nothing
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise wrong from error
    if not isinstance(paths, (list, tuple)) or not 1 <= len(paths) <= MOST_NODES:
        raise wrong
    for path in paths:
        if not isinstance(path, (list, tuple)) or not all(
            type(r) is int and 0 <= r < MOST_NODES for r in path
        ):
            raise wrong
    return tuple(tuple(path) for path in paths)


def shards(flag: str, text: str) -> tuple[int, str]:
    """How many, and by what if that is said: `4`, `rows:4` or `heads:4`."""
    way, colon, count = text.rpartition(":")
    ways = ("rows", "heads")
    if (
        (colon and way not in ways)
        or not count.isdecimal()
        or not 2 <= int(count[:9]) <= MOST_SHARDS
    ):
        raise bad_value(flag, f"2 to {MOST_SHARDS}, or rows: or heads: before it", text)
    return int(count), way


def arena(flag: str, text: str) -> tuple[tuple[tuple[int, int], ...], int]:
    """Parts of drafter and target, for texts of any length or up to and over 7,200 tokens, and bytes; () and 0: auto.

    `auto`, `30:70`, `30:70,20:80`, each with `@SIZE` or without.
    """
    expected = "auto, DRAFTER:TARGET or DRAFTER:TARGET,DRAFTER:TARGET, and @SIZE, as in 30:70@1.2G"
    wrong = bad_value(flag, expected, text)
    named, at, size = text.partition("@")
    held = cache.read_size(size) if at else 0
    if held is None or (at and held < 1):
        raise wrong
    if named == "auto":
        return (), held
    splits = [part.split(":") for part in named.split(",")]
    if len(splits) > 2 or any(len(s) != 2 for s in splits):
        raise wrong
    if not all(part.isdecimal() and 0 < len(part) < 5 and int(part) for s in splits for part in s):
        raise wrong
    return tuple((int(drafter), int(target)) for drafter, target in splits), held


def at_least(flag: str, value: float | None, least: float) -> None:
    """Refuse a number below `least`."""
    if value is not None and not value >= least:
        raise bad_value(flag, f"{least} or more", value)


def not_empty(flag: str, value: str | None, expected: str, cure: str = "") -> None:
    """Refuse a text of nothing but blanks."""
    if value is not None and not value.strip():
        raise bad_value(flag, expected, "nothing", cure)


def threads(value: int) -> None:
    """Refuse more threads than this process has CPUs: they would only wait for each other."""
    most = len(os.sched_getaffinity(0))
    if not 0 <= value <= most:
        raise bad_value(
            "--threads", f"0 to {most}, the CPUs this process may use", value,
            "leave the flag out: specc takes the physical cores",
        )  # fmt: skip


def cores(flag: str, text: str) -> set[int]:
    """`0-3` or `0,2,5` as CPUs that this process may use."""
    allowed = os.sched_getaffinity(0)
    wrong = bad_value(flag, f"CPUs of {sorted(allowed)}, as 0-3 or 0,2,5", text)
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isdecimal() and len(end) < 6 for end in ends):
            raise wrong
        named = set(range(int(ends[0]), int(ends[1]) + 1))
        if not named or not named <= allowed:
            raise wrong
        found |= named
    return found


def replicas(flag: str, text: str) -> tuple[int, int]:
    """`2`, or `1:4`: the least and the most."""
    least, colon, most = text.partition(":")
    ends = (least, most if colon else least)
    numbers = tuple(int(end) if end.isdecimal() and len(end) < 5 else 0 for end in ends)
    if not 1 <= numbers[0] <= numbers[1]:
        raise bad_value(flag, "a number, or two as in 1:4", text)
    return numbers[0], numbers[1]


def one_of(flag: str, value: str, known: Iterable[str]) -> None:
    """Refuse a word that is not known, with the one that was probably meant."""
    choices = tuple(known)
    if value in choices:
        return
    close = difflib.get_close_matches(value, choices, n=1)
    close += [c for c in choices if value and c.startswith(value)]
    cure = f"did you mean {close[0]}?" if close else ""
    raise bad_value(flag, f"one of {', '.join(choices)}", value, cure)


def draft_length(manifest: Manifest, k: int | None) -> int:
    """The option's value for `--num-speculative-tokens K`; adaptive if none was given."""
    if k is None or k == ADAPTIVE:
        return ADAPTIVE
    if k not in manifest.num_speculative_tokens:
        raise bad_value(
            "--num-speculative-tokens",
            f"one that was compiled: {', '.join(map(str, manifest.num_speculative_tokens))}",
            k,
            f"leave the flag out, or compile with --num-speculative-tokens 0,{max(k, 1)}",
        )
    return k


LENGTH_POLICIES = ("adaptive", "prompt-length", "aimd", "batch", "priority")
ALONE = ("prompt-length", "aimd")
"""Those that say how much is drafted, so that no K beside them can."""


def length_policy(manifest: Manifest, name: str, k: int) -> dict[str, Option]:
    """The engine's option for `--length-policy NAME`, none for what it does anyway; `k` is as `draft_length` has it."""
    flag = "--length-policy"
    kind, colon, texts = name.partition(":")
    one_of(flag, kind, LENGTH_POLICIES)
    if colon and (kind != "batch" or not texts.isdecimal() or not 0 < int(texts) < 1 << 31):
        raise bad_value(flag, "batch:N, texts that are made at once, for batch alone", name)
    if name == "adaptive":
        return {}
    if not manifest.speculates:
        raise conflict(
            f"{flag} has no meaning for an artifact that drafts nothing", "leave it out",
            found=f"method {manifest.method}",
        )  # fmt: skip
    if k != ADAPTIVE and kind in ALONE:
        raise conflict(
            f"--num-speculative-tokens and {flag} {kind} both say how much is drafted",
            "leave one of them out",
        )
    return {"length_policy": name}


def speculation(manifest: Manifest, k: int, policy: str = "adaptive") -> str:
    """One line: who drafts and how much, or that nobody does and why."""
    if not manifest.speculates:
        why = "method none" if manifest.method == "none" else "compiled for K=0 alone"
        return f"off ({why})"
    if k == 0:
        return "off (K=0 was asked for)"
    chosen = "K adaptive" if k == ADAPTIVE else f"K={k}"
    by = f"K by {policy}" if k == ADAPTIVE else f"{chosen} by {policy}"
    how = chosen if policy == "adaptive" else by
    named = manifest.drafter.host_drafter
    beside = f" with {named} beside it" if named not in (None, manifest.method) else ""
    return (
        f"{manifest.method}{beside}, {how}, {'lossless' if manifest.lossless else 'NOT lossless'}"
    )
