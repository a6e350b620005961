"""What bindings rely on has a version: one that changes what they see needs another."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields
from pathlib import Path

from specc.runtime import Passes, native, session
from specc.runtime.manifest import MODEL_ABI

RUNTIME = Path(__file__).parents[2] / "runtime"

SURFACES = {
    5: "0356a4b5eedd6a298daee20724116ef62fab1920de31c48214e85c024193acef",
    6: "20b7973f96c4c86cc539a4a5e2046309b721a83f3e9054591bbcee02bc74a994",
    7: "2f3dd80489d3a1ff4e71eefb170bf61bd2fa8d8858701f73af56f8a0e384e8ec",
}
"""SHA-256 of `surface()` by version. Changed it? Raise SPECC_INTERFACE_VERSION and native.INTERFACE_VERSION, and add a
line: a binding of one version must not meet a library of another that lacks what it asks for."""


def _text(path: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", (RUNTIME / path).read_text(), flags=re.S)


def statistics() -> set[str]:
    """Names that specc_session_stat knows."""
    return set(re.findall(r'name == "(\w+)"', _text("cpp/core/c_api.cpp")))


def batch_statistics() -> set[str]:
    """Names that specc_batch_stat knows."""
    return set(re.findall(r'wanted == "(\w+)"', _text("cpp/core/c_api.cpp")))


def surface() -> str:
    """Every call of the header, every statistic, and every option."""
    calls = re.findall(r"SPECC_API[^;]*;", _text("include/specc.h"))
    options = re.findall(r'"([a-z_]{5,})"', _text("cpp/core/engine/options.cpp"))
    lines = {
        re.sub(r"\s+", " ", line) for line in [*calls, *options, *statistics(), *batch_statistics()]
    }
    return "\n".join(sorted(lines))


def test_a_change_has_another_version() -> None:
    (version,) = re.findall(r"#define SPECC_INTERFACE_VERSION (\d+)", _text("include/specc.h"))
    assert int(version) == native.INTERFACE_VERSION
    assert hashlib.sha256(surface().encode()).hexdigest() == SURFACES[int(version)]


def test_python_asks_for_what_there_is() -> None:
    assert {*session.COUNTS, *session.NUMBERS} <= statistics()
    assert {field.name for field in fields(Passes)} == batch_statistics()
    assert set(native.PROTOTYPES) <= set(re.findall(r"\b(specc_\w+)\(", surface()))


def test_the_border_to_models_has_one_version() -> None:
    (version,) = re.findall(r"#define SPECC_MODEL_ABI (\d+)u", _text("include/specc_model.h"))
    assert int(version) == MODEL_ABI
