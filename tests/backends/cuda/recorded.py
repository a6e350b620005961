"""Compiles artifacts for CUDA and remembers what each kernel was made of by its cubin."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from specc.backends.cuda import fakes, lower
from specc.backends.cuda.kernels import mixed
from specc.backends.cuda.leaves import generate
from specc.backends.cuda.packed import _half, _stored, _unpacked
from specc.backends.cuda.trees import _best_of
from specc.backends.nvcc import Nvcc
from specc.driver import compile_model
from specc.ir import Function
from specc.progress import SilentProgress
from specc.request import CompileRequest
from tests.backends.cuda.compiled import build

_PRELUDE = """import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_helpers import math as tl_math
from tests.backends.cuda.interpreted import libdevice


"""
_JIT = "@triton.jit\n"
_HELPERS = (mixed, _half, _stored, _unpacked, _best_of)
"""Functions that kernels call, whose source is their own."""


def random_model(family: str, folder: Path, **more: Any) -> Path:
    """A random model of two layers, small enough for an interpreter, made once a run."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            torch.manual_seed(0)
            config = AutoConfig.for_model(
                family, vocab_size=70, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=False,
                initializer_range=0.4, **more,
            )  # fmt: skip
            AutoModelForCausalLM.from_config(config).eval().save_pretrained(folder)
    return folder


def drafting_with_itself(arch: str, model: Path, folder: Path, **options: Any) -> Path:
    """`folder` with what `compiled_for` writes, made once a run: the target drafts, so that every draft is right."""
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            compiled_for(
                arch, model, folder, "draft_model", drafter=str(model), max_model_len=32, prefill_chunk=8,
                num_speculative_tokens=(0, 2), **options,
            )  # fmt: skip
    return folder


def compiled_for(arch: str, model: Path, folder: Path, method: str, **options: Any) -> Path:
    """An artifact at `folder`/artifact, and its kernels as modules in `folder`/kernels with an index.json."""
    kernels = folder / "kernels"
    kernels.mkdir(parents=True)
    index: dict[str, dict[str, Any]] = {}
    made = fakes._compile_only

    def compile_only(wrapper: Any, collected: dict[str, Any]) -> None:
        made(wrapper, collected)
        for tuner in collected.values():
            launcher = tuner.launchers[0]
            key = hashlib.sha256(launcher.bin.asm["cubin"]).hexdigest()
            meta = tuner.triton_meta
            constants = {
                str(k): v for k, v in {**meta["constants"], **launcher.config.kwargs}.items()
            }
            index[key] = {
                "function": tuner.fn.__name__, "signature": meta["signature"], "constants": constants,
            }  # fmt: skip
            helpers = [f for f in _HELPERS if f"{f.__name__}(" in tuner.fn.src]
            text = "\n\n".join(_JIT + f.src for f in (*helpers, tuner.fn))
            (kernels / f"kernel_{key}.py").write_text(_PRELUDE + text)

    known: dict[str, str] = {}

    def generated(function: Function, arch: str) -> str:
        """(What is cached has no source of its kernels.)"""
        key = lower._identity(function, arch)
        if key not in known:
            known[key] = generate(function, arch)
        return known[key]

    made_by_nvcc = Nvcc.cubin

    def cubin(self: Nvcc, source: str, arch: str, where: str) -> bytes:
        made = made_by_nvcc(self, source, arch, where)
        key = hashlib.sha256(made).hexdigest()
        index[key] = {"library": build(source, kernels / f"kernels_{key}.so").name}
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fakes, "_compile_only", compile_only)
        patch.setattr(Nvcc, "cubin", cubin)
        patch.setattr(lower, "source_of", generated)
        request = CompileRequest(
            str(model),
            folder / "artifact",
            method=method,
            device=f"cuda:{arch}",
            isa="avx2",
            **options,
        )
        compile_model(request, SilentProgress())
    (kernels / "index.json").write_text(json.dumps(index))
    return folder / "artifact"
