"""What the backends have in common whose leaves torch's Inductor writes."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

import torch

from specc.cache import Pieces, inductor_settings
from specc.errors import BackendError
from specc.ir import Function
from specc.ir.printer import function_lines

OPTIONS: dict[str, object] = {
    "aot_inductor.package": True,
    "aot_inductor.package_cpp_only": True,
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.link_libtorch": False,
    "cpp.vec_isa_ok": True,
    "fx_graph_cache": False,
}
"""What Inductor is told, whatever the device."""

CONTAINER = re.compile(r"\A.*?^\} // extern \"C\"\n", re.DOTALL | re.MULTILINE)
"""Torch's headers, and the C functions of its container (torch/_inductor/codegen/aoti_runtime/interface.cpp)."""

INPUT_CHECKS = re.compile(
    r"^(AOTI_NOINLINE static void check_input_|static bool _check_aoti_runtime_check_inputs_env\().*?"
    r"(?=^void AOTInductorModel::run_impl\()",
    re.DOTALL | re.MULTILINE,
)
"""Checks that an environment variable turns on; most of the text of a leaf with many inputs."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inductor's own warnings are about its internals, not about the user's model."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


@contextlib.contextmanager
def refusing(name: str, instead: str) -> Iterator[None]:
    """Within it, what Inductor raises on the leaf `name` is a BackendError (SPECC-E0402); `instead`: flags to try."""
    try:
        yield
    except BackendError:
        raise
    except Exception as error:
        raise BackendError(
            "SPECC-E0402", f"Inductor cannot compile {name}: {[*str(error).splitlines(), ''][0]}", where=name,
            cure=f"try {instead}, and report the model",
        ) from error  # fmt: skip


def refuse_form(name: str, expected: str, found: str, instead: str) -> BackendError:
    """The error for a text that is not what this Inductor is known to write."""
    return BackendError(
        "SPECC-E0402", f"Inductor wrote {name} in a form that the runtime does not know", where=name,
        expected=expected, found=found, cure=f"try {instead}, and report the model",
    )  # fmt: skip


def refuse_missing(name: str, missing: Collection[str], place: str, instead: str) -> None:
    """Raise BackendError (SPECC-E0405) for operations that Inductor hands to libtorch, and the runtime does not have.

    `missing`: what it calls them; `""` for one that it does not name. `place`: where they would run, as in " on a GPU".
    """
    if not missing:
        return
    names = sorted(re.sub(r"^(aoti_torch_)?(cpu_|cuda_)?|_out$", "", m) for m in missing if m)
    raise BackendError(
        "SPECC-E0405",
        f"the runtime has no kernel for {', '.join(names) or 'an operation Inductor does not compile'}{place}",
        where=name, cure=f"try {instead}, and report the model's architecture",
    )  # fmt: skip


def kept(identity: str, generate: Callable[[], str]) -> str:
    """Generated C++, from the cache if a leaf of this identity was compiled before."""
    return Pieces("leaves").get(f"{identity}.cpp", lambda p: p.write_text(generate())).read_text()


def identity_of(function: Function, generators: Collection[str], told: Collection[str]) -> str:
    """Names what is generated for `function`, the function's name aside: equal leaves are generated once.

    `generators`: the modules that generate it; `told`: what else they are given.
    """
    text = function_lines(replace(function, name="leaf"))
    code = code_behind(*generators, "specc.ir.dialect")
    parts = [*text, torch.__version__, code, *told, *inductor_settings()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@lru_cache
def code_behind(*modules: str) -> str:
    """The source of `modules` and of all that they import, at whatever remove, of the backends and the IR."""
    todo, found = list(modules), dict[str, str]()
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found[name] = Path(str(import_module(name).__file__)).read_text()
        todo += _imported(found[name])
    return "\0".join(text for _, text in sorted(found.items()))


def _imported(text: str) -> Iterator[str]:
    """Where what `text` imports is written: a package only passes on."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom):
            continue
        source = node.module or ""
        if not source.startswith(("specc.backends", "specc.ir")):
            continue
        for alias in node.names:
            value = getattr(import_module(source), alias.name, None)
            home = value.__name__ if isinstance(value, ModuleType) else source
            if isinstance(value, (type, FunctionType)):
                home = value.__module__
            yield home if home.startswith("specc.") else source  # (`ops` is a module of torch's)
