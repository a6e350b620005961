"""Reading untrusted JSON: values that know where they stand, so that complaints name the place."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from specc.errors import ArtifactError

DTYPE_BYTES = {
    "f64": 8, "i64": 8, "f32": 4, "i32": 4, "bf16": 2, "f16": 2, "i8": 1, "u8": 1, "bool": 1,
}  # fmt: skip
_MISSING = object()
_KINDS = {
    dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number",
}  # fmt: skip


def damaged(where: str, expected: str, found: str) -> ArtifactError:
    """The error for a manifest that is not what it should be."""
    return ArtifactError(
        "SPECC-E0502", "the manifest is damaged", where=where, expected=expected,
        found=found if len(found) <= 200 else found[:197] + "...",
        cure="compile the artifact again, or copy it again",
    )  # fmt: skip


def check_inner(path: str, where: str) -> None:
    """Raise ArtifactError (E0502) for a path that leads out of the artifact: a manifest comes from anywhere.

    The engine's rule (is_inner_path in cpp/core/mapped_file.cpp), so that both read the same artifacts: parts with `/`
    between them, none of them empty, `.` or `..`.
    """
    if any(c in path for c in "\0\\") or any(p in ("", ".", "..") for p in path.split("/")):
        raise damaged(where, "a path inside the artifact", repr(path))


def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `object_pairs_hook`: raise ValueError where a key occurs twice, of which other readers may keep the other."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twin = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {json.dumps(twin)} occurs twice in an object")
    return found


class Field:
    """A JSON value and its path.

    Readers raise ArtifactError E0502. `default` is for a field that is absent.
    """

    def __init__(self, value: Any, path: str) -> None:
        self._value = value
        self.path = path

    @property
    def value(self) -> Any:
        """The bare value; None if the field is absent."""
        return None if self._value is _MISSING else self._value

    def __getitem__(self, name: str) -> Field:
        found = self.get(name)
        if found._value is _MISSING:
            raise damaged(found.path, "a value", "nothing")
        return found

    def get(self, name: str) -> Field:
        """The member `name`, which may be absent."""
        members = self._a(dict)
        return Field(members.get(name, _MISSING), f"{self.path}.{name}")

    def entries(self) -> list[tuple[str, Field]]:
        """Members of an object."""
        return [(n, Field(v, f"{self.path}.{n}")) for n, v in self._a(dict).items()]

    def items(self) -> list[Field]:
        """Elements of a list."""
        return [Field(v, f"{self.path}[{i}]") for i, v in enumerate(self._a(list))]

    def mapping(self, default: Mapping[str, Any]) -> Mapping[str, Any]:
        """An object as it is."""
        return default if self._value is _MISSING else self._a(dict)

    def string(self, *, default: str | None = None) -> str:
        """A string."""
        if self._value is _MISSING and default is not None:
            return default
        text: str = self._a(str)
        return text

    def inner_path(self) -> str:
        """A path inside the artifact."""
        path = self.string()
        check_inner(path, self.path)
        return path

    def number(self, least: float) -> float:
        """A number, whole or not, of at least `least`."""
        found = self._value
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not found >= least:
            raise damaged(self.path, f"a number of at least {least}", str(found))
        return float(found)

    def dtype(self) -> str:
        """The name of an element type."""
        name = self.string()
        if name not in DTYPE_BYTES:
            raise damaged(self.path, " ".join(DTYPE_BYTES), name)
        return name

    def boolean(self, *, default: bool | None = None) -> bool:
        """True or false."""
        if self._value is _MISSING and default is not None:
            return default
        flag: bool = self._a(bool)
        return flag

    def integer(self, least: int = -(1 << 63), most: int = (1 << 63) - 1) -> int:
        """A whole number within the bounds."""
        number: int = self._a(int)
        if isinstance(number, bool) or not least <= number <= most:
            raise damaged(self.path, f"a whole number, {least} to {most}", str(number))
        return number

    def integers(
        self, least: int, most: int = (1 << 63) - 1, *, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """A list of whole numbers within the bounds."""
        if self._value is _MISSING and default is not None:
            return default
        return tuple(item.integer(least, most) for item in self.items())

    def _a(self, kind: type) -> Any:
        if not isinstance(self._value, kind):
            found = "nothing" if self._value is _MISSING else type(self._value).__name__
            raise damaged(self.path, _KINDS[kind], found)
        return self._value
