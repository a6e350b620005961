"""The errors that specc raises on purpose.

Every one has a stable code, says what is wrong and where, what was expected and found, and the command that cures it.
Codes: E01xx command line and environment, E02xx import, E03xx program and passes, E04xx backends, E05xx artifacts,
E06xx requests and run time, E07xx serving.
"""

from __future__ import annotations


class SpeccError(Exception):
    """Base of all errors meant for the user.

    `code` is `SPECC-Exxxx`; `cure` is what to do, as a command where there is one.
    """

    def __init__(
        self,
        code: str,
        what: str,
        *,
        where: str = "",
        expected: str = "",
        found: str = "",
        cure: str = "",
    ) -> None:
        self.code = code
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.cure = cure
        super().__init__(self.render())

    def render(self) -> str:
        """The message as printed: one line of what, then one indented line per known detail."""
        details = {
            "where": self.where,
            "expected": self.expected,
            "found": self.found,
            "cure": self.cure,
        }
        lines = [f"{self.code} {self.what}"]
        lines += [f"  {name}: {text}" for name, text in details.items() if text]
        return "\n".join(lines)

    def as_json(self) -> dict[str, str]:
        """The same as a flat object, for `--json`."""
        return {
            "code": self.code,
            "what": self.what,
            "where": self.where,
            "expected": self.expected,
            "found": self.found,
            "cure": self.cure,
        }


class UsageError(SpeccError):
    """A flag, path or value on the command line is wrong (exit code 2)."""


class ModelError(SpeccError):
    """A model cannot be read, or is of a kind that specc refuses."""


class InvalidProgramError(SpeccError):
    """A speculative program breaks one of the rules of `ir.check`."""


class PassError(SpeccError):
    """A pass met a program that it cannot rewrite, or left one that is not valid."""


class BackendError(SpeccError):
    """A backend cannot lower a program."""


class ArtifactError(SpeccError):
    """An artifact is damaged, foreign, too new, or for other hardware."""


class RequestError(SpeccError):
    """A request to a running artifact is wrong, or its computation failed."""
