"""The manifest: read by hand-written code, described by a JSON schema; both must agree."""

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from specc.errors import ArtifactError
from specc.runtime import Manifest, manifest_schema
from tests.runtime.manifests import document, parse


def test_manifest_is_typed() -> None:
    manifest = parse(document())
    assert manifest.num_speculative_tokens == (0, 2, 4)
    assert manifest.drafter.options == {"prompt_lookup_max": 4}
    assert manifest.functions["prefill"].inputs[0].shape == ("T",)
    assert manifest.drafter.host
    assert manifest.round(2).function == manifest.round(2, depth=3).function == "round_2"
    assert manifest.state_bytes_by_zone == {"target": 16384}
    assert manifest.state_bytes == 28672
    assert manifest.arena is not None
    assert manifest.arena.plans[0].zones[0].buffers == {"target.k.0": 8064}
    assert manifest.source_model == "somewhere"
    assert manifest.speculates


def test_rounds_of_trees_verify_more_than_a_path() -> None:
    trees = document()
    trees["rounds"][1]["nodes"] = 7
    row = {"name": "tokens", "dtype": "i64", "shape": [8]}
    names = ("tokens", "positions", "rows", "parents")
    trees["functions"]["verify_2"] = {
        "inputs": [{**row, "name": name} for name in names], "outputs": [], "plan": [],
    }  # fmt: skip
    manifest = parse(trees)
    assert [r.nodes for r in manifest.rounds] == [0, 7, 4]
    assert manifest.verify_inputs(2, [5] * 8, 3) == {
        "tokens": [5] * 8, "positions": [*range(3, 11)], "rows": [*range(3, 11)], "parents": [-1] * 8,
    }  # fmt: skip


def test_manifest_allows_fields_it_does_not_know() -> None:
    assert parse({**document(), "later": 1}).raw["later"] == 1


# What the schema can tell as well, and what takes a look at more than one field.
REFUSED_BY_SHAPE: list[tuple[str, object]] = [
    ("schema_version", 2),
    ("schema_version", 0),
    ("schema_version", "1"),
    ("model.vocab_size", 0),
    ("model.vocab_size", True),
    ("model.bos_token_id", -1),
    ("num_speculative_tokens", [2, 4]),
    ("num_speculative_tokens", []),
    ("drafter.state", "shared"),
    ("drafter.lag", 1),
    ("drafter.extend", "prefill"),
    ("drafter.min_length", 2),
    ("drafter.draft_rows", -1),
    ("drafter.draft_vocab_size", -1),
    ("drafter.lag", 2),
    ("drafter.host_drafter", "eagle"),
    ("drafter.options", []),
    ("rounds", []),
    ("rounds.1.nodes", 1025),
    ("state.0.dtype", "f8"),
    ("lossless", 1),
    ("arena.plans", []),
    ("arena.guard.page", 0),
    ("arena.plans.0.zones.0.offset", -1),
    ("functions.prefill.inputs.0.shape", ["S"]),
    ("weights.file", "../weights"),
    ("weights.file", "/etc/passwd"),
    ("files", {"a/../../b": {"sha256": "", "bytes": 1}}),
    ("files", {"./a": {"sha256": "", "bytes": 1}}),
    ("files", {"a//b": {"sha256": "", "bytes": 1}}),
    ("files", {"a/": {"sha256": "", "bytes": 1}}),
    ("files", {"a\\b": {"sha256": "", "bytes": 1}}),
    ("files", []),
]
REFUSED_BY_SENSE: list[tuple[str, object]] = [
    ("model.eos_token_ids", [256]),
    ("num_speculative_tokens", [0, 4, 2]),
    ("drafter.depths", [3, 2]),
    ("rounds.1.function", "absent"),
    ("rounds.1.nodes", 1),
    ("state.0.bytes", 1),
    ("arena.plans.0.rows", 64),
    ("arena.plans.0.zones", []),
]


def changed(path: str, value: object) -> Any:
    doc: Any = copy.deepcopy(document())
    *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    at = doc
    for part in parents:
        at = at[part]
    at[last] = value
    return doc


@pytest.mark.parametrize(("path", "value"), REFUSED_BY_SHAPE + REFUSED_BY_SENSE)
def test_manifest_refuses(path: str, value: object) -> None:
    with pytest.raises(ArtifactError) as caught:
        parse(changed(path, value))
    version = path == "schema_version" and isinstance(value, int)
    assert caught.value.code == ("SPECC-E0503" if version else "SPECC-E0502")
    *_, parent, last = ["", *path.split(".")]
    assert last in caught.value.where or parent in caught.value.where


@pytest.mark.parametrize("field", sorted(document()))
def test_manifest_misses_nothing_silently(field: str) -> None:
    doc = document()
    del doc[field]
    if field == "provenance":
        assert parse(doc).source_model is None
        return
    if field == "arena":  # artifacts of before have none
        assert parse(doc).state_bytes == 16384
        return
    with pytest.raises(ArtifactError) as caught:
        parse(doc)
    assert caught.value.code in ("SPECC-E0501", "SPECC-E0502")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
       st.sampled_from(sorted(document())))  # fmt: skip
def test_manifest_of_any_json_is_read_or_refused(value: object, field: str) -> None:
    for doc in (value, {**document(), field: value}):
        # Anything else than an ArtifactError fails the test.
        with contextlib.suppress(ArtifactError):
            parse(doc)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema_version": 1}', "\0", "[" * 9999])
def test_manifest_that_is_none(text: str) -> None:
    with pytest.raises(ArtifactError):
        Manifest.parse(text)


def test_a_key_that_occurs_twice_is_refused() -> None:
    """The engine refuses such a manifest (json.cpp): a reader that keeps one of the two would see another artifact."""
    text = json.dumps(document())
    twice = text.replace('"method": "ngram"', '"method": "none", "method": "ngram"')
    assert twice != text
    with pytest.raises(ArtifactError, match=r"SPECC-E0502[\s\S]*\"method\" occurs twice"):
        Manifest.parse(twice)


# The schema.

SCHEMA = json.loads(manifest_schema())


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def complaints(doc: object) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(doc)]


def test_a_manifest_by_the_book_fits_the_schema() -> None:
    assert complaints(document()) == []


def test_a_real_manifest_fits_the_schema(tiny_artifact: Path) -> None:
    doc = json.loads((tiny_artifact / "manifest.json").read_text())
    assert complaints(doc) == []
    assert parse(doc).rounds  # and is read


@pytest.mark.parametrize(("path", "value"), REFUSED_BY_SHAPE)
def test_the_schema_refuses_what_the_reader_refuses(path: str, value: object) -> None:
    assert complaints(changed(path, value))


@pytest.mark.parametrize("field", sorted(set(document()) - {"provenance", "arena"}))
def test_the_schema_asks_for_every_field(field: str) -> None:
    doc = document()
    del doc[field]
    assert complaints(doc)
