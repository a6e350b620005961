"""Grammars beside a session: drafts that they forbid are cut, and what is taken back is taken back there too (B28)."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from specc.errors import RequestError
from specc.grammar import BACKENDS, GUIDANCE, XGRAMMAR, Grammar, Grammars
from specc.runtime import Artifact
from tests.faults.helpers import PROMPT, half_wrong, oracle, spoken

PATTERN = "([a-f]{3},){8}"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["fox", "a\"b"]}, "age": {"type": "integer", "maximum": 99},
        "legs": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "legs"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(tiny_artifact: Path) -> Iterator[Artifact]:
    with Artifact.load(tiny_artifact) as opened:
        yield opened


@pytest.fixture(scope="module", params=BACKENDS)
def grammars(request: pytest.FixtureRequest, engine: Artifact) -> Grammars:
    return Grammars(engine, request.param)


def both_ways(engine: Artifact, following: Grammar, temperature: float, seed: int) -> str:
    """The text that follows a grammar, plainly and with an oracle that errs half of the time: the same."""
    texts: list[list[int]] = []
    for k in (0, 4):
        with engine.session() as session:
            session.configure(
                max_tokens=120, num_speculative_tokens=k, temperature=temperature, seed=seed
            )
            session.set_mask(following.mask())
            if k:
                session.set_drafter(oracle([*PROMPT, *texts[0]], half_wrong(seed)))
            texts.append(spoken(session, PROMPT))
            assert session.finish_reason == "stop"
            stats = session.stats
    assert texts[0] == texts[1]
    assert stats.accepted_tokens > 0
    assert stats.cut_grammar > 0
    return engine.detokenize(texts[0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_drafts_that_a_grammar_forbids_are_cut(
    engine: Artifact, grammars: Grammars, temperature: float, seed: int
) -> None:
    following = grammars.compile("regex", PATTERN)
    assert re.fullmatch(PATTERN, both_ways(engine, following, temperature, seed))


def as_schema(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


PAIRS = re.compile(r"([a-c]=[0-9]{8};){4}\.")
WORDS = ["yes, I do believe so", 'no "quotes" \\ and\nlines', "naïve ü"]
LINES = r"[b.]x.y\.[^.\n]{2}"
ASKED: dict[str, tuple[str, Any, Callable[[str], object]]] = {
    "json": ("json", SCHEMA, as_schema),
    "json as text": ("json", json.dumps(SCHEMA), as_schema),
    "dots": ("regex", LINES, re.compile(LINES).fullmatch),
    "choice": ("choice", WORDS, WORDS.__contains__),
    "gbnf": (
        "grammar", 'root ::= pair pair pair pair "."\npair ::= [a-c] "=" [0-9]{8} ";"', PAIRS.fullmatch,
    ),
    "lark": (
        "grammar", 'start: pair pair pair pair "."\npair: /[a-c]/ "=" /[0-9]{8}/ ";"', PAIRS.fullmatch,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_texts_are_as_asked_whoever_drafts(engine: Artifact, grammars: Grammars, name: str) -> None:
    kind, source, right = ASKED[name]
    assert right(both_ways(engine, grammars.compile(kind, source), 1.0, 3))


def test_a_text_taken_back_is_followed_again(engine: Artifact, grammars: Grammars) -> None:
    with engine.session() as session:
        session.configure(max_tokens=60, num_speculative_tokens=4)
        session.set_mask(grammars.compile("regex", PATTERN).mask())
        whole = spoken(session, PROMPT)
        session.rewind(len(PROMPT) + 5)
        assert list(session.iterate()) == whole[5:]
        session.rewind(len(PROMPT))
        assert list(session.iterate()) == whole


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "[a"), ("json", "{"), ("json", {"type": 3}), ("grammar", "root ::= ("), ("grammar", "start: ("),
        ("json", "[" * 100_000), ("regex", "[" * 50_000), ("json", {"type": "string", "pattern": "[^" * 20_000}),
    ],
)  # fmt: skip
def test_what_is_no_grammar_is_refused(grammars: Grammars, kind: str, source: object) -> None:
    with pytest.raises(RequestError, match="SPECC-E0717") as refused:
        grammars.compile(kind, source, "guided_thing")
    assert refused.value.where == "guided_thing"


KEYWORDS: dict[str, dict[str, Any]] = {
    "string": {"minLength": 2, "maxLength": 2, "pattern": "^ab?$", "format": "date"},
    "integer": {"minimum": 1, "maximum": 5, "exclusiveMinimum": 1, "exclusiveMaximum": 5, "multipleOf": 5},
    "number": {"minimum": 1, "maximum": 5, "exclusiveMinimum": 1, "exclusiveMaximum": 5, "multipleOf": 2.5},
    "array": {
        "items": {"type": "integer"}, "prefixItems": [{"type": "string"}], "minItems": 2, "maxItems": 2,
        "uniqueItems": True, "contains": {"type": "string"}, "unevaluatedItems": False,
    },
    "object": {
        "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": {"type": "string"},
        "patternProperties": {"^a": {"type": "integer"}}, "propertyNames": {"maxLength": 1}, "minProperties": 2,
        "maxProperties": 2, "dependentRequired": {"a": ["b"]}, "unevaluatedProperties": False,
    },
}  # fmt: skip
WHOLE: list[dict[str, Any]] = [
    {"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"anyOf": [{"type": "integer"}], "minimum": 2},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]}, {"not": {"type": "integer"}}, {"minimum": 2},
    {"allOf": [{"type": "integer"}, {"minimum": 2}]}, {"allOf": [{"type": "integer"}], "minimum": 2},
    {"type": "integer", "enum": [1, "a"]}, {"enum": [1, "a"]}, {"const": 5}, {"type": "string", "const": 5},
    {"enum": [1, 5], "minimum": 2}, {"$ref": "#/$defs/x", "minimum": 2, "$defs": {"x": {"type": "integer"}}},
    {"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}}, {"if": {"type": "integer"}, "then": {"minimum": 2}},
    {"type": ["integer", "string"], "minimum": 2, "maxLength": 1}, {"items": {"type": "integer"}},
    {"properties": {"a": {"type": "integer"}}, "required": ["a", "b"]}, {},
    {"type": ["number", "null"], "multipleOf": 5},
]  # fmt: skip
VALUES: list[Any] = [
    0, 1, 2, 5, 2.5, 7, "", "a", "ab", "abc", None, True, [], [1], [1, 1], ["a"], ["a", 1], ["a", 1, 2], {}, {"a": 1},
    {"b": "x"}, {"a": "x"}, {"a": 1, "b": "x"}, {"ab": 1, "a": 1}, {"a": 1, "b": "x", "c": "x"}, {"a": 1, "b": 2},
]  # fmt: skip


def schemas() -> Iterator[dict[str, Any]]:
    """Each keyword of a type alone and beside each other one, and what has to do with several types."""
    yield from WHOLE
    for kind, words in KEYWORDS.items():
        for count in (0, 1, 2):
            for chosen in combinations(words.items(), count):
                yield {"type": kind, **dict(chosen)}


def followed(grammars: Grammars, schema: dict[str, Any]) -> Grammar | None:
    """None for one that is refused."""
    try:
        return grammars.compile("json", schema)
    except RequestError:
        return None


def test_xgrammar_heeds_a_schema_or_it_is_refused(engine: Artifact) -> None:
    """What is let through is valid, as jsonschema says; and schemas are followed, and values let through."""
    grammars, model = Grammars(engine, XGRAMMAR), engine.manifest.model
    words = (model.vocab_size + 31) // 32
    texts = [engine.tokenize(json.dumps(value, separators=(",", ":"))) for value in VALUES]
    tried = passed = 0
    for schema in schemas():
        if (compiled := followed(grammars, schema)) is None:
            continue
        tried += 1
        judge = jsonschema.Draft202012Validator(schema)
        for value, ids in zip(VALUES, texts, strict=True):
            drafts = [*ids, model.eos_token_ids[0]]
            rows = [memoryview(bytearray(4 * words)) for _ in range(len(drafts) + 1)]
            if compiled.mask()([], drafts, rows) == len(drafts):
                passed += 1
                assert judge.is_valid(value), (schema, value)
    assert tried > 50
    assert passed > 200


@pytest.mark.parametrize(
    ("schema", "lost"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems at #"),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "not at #/properties/a"),
        (
            {"items": {"type": "integer", "minimum": 2, "multipleOf": 5}},
            "minimum and multipleOf of one integer at #/items",
        ),
        ({"$ref": "https://example.com/schema"}, "this $ref at #"),
        ({"type": "integer", "multipleOf": 5000}, "multipleOf, no whole number up to 1024, at #"),
        ({"type": "string", "pattern": "^(?=a)b$"}, "a pattern that looks ahead at #"),
        ({"type": "string", "pattern": "a\"b"}, "a pattern with a quote, a backslash or a control character at #"),
        (
            {"type": "object", "patternProperties": {r"[\n]": {}}},
            "a pattern with a quote, a backslash or a control character at #",
        ),
        (reduce(lambda inner, _: {"items": inner}, range(70), {}), "what is deeper than 64 levels"),
        ({"type": "number", "multipleOf": 2}, "multipleOf of one number at #"),
        ({"type": "string", "pattern": "a^b"}, "a pattern with an anchor inside at #"),
    ],
)  # fmt: skip
def test_what_xgrammar_would_not_heed_is_refused_by_name(
    engine: Artifact, schema: dict[str, Any], lost: str
) -> None:
    with pytest.raises(RequestError, match="SPECC-E0717") as refused:
        Grammars(engine, XGRAMMAR).compile("json", schema)
    assert refused.value.found == f"{lost} is not heeded by xgrammar"
    assert "--grammar-backend guidance" in refused.value.cure


def test_patterns_that_leave_such_characters_out_are_followed(engine: Artifact) -> None:
    grammars, schema = Grammars(engine, XGRAMMAR), {"type": "string", "pattern": r'^[^"\\]\.$'}
    words = (engine.manifest.model.vocab_size + 31) // 32
    for text, valid in (('"b."', True), ('"\n."', False), ('"""', False)):
        drafts = engine.tokenize(text)
        rows = [memoryview(bytearray(4 * words)) for _ in range(len(drafts) + 1)]
        taken = grammars.compile("json", schema).mask()([], drafts, rows)
        assert (taken == len(drafts)) is valid, text


@pytest.mark.parametrize(
    "expression", [r"\Aab", r"a\Z", "[[:alpha:]]+", "a^b", "a$b", "x(a|^b)", r"\|^a"]
)
def test_expressions_that_xgrammar_reads_otherwise_are_refused(
    engine: Artifact, expression: str
) -> None:
    with pytest.raises(RequestError, match="SPECC-E0717") as refused:
        Grammars(engine, XGRAMMAR).compile("regex", expression)
    assert "is not heeded by xgrammar" in (refused.value.found or "")


@pytest.mark.parametrize("backend", BACKENDS)
def test_anchors_at_the_ends_of_alternatives_are_followed(engine: Artifact, backend: str) -> None:
    grammars = Grammars(engine, backend)
    words = (engine.manifest.model.vocab_size + 31) // 32
    for expression, text, valid in (
        ("^ab$|^b[$^]$", "b$", True),
        ("^ab$|^b[$^]$", "abb", False),
        (r"\$a$", "$a", True),
    ):
        drafts = engine.tokenize(text)
        rows = [memoryview(bytearray(4 * words)) for _ in range(len(drafts) + 1)]
        taken = grammars.compile("regex", expression).mask()([], drafts, rows)
        assert (taken == len(drafts)) is valid, expression


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("json", [1], "a schema that is an object"), ("json", "5", "a schema that is an object"),
        ("json", "true", "a schema that is an object"), ("json", False, "a schema that is an object"),
        ("regex", 5, "a string"), ("choice", [], "a list of strings"), ("choice", [1], "a list of strings"),
        ("choice", "ab", "a list of strings"), ("grammar", None, "a string"),
    ],
)  # fmt: skip
def test_what_is_of_another_form_is_refused(
    engine: Artifact, backend: str, kind: str, source: Any, expected: str
) -> None:
    with pytest.raises(RequestError, match="SPECC-E0717") as refused:
        Grammars(engine, backend).compile(kind, source)
    assert refused.value.expected == expected
    assert refused.value.found == (
        source if isinstance(source, str) and kind == "json" else json.dumps(source)
    )


@pytest.mark.parametrize(
    "schema",
    [{"properties": 5}, {"enum": 5}, {"required": 7, "type": "object"}, {"$ref": []}, {"anyOf": 1}],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_malformed_schemas_are_told_without_python(
    engine: Artifact, backend: str, schema: dict[str, Any]
) -> None:
    with pytest.raises(RequestError, match="SPECC-E0717") as refused:
        Grammars(engine, backend).compile("json", schema)
    assert "object is not" not in (refused.value.found or "")


@pytest.mark.parametrize(
    ("backend", "missing", "extra"),
    [
        (GUIDANCE, "llguidance", "[grammar]"), (XGRAMMAR, "xgrammar", "[xgrammar]"),
        (XGRAMMAR, "specc.grammar_xgrammar", "[xgrammar]"),  # as where what xgrammar needs itself is missing
    ],
)  # fmt: skip
def test_a_package_that_is_missing_is_named(
    engine: Artifact, monkeypatch: pytest.MonkeyPatch, backend: str, missing: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RequestError, match="SPECC-E0716") as refused:
        Grammars(engine, backend)
    assert extra in refused.value.cure
