"""Which method drafts the next round of a text: rules from a file that may change while the server runs."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from specc.errors import SpeccError, UsageError
from specc.runtime import Manifest
from specc.runtime.fields import without_twins

_LOG = logging.getLogger(__name__)
OFF, REMOTE = "off", "remote"
SCHEMA = 1
_MOST_BYTES = 1 << 16
_MOST_RULES = 64
_HOLD_ROUNDS = 16
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one text before a round.

    `context`: its tokens; `batch`: texts in the making; `memory`: of the state that the server may hold, the part that
    is held; `draft_service`: whether one is there and well.
    """

    context: int
    batch: int = 1
    memory: float = 0.0
    draft_service: bool = False


@dataclass(frozen=True, slots=True)
class When:
    """Conditions that must all hold; None is no condition."""

    context_over: int | None = None
    context_under: int | None = None
    batch_over: int | None = None
    batch_up_to: int | None = None
    memory_over: float | None = None
    memory_below: float | None = None
    draft_service_healthy: bool | None = None

    def holds(self, facts: Facts) -> bool:
        """Whether they do."""
        return (
            (self.context_over is None or facts.context > self.context_over)
            and (self.context_under is None or facts.context < self.context_under)
            and (self.batch_over is None or facts.batch > self.batch_over)
            and (self.batch_up_to is None or facts.batch <= self.batch_up_to)
            and (self.memory_over is None or facts.memory > self.memory_over)
            and (self.memory_below is None or facts.memory < self.memory_below)
            and (
                self.draft_service_healthy is None
                or facts.draft_service == self.draft_service_healthy
            )
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """`method` drafts when all of `when` holds."""

    method: str
    when: When = When()


@dataclass(frozen=True)
class Policy:
    """The first rule that holds and whose method is ready; else `otherwise`, or nothing where that is not.

    `hold_rounds`: how many decisions in a row must want another method before a text changes over.
    """

    rules: tuple[Rule, ...]
    otherwise: str
    hold_rounds: int = _HOLD_ROUNDS

    def wanted(self, facts: Facts) -> str:
        """The method for a text of these facts, without regard to what it has now."""
        for rule in self.rules:
            if rule.when.holds(facts) and (rule.method != REMOTE or facts.draft_service):
                return rule.method
        return OFF if self.otherwise == REMOTE and not facts.draft_service else self.otherwise


class Decision:
    """What drafts for one text, from round to round."""

    def __init__(self) -> None:
        self.method = ""
        self._wanted, self._rounds = "", 0

    def next(self, policy: Policy, facts: Facts) -> str:
        """The method of the next round."""
        wanted = policy.wanted(facts)
        if wanted == self.method:
            self._rounds = 0
            return wanted
        self._rounds = self._rounds + 1 if wanted == self._wanted else 1
        self._wanted = wanted
        gone = self.method == REMOTE and not facts.draft_service
        if not self.method or gone or self._rounds >= policy.hold_rounds:
            self.method, self._rounds = wanted, 0
        return self.method


def methods_of(manifest: Manifest, *, draft_service: bool) -> tuple[str, ...]:
    """What a policy for this artifact may name, its own method first."""
    drafter = manifest.drafter
    named = [drafter.kind, drafter.host_drafter or ""] if manifest.speculates else []
    remote = [REMOTE] if draft_service else []
    return tuple(dict.fromkeys([*filter(None, named), *remote, OFF]))


def usual(methods: Collection[str]) -> Policy:
    """Without a file: the draft service while it is well, else the artifact's own method."""
    own = next(iter(methods))
    rules = (Rule(REMOTE),) if REMOTE in methods else ()
    return Policy(rules, OFF if own == REMOTE else own, hold_rounds=1)


class PolicyFile:
    """A policy that is read again when its file changes. One that cannot be used is told of, and changes nothing."""

    def __init__(self, path: Path, methods: Collection[str]) -> None:
        """Read it; raises UsageError (SPECC-E0721, E0722)."""
        self._path, self._methods = path, methods
        self._seen = self._stamp()
        self.policy = read(path, methods)
        self.refused = 0

    def look(self) -> None:
        """Read it if it has changed."""
        if (stamp := self._stamp()) == self._seen:
            return
        self._seen = stamp
        try:
            self.policy = read(self._path, self._methods)
        except SpeccError as error:
            self.refused += 1
            _LOG.error("the policy stays as it was: %s", error)

    def _stamp(self) -> tuple[int, ...]:
        try:
            about = self._path.stat()
        except OSError:
            return ()
        return about.st_mtime_ns, about.st_size, about.st_ino


class Dispatcher:
    """The policy of a server: one from a file, looked at every second, or the usual one."""

    def __init__(self, manifest: Manifest, file: Path | None, *, draft_service: bool) -> None:
        """Raises UsageError (SPECC-E0721, E0722) for a file that this artifact cannot follow."""
        self.methods = methods_of(manifest, draft_service=draft_service)
        self.file = None if file is None else PolicyFile(file, self.methods)
        self._usual = usual(self.methods)
        self._next_look = 0.0

    @property
    def names(self) -> bool:
        """Whether somebody named the methods, so that each drafts alone: no drafter stands beside it."""
        return self.file is not None

    @property
    def policy(self) -> Policy:
        """What it says now."""
        return self._usual if self.file is None else self.file.policy

    def look(self) -> None:
        """Between turns: see whether the file has changed."""
        if self.file is not None and (now := time.monotonic()) >= self._next_look:
            self._next_look = now + _LOOK_S
            self.file.look()


def read(path: Path, methods: Collection[str]) -> Policy:
    """The policy in a file. Raises UsageError: SPECC-E0721 for what is none, E0722 for methods that are not there."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise _wrong(path, f"at most {_MOST_BYTES} bytes", "more")
        found = json.loads(data, object_pairs_hook=without_twins)
    except OSError as error:
        raise _wrong(path, "a file that can be read", error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _wrong(path, "JSON", str(error)) from error
    policy = _policy(path, found)
    for method in (*(rule.method for rule in policy.rules), policy.otherwise):
        if method not in methods:
            raise UsageError(
                "SPECC-E0722", f"the artifact does not hold the method {method}", where=str(path),
                expected=", ".join(methods), found=method,
                cure="compile with --host-drafter, give serve a --draft-socket, or name one that is there",
            )  # fmt: skip
    return policy


def _policy(path: Path, found: Any) -> Policy:
    top = _object(
        path, "the policy", found, {"schema_version", "rules", "otherwise", "hold_rounds"}
    )
    if top.get("schema_version") != SCHEMA or isinstance(top.get("schema_version"), bool):
        raise _wrong(path, f"schema_version {SCHEMA}", repr(top.get("schema_version")))
    hold = top.get("hold_rounds", _HOLD_ROUNDS)
    if type(hold) is not int or not 1 <= hold <= 10_000:
        raise _wrong(path, "hold_rounds from 1 to 10000", repr(hold))
    rules = top.get("rules", [])
    if not isinstance(rules, list) or len(rules) > _MOST_RULES:
        raise _wrong(path, f"rules, at most {_MOST_RULES} of them", type(rules).__name__)
    return Policy(
        tuple(_rule(path, f"rules[{i}]", rule) for i, rule in enumerate(rules)),
        _method(path, "otherwise", top.get("otherwise")), hold,
    )  # fmt: skip


def _rule(path: Path, where: str, found: Any) -> Rule:
    rule = _object(path, where, found, {"method", "when"})
    kinds = {f.name: str(f.type) for f in fields(When)}
    when = _object(path, f"{where}.when", rule.get("when", {}), set(kinds))
    for name, value in when.items():
        place = f"{where}.when.{name}"
        if "bool" in kinds[name]:
            if type(value) is not bool:
                raise _wrong(path, f"true or false at {place}", repr(value))
        elif "float" in kinds[name]:
            if type(value) not in (int, float) or not 0 <= value <= 1:
                raise _wrong(path, f"a part from 0 to 1 at {place}", repr(value))
        elif type(value) is not int or not 0 <= value < 1 << 31:
            raise _wrong(path, f"a count at {place}", repr(value))
    return Rule(_method(path, f"{where}.method", rule.get("method")), When(**when))


def _object(path: Path, where: str, found: Any, keys: set[str]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _wrong(path, f"an object at {where}", type(found).__name__)
    if strange := sorted(found.keys() - keys):
        raise _wrong(path, f"of {', '.join(sorted(keys))} at {where}", strange[0])
    return found


def _method(path: Path, where: str, found: Any) -> str:
    if not isinstance(found, str) or not 0 < len(found) < 100:
        raise _wrong(path, f"a method's name at {where}", repr(found)[:100])
    return found


def _wrong(path: Path, expected: str, found: str) -> UsageError:
    return UsageError(
        "SPECC-E0721", "the policy is not what such a file can say", where=str(path), expected=expected,
        found=found, cure="specc help serve",
    )  # fmt: skip
