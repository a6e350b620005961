"""What xgrammar does not heed of a JSON schema: it goes on without, and a text would not be as the schema says.

Found by trying every keyword beside the others on xgrammar 0.2.9, with jsonschema as the judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

MOST_DEPTH = 64
"""Levels of a schema. (It would be heeded, but takes xgrammar seconds from some hundreds on.)"""

_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_COUNTS = frozenset({"minProperties", "maxProperties", "additionalProperties"})
_HEEDED: Mapping[str, tuple[frozenset[str], ...]] = {
    "string": (frozenset({"minLength", "maxLength"}), frozenset({"pattern"}), frozenset({"format"})),
    "integer": (_BOUNDS, frozenset({"multipleOf"})),
    "number": (_BOUNDS,),
    "array": (frozenset({"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"}),),
    "object": (
        _COUNTS | {"properties", "required"}, _COUNTS | {"propertyNames"}, _COUNTS | {"patternProperties"},
    ),
    "boolean": (frozenset(),),
    "null": (frozenset(),),
}  # fmt: skip
"""Keywords that are heeded together, by type: no more than one of each row."""

_WORDS = {kind: frozenset().union(*rows) for kind, rows in _HEEDED.items()}
_WORDS["number"] = _WORDS["integer"]
"""Keywords that say something of a type."""

_ALONE = ("$ref", "const", "enum", "anyOf", "allOf")
"""Keywords beside which no other is heeded."""

_NEVER = frozenset({
    "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "if", "not", "oneOf", "then",
    "unevaluatedProperties", "uniqueItems", "$dynamicRef", "$recursiveRef",
})  # fmt: skip
"""(oneOf is taken for anyOf.)"""

_KNOWN = _NEVER.union(_ALONE, *_WORDS.values())
_PYTHON: Mapping[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "array": list, "object": dict, "boolean": bool,
    "null": type(None),
}  # fmt: skip
_LOOKS_AHEAD = re.compile(r"\(\?[=!]")
_UNESCAPED = re.compile(
    r"\[\^(?:\\.|[^\]\\])*(?:\]|\Z)"
    r"|(?P<found>[\"\x00-\x1f]|\\(?:[\"\\0bcfnrtv]|x(?:[01].|22|5[cC])|u(?:00(?:[01].|22|5[cC])|\{)))"
    r"|\\.",
    re.DOTALL,
)  # fmt: skip
"""What stands in JSON by an escape alone, in a pattern; or what is no such thing, as in [^"]."""

_ANCHORS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\Z)|[()|^$]", re.DOTALL)

_MOST_MULTIPLE = 1024
_LOCAL = ("#/$defs/", "#/definitions/", "#/properties/")
_SCHEMAS = ("$defs", "definitions", "properties", "patternProperties")
_LISTS = ("prefixItems", "anyOf", "allOf")
_ONE = ("items", "additionalProperties", "propertyNames", "unevaluatedItems")


def unheeded(schema: Any) -> Iterator[str]:
    """Each keyword of `schema` that would not be heeded, with its place."""
    left = [(0, "#", schema)]
    while left:
        depth, place, each = left.pop()
        if depth > MOST_DEPTH:
            yield f"what is deeper than {MOST_DEPTH} levels"
        elif isinstance(each, dict):
            yield from (f"{word} at {place}" for word in _words(each))
            left.extend((depth + 1, *inner) for inner in _within(place, each))


def stray_anchor(expression: str) -> str:
    """The first anchor that is at no end of `expression` or of one of its alternatives, and is overlooked; or ""."""
    depth, begins = 0, 0
    for part in _ANCHORS.finditer(expression):
        match part[0]:
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case "|":
                begins = part.end()
            case "^" if depth or part.start() != begins:
                return "^"
            case "$" if depth or expression[part.end() : part.end() + 1] not in ("", "|"):
                return "$"
    return ""


def _words(schema: dict[str, Any]) -> Iterator[str]:
    here = {word for word in schema if word in _KNOWN}
    yield from sorted(here & _NEVER)
    here -= _NEVER
    if alone := next((word for word in _ALONE if word in here), None):
        if beside := sorted(here - {alone}):
            yield f"{', '.join(beside)} beside {alone}"
        elif not _sound(schema, alone):
            yield f"this {alone}"
        return
    types = schema.get("type", _inferred(schema))
    kinds = [types] if isinstance(types, str) else types
    if not isinstance(kinds, list) or not {*kinds} <= _HEEDED.keys():
        return  # no schema, as xgrammar says itself
    if not kinds and here:
        yield f"{', '.join(sorted(here))} without a type"
    for kind in kinds:
        mine = here & _WORDS[kind]
        if not any(mine <= row for row in _HEEDED[kind]):
            yield f"{' and '.join(sorted(mine))} of one {kind}"
    if "object" in kinds and (
        strange := {*schema.get("required", ())} - {*schema.get("properties", ())}
    ):
        yield f"required {sorted(map(str, strange))[0]}, which is none of the properties,"
    if "multipleOf" in here and schema["multipleOf"] not in range(1, _MOST_MULTIPLE + 1):
        yield f"multipleOf, no whole number up to {_MOST_MULTIPLE},"
    patterns = [schema.get("pattern"), *schema.get("patternProperties", ())]
    for each in (p for p in patterns if isinstance(p, str)):
        if _LOOKS_AHEAD.search(each):
            yield "a pattern that looks ahead"
        if any(part["found"] for part in _UNESCAPED.finditer(each)):
            yield "a pattern with a quote, a backslash or a control character"
        if stray_anchor(each):
            yield "a pattern with an anchor inside"


def _sound(schema: dict[str, Any], alone: str) -> bool:
    """Whether a keyword that stands alone is one that is heeded; a type may stand beside."""
    value = schema[alone]
    if alone == "$ref":
        return value == "#" or (
            isinstance(value, str) and value.startswith(_LOCAL) and "type" not in schema
        )
    if alone in ("anyOf", "allOf"):
        return "type" not in schema and (alone == "anyOf" or len(value) == 1)
    kinds = schema.get("type", [*_PYTHON])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    values = value if alone == "enum" else [value]
    return all(any(_is(each, kind) for kind in kinds) for each in values)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _PYTHON.get(kind, ())) and (
        kind == "boolean" or type(value) is not bool
    )


def _inferred(schema: dict[str, Any]) -> list[str]:
    """The type that xgrammar takes where none is said."""
    if "properties" in schema:
        return ["object"]
    return ["array"] if "items" in schema else []


def _within(place: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for word in _SCHEMAS:
        if isinstance(inner := schema.get(word), dict):
            yield from ((f"{place}/{word}/{name}", each) for name, each in inner.items())
    for word in _LISTS:
        if isinstance(inner := schema.get(word), list):
            yield from ((f"{place}/{word}/{index}", each) for index, each in enumerate(inner))
    for word in _ONE:
        if isinstance(schema.get(word), dict):
            yield f"{place}/{word}", schema[word]
