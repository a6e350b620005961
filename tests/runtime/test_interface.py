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
    8: "b9b575b3fcb033515cbe89d950e8f84b7d121e5e6485cc96dd246aaea9db2ef4",
    9: "87c05c64568e1231b0e396f3fce776e9275dfd63d90ecc9af35c73325b1600fa",
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


RUST = {
    "void": "c_void", "char": "c_char", "float": "f32", "double": "f64", "size_t": "usize", "int32_t": "i32",
    "int64_t": "i64", "uint32_t": "u32",
}  # fmt: skip


def rust_type(told: str) -> str:
    """A C type, with or without a name behind it, as Rust says it: `const int64_t* const* x` -> `*const *const i64`."""
    words = re.findall(r"\w+|\*", told)
    kind, *named = (i for i, word in enumerate(words) if word not in ("*", "const"))
    made, fixed = RUST.get(words[kind], words[kind]), "const" in words[:kind]
    assert made in RUST.values() or made.startswith("specc_"), f"{told} has no form in Rust"
    for word in words[kind + 1 : named[0] if named else None]:
        made, fixed = (
            (f"*{'const' if fixed else 'mut'} {made}", False) if word == "*" else (made, True)
        )
    return made


def rust_calls() -> list[str]:
    """Each call of the header as Rust declares it, without names of parameters: C leaves some out."""
    found = []
    declared = r"SPECC_API\s+([\w\s*]+?)\s*\b(specc_\w+)\(([^;]*)\);"
    for result, name, given in re.findall(declared, _text("include/specc.h")):
        types = [] if given == "void" else map(rust_type, given.split(","))
        back = "" if result == "void" else f" -> {rust_type(result)}"
        found.append(f"{name}({', '.join(types)}){back}")
    return found


def test_rust_declares_each_call() -> None:
    """examples/rust speaks of every call with the header's types, so that it can be taken as it is."""
    text = (RUNTIME.parent / "examples/rust/specc.rs").read_text()
    declared = re.findall(r"pub fn (specc_\w+)\(([^;]*?)\)(?: -> ([^;]+))?;", text)
    found = {
        f"{name}({', '.join(re.findall(r': ([^,]+)', given))}){f' -> {back}' if back else ''}"
        for name, given, back in declared
    }
    wanted = rust_calls()
    assert len(wanted) == len(re.findall(r"^SPECC_API", _text("include/specc.h"), re.M))
    assert found == set(wanted)
    assert f"SPECC_INTERFACE_VERSION: i32 = {native.INTERFACE_VERSION};" in text


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
