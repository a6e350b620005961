"""What verbs print: one JSON object, or text for people; and errors in either form."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specc.errors import SpeccError, UsageError

SCHEMA = 1
"""Version of the JSON that verbs print. Fields may be added within a version."""

EXIT_OK, EXIT_FAILURE, EXIT_USAGE, EXIT_UNFINISHED, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
"""3: what could be made here was made, and something else has to finish it."""


def emit(payload: Mapping[str, Any]) -> None:
    """Print the one JSON object of a verb. ASCII, so that no locale can break it."""
    print(json.dumps({"schema": SCHEMA, **_finite(payload)}, default=str, allow_nan=False))
    sys.stdout.flush()


def emit_error(error: SpeccError, *, as_json: bool) -> None:
    """Print an error: on stdout as JSON, since that is where the caller reads, else on stderr."""
    if as_json:
        emit({"error": error.as_json()})
    else:
        print(f"error: {error.render()}", file=sys.stderr)


def exit_code(error: SpeccError) -> int:
    """2 for a mistake on the command line, 1 for all else."""
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILURE


def say(text: str = "") -> None:
    """A line for people that is not the result: on stderr."""
    print(text, file=sys.stderr, flush=True)


def table(rows: Iterable[Sequence[str]], *, indent: str = "  ") -> str:
    """Columns: the first flush left, the rest flush right."""
    cells = [list(row) for row in rows]
    widths = [max(len(row[i]) for row in cells if i < len(row)) for i in range(_most(cells))]
    lines = []
    for row in cells:
        padded = zip(row, widths, strict=False)
        parts = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(padded)]
        lines.append(indent + "  ".join(parts).rstrip())
    return "\n".join(lines)


def bar(share: float | None, width: int = 20) -> str:
    """A share as a bar."""
    return "" if share is None else "█" * round(max(0.0, min(1.0, share)) * width)


def percent(share: float | None) -> str:
    """A share as text; a dash where there is none."""
    return "-" if share is None else f"{share:.0%}"


def _most(cells: list[list[str]]) -> int:
    return max((len(row) for row in cells), default=0)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
