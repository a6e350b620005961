"""The ACL executor against CANN's own headers, which torch-npu brings: it compiles, and what it declares agrees."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]
CPP = ROOT / "runtime/cpp"
ACL = CPP / "graphs/acl"
TESTS = Path(__file__).parent / "acl"
WHEEL = "torch-npu==2.14.0"
"""Of CANN 9.1's level. Its headers are CANN's, under a licence for Huawei's processors, so none is kept here."""

OWN = [f"-I{p}" for p in (ROOT / "runtime/include", CPP, CPP / "graphs", CPP / "model")]
STRICT = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *OWN]


@pytest.fixture(scope="session")
def headers(shared_folder: Path) -> Path:
    """The folder that holds acl/acl.h: SPECC_ACL_INCLUDE, or out of the wheel."""
    if given := os.environ.get("SPECC_ACL_INCLUDE"):
        return Path(given)
    folder = shared_folder / "torch-npu"
    with FileLock(str(folder) + ".lock"):
        if not (folder / "done").exists():
            command = [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                "--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "-d", str(folder), WHEEL,
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
                wanted = [n for n in wheel.namelist() if n.startswith("torch_npu/include/acl/")]
                wheel.extractall(folder, wanted)
            (folder / "done").touch()
    return folder / "torch_npu/include"


def checked(source: Path, *flags: str) -> str:
    return subprocess.run(
        [*STRICT, *flags, str(source)], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    ).stderr  # fmt: skip


def theirs(headers: Path) -> list[str]:
    return ["-DSPECC_REAL_ACL", "-isystem", str(headers)]


SOURCES = sorted(p.name for p in ACL.glob("*.cpp"))


@pytest.mark.parametrize("name", SOURCES)
def test_it_compiles_without_a_warning(headers: Path, name: str) -> None:
    assert checked(ACL / name) == ""
    assert checked(ACL / name, *theirs(headers)) == ""


def test_the_border_and_the_double_do(headers: Path) -> None:
    assert checked(CPP / "graphs/graphs.cpp") == ""
    assert checked(TESTS / "double.cpp", *theirs(headers)) == ""


def declared() -> str:
    """What declared.h has between its braces."""
    text = (ACL / "declared.h").read_text()
    return text[text.index('extern "C" {') + len('extern "C" {') : text.rindex("}")]


def agreement() -> str:
    """A program that compiles if signatures, enumerators and error codes are CANN's."""
    text = declared()
    functions = re.findall(r"^\w[^;{}#]*?\b(acl\w+)\(", text, re.MULTILINE)
    numbers = re.findall(r"\b(ACL_\w+) = (-?\d+)", text)
    numbers += re.findall(r"#define (ACL_\w+) (\d+)", text)
    errors = re.findall(r"\{(\d+), \"(ACL_\w+)\"", (ACL / "errors.cpp").read_text())
    assert len(functions) > 40
    assert len(errors) > 30
    lines = ['#include "acl/acl.h"', '#include "agree.h"', f"namespace own {{{text}}}"]
    lines += [
        f'static_assert(Agree<decltype(own::{f}), decltype(::{f})>::value(), "{f}");'
        for f in functions
    ]
    lines += [f'static_assert({name} == {value}, "{name}");' for name, value in numbers]
    lines += [f'static_assert({name} == {value}, "{name}");' for value, name in errors]
    return "\n".join(lines) + "\n"


def test_what_is_declared_agrees(headers: Path, tmp_path: Path) -> None:
    program = tmp_path / "agreement.cpp"
    program.write_text(agreement())
    flags = ("-isystem", str(headers), f"-I{TESTS}")
    assert checked(program, *flags) == ""
    wrong = agreement().replace("size_t maxCount, int32_t value", "size_t maxCount, int64_t value")
    program.write_text(wrong)
    assert "aclrtMemset" in checked(program, *flags), "and a difference is seen"


def test_every_call_is_declared_and_found() -> None:
    calls = re.findall(r"call\((acl\w+)\)", (ACL / "calls.h").read_text())
    assert sorted(calls) == sorted(
        set(re.findall(r"^\w[^;{}#]*?\b(acl\w+)\(", declared(), re.MULTILINE))
    )
    text = "".join(p.read_text() for p in ACL.glob("*.cpp"))
    assert [c for c in calls if f"{c}(" not in text and f".{c} " not in text] == []
