"""A .pt2 that is only data: what must hold of the archive before `torch.export.load` may see it.

In torch 2.13 that function unpickles (tensor subclasses, sample inputs, custom and opaque objects), loads compiled
libraries (AOTInductor), resolves any attribute of `torch`, `operator` and `math` that the graph names, and passes size
expressions to `sympy.sympify`, which evaluates Python. Each of these is checked for here; a plain export of a decoder
needs none of them.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from specc.errors import ModelError

_TARGET = re.compile(
    r"torch\.ops\.(aten|prims)\.\w+(\.\w+)?"
    r"|torch\.ops\.higher_order\.wrap_with_set_grad_enabled"
    r"|torch\.sym_(int|float|max|min|not|ite|sum)|torch\._check|math\.(trunc|floor|ceil|pow|sqrt)"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_|getitem)"
)
"""What an exported graph may call."""

_OURS = re.compile(r"torch\.ops\.specc\.\w+\.default")
"""What leaves of the reference backend may call besides."""

_EXPRESSION = re.compile(r"[\w\s+\-*/%,()<>=!&|~^]*|\d+\.\d+")
"""A size expression: no attribute, index, string or lambda can be written with these characters."""

_FUNCTIONS = {
    "Max", "Min", "Mod", "PythonMod", "FloorDiv", "CleanDiv", "CeilDiv", "CeilToInt", "FloorToInt",
    "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "Abs", "floor", "ceiling", "Where",
    "TruncToInt", "IntTrueDiv", "FloatTrueDiv", "ToFloat", "PowByNatural", "Identity",
    "ModularIndexing", "Piecewise", "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow",
    "Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan",
    "IntInfinity", "NegativeIntInfinity", "Infinity", "NegativeInfinity", "ExprCondPair", "true",
}  # fmt: skip


def check_archive(path: Path, content: bytes | None = None, *, ours: bool = False) -> None:
    """Raise ModelError unless `path`, whose `content` may be given, is an export that loads without running anything.

    `ours`: it may call operations of the dialect too, which no model of a user's does.
    Codes: SPECC-E0261 not an archive of this form, E0262 something in it would run code.
    """
    try:
        with zipfile.ZipFile(path if content is None else io.BytesIO(content)) as archive:
            if archive.testzip() is not None:
                raise zipfile.BadZipFile("a checksum is wrong")  # noqa: TRY301
            _check(_Archive(archive, path), ours)
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, RecursionError) as error:
        raise ModelError(
            "SPECC-E0261",
            f"not a .pt2 made by torch.export.save, or damaged: {error}",
            where=str(path),
            cure="save it again: torch.export.save(program, 'model.pt2')",
        ) from error


class _Archive:
    """Entries by their path below the archive's root folder."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self.archive, self.path = archive, path
        self.names = {n.split("/", 1)[1]: n for n in archive.namelist() if "/" in n}

    def read(self, name: str) -> bytes:
        return self.archive.read(self.names[name])

    def json(self, name: str) -> Any:
        return json.loads(self.read(name))

    def refuse(self, what: str, where: str = "") -> ModelError:
        return ModelError(
            "SPECC-E0262",
            f"the .pt2 holds {what}; reading that can run code, so specc does not",
            where=f"{self.path}: {where}" if where else str(self.path),
            expected="a plain export: operations and tensors",
            cure="export the decoder without custom objects, subclasses and compiled parts",
        )


def _check(archive: _Archive, ours: bool) -> None:
    models = [n for n in archive.names if n.startswith("models/")]
    if models != ["models/model.json"]:
        raise ValueError(f"models in it: {models or 'none'}")
    for name in archive.names:
        if name.startswith("data/aotinductor/") and not name.endswith("/"):
            raise archive.refuse("compiled code (AOTInductor)", name)
        if re.fullmatch(r"data/(weights|constants)/[^/]*\.pt", name):
            raise archive.refuse("pickled weights of an older form", name)
    for kind in ("weights", "constants"):
        for tensor, entry in archive.json(f"data/{kind}/model_{kind}_config.json")[
            "config"
        ].items():
            if entry.get("use_pickle"):
                raise archive.refuse("a pickled tensor", tensor)
            if not re.fullmatch(r"(weight|tensor)_\d+", str(entry["path_name"])):
                raise archive.refuse("an object that is no tensor", tensor)
    inputs = archive.read("data/sample_inputs/model.pt")
    if inputs:
        try:
            torch.load(io.BytesIO(inputs), weights_only=True)
        except Exception as error:
            raise archive.refuse(
                "sample inputs that are no tensors", "data/sample_inputs"
            ) from error
    for key, value in _strings(archive.json("models/model.json")):
        known = _is_reference(value) or _TARGET.fullmatch(value)
        if key == "target" and not known and not (ours and _OURS.fullmatch(value)):
            raise archive.refuse(f"a call of {value[:60]}", "models/model.json")
        if key == "expr_str" and not _is_expression(value):
            raise archive.refuse(f"the size expression {value[:60]}", "models/model.json")
        if key == "symbol" and not re.fullmatch(r"\w+", value):
            raise archive.refuse(f"the symbol {value[:60]}", "models/model.json")


def _is_reference(text: str) -> bool:
    """A target without a dot before its last name that torch would look up (names of weights are such targets)."""
    return not text.startswith(("torch", "math", "_operator", "#"))


def _is_expression(text: str) -> bool:
    text = re.sub(r"Symbol\('\w+'", "Symbol(s", text)  # the one place where torch writes a string
    called = set(re.findall(r"([A-Za-z_]\w*)\s*\(", text))
    return bool(_EXPRESSION.fullmatch(text)) and "__" not in text and called <= _FUNCTIONS


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string below `value`, with the key it is under. Keys of `range_constraints` count as symbols."""
    if isinstance(value, dict):
        for name, item in value.items():
            if key == "range_constraints":
                yield "symbol", name
            yield from _strings(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, key)
    elif isinstance(value, str):
        yield key, value
