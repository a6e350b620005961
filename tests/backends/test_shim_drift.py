"""Does the runtime still know all that torch's generated code calls? Run on a newer torch, this reports what drifted:

pip install torch==2.14.1 && python -m pytest tests/backends/test_shim_drift.py
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from specc.backends.inductor import leaves
from specc.backends.inductor.lower import shim_names
from specc.backends.pack_weights import pack_weights
from specc.errors import BackendError
from specc.ir import Role
from specc.ir.importers.folder import load_folder
from specc.ir.importers.huggingface import import_model
from specc.passes import pipelines
from specc.runtime import sources

RUNTIME = Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_runtime"
CALL = re.compile(r"\b(aoti_torch_\w+)\s*\(")
# Named in headers that a leaf includes, but only reached by models with constants, CUDA or a proxy executor.
UNREACHED = re.compile(
    r"cuda|xpu|mps|proxy|stream|device_guard|sycl|c10_value|aoti_torch_cpu_|_view_dtype|create_file|check_inf"
)


def test_generated_code_calls_nothing_the_runtime_lacks(tiny_model: Path) -> None:
    from transformers import PreTrainedModel

    model = load_folder(tiny_model)
    assert isinstance(model, PreTrainedModel)
    shape = pipelines.Shape((0, 2), 64, 16)
    program = pack_weights(pipelines.host("ngram", shape, {})(import_model(model, "tiny")))
    called: set[str] = set()
    for function in program.functions.values():
        if function.role is Role.LEAF:
            source = leaves.generate(function, "x86-64-v3")
            # After the includes: what this leaf calls, not what headers offer.
            called |= set(CALL.findall(source))
    known = shim_names()
    unknown = {name for name in called - known if not UNREACHED.search(name)}
    assert unknown == set(), f"torch {torch.__version__} calls what the shim of the runtime has not"


def test_headers_that_leaves_inline_call_nothing_the_runtime_lacks() -> None:
    called: set[str] = set()
    for name in ("utils.h", "scalar_to_tensor.h", "arrayref_tensor.h"):
        path = RUNTIME / name
        if path.exists():
            called |= set(CALL.findall(path.read_text()))
    unknown = {name for name in called - shim_names() if not UNREACHED.search(name)}
    assert unknown == set(), f"torch {torch.__version__} inlines calls that the runtime has not"


def test_vectors_of_arm_call_nothing_the_runtime_lacks() -> None:
    """Torch's headers for NEON, which are read when leaves are compiled for ARM; some names are put together there."""
    folder = Path(torch.__file__).parent / "include/ATen/cpu/vec/vec128"
    text = "".join((folder / f"vec128_{kind}_neon.h").read_text() for kind in ("float", "double"))
    called = {name for name in re.findall(r"\bSleef_\w+", text) if not name.endswith("sve")}
    built = r"^ *DEFINE_SLEEF_COMPATIBLE_(?:UN|BIN)ARY_ELEMENTWISE_FUNC\((\w+)\)"
    plain = re.findall(built, text, re.MULTILINE)
    called |= {f"Sleef_{name}f4_u10" for name in plain}
    declared = (sources.CPP / "model/neon/sleef.h").read_text()
    offered = set(re.findall(r"\b(Sleef_\w+)\)", declared))
    assert len(plain) > 10
    assert called <= offered
    assert offered <= shim_names()


def test_a_leaf_brings_no_container_and_no_checks_of_its_inputs(tiny_model: Path) -> None:
    from transformers import PreTrainedModel

    model = load_folder(tiny_model)
    assert isinstance(model, PreTrainedModel)
    shape = pipelines.Shape((0,), 64, 16)
    program = pack_weights(pipelines.host("ngram", shape, {})(import_model(model, "tiny")))
    leaf = next(f for f in program.functions.values() if f.role is Role.LEAF)
    source = leaves.generate(leaf, "x86-64-v3")
    assert source.startswith('#include "leaf.h"')
    assert "AOTInductorModelContainer" not in source
    assert "check_input_0" not in source
    assert "void AOTInductorModel::run_impl(" in source


def test_a_leaf_in_another_form_is_refused_by_name() -> None:
    with pytest.raises(BackendError) as caught:
        leaves._lean("int main() {}", "decode")
    assert caught.value.code == "SPECC-E0402"
    assert caught.value.where == "decode"
