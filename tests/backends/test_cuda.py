"""CUDA without a GPU: real machine code, and whole texts on a double of the driver, kernels by Triton's interpreter.

What this cannot show: that NVIDIA's hardware computes what ptxas wrote, and how fast.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import triton
from torch._inductor.codegen.wrapper import PythonWrapperCodegen

from specc.backends.cuda import fakes, leaves
from specc.backends.cuda.forms import cuda_form
from specc.backends.cuda.placement import placed
from specc.backends.plan import Instruction, Plan, Value
from specc.device_names import CUDA_ARCHS
from specc.driver import build_program
from specc.errors import BackendError, SpeccError, UsageError
from specc.ir import Function, Role, TensorType
from specc.ir.dialect import gumbel
from specc.ir.graphs import Builder
from specc.ir.infer import infer_types
from specc.judge import check_request
from specc.progress import SilentProgress
from specc.request import CompileRequest
from specc.runtime import Manifest
from tests.backends.cuda.cubins import cubins, images, sass
from tests.backends.cuda.playing import python
from tests.backends.cuda.recorded import drafting_with_itself, random_model
from tests.conftest import greedy

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent / "cuda"
ARCH = "sm_90"
PROMPT = [7, 21, 14, 7, 21, 29, 15, 7, 21]
NEW = 15
"""Five rounds of two drafts, all of them right."""


@pytest.fixture(scope="module")
def model(shared_folder: Path) -> Path:
    return random_model("llama", shared_folder / "cuda-llama")


@pytest.fixture(scope="module")
def folder(model: Path, shared_folder: Path) -> Path:
    """An artifact that drafts with the target itself, and its kernels' sources."""
    return drafting_with_itself(ARCH, model, shared_folder / "cuda-draft")


# Machine code


def test_an_artifact_holds_machine_code_for_its_arch_and_no_source(folder: Path) -> None:
    artifact = folder / "artifact"
    data = (artifact / "model.so").read_bytes()
    found = list(cubins(data))
    assert {arch for arch, _ in found} == {90}
    manifest = Manifest.read(artifact)
    assert manifest.cuda is not None
    assert manifest.cuda.kernels == sum(len(names) for _, names in found) == len(found)
    named = {name for _, names in found for name in names}
    assert {"_linear_kernel", "_attention_kernel", "_cache_write_kernel", "_accept_kernel"} <= named
    for source in (
        b"__global__",
        b"@triton",
        b"tl.load",
        b".version 8",
        b".visible .entry",
        b"kernels.py",
    ):
        assert source not in data, source
    needed = subprocess.run(
        ["readelf", "-d", artifact / "model.so"], capture_output=True, text=True, check=True
    ).stdout
    libraries = set(re.findall(r"\[(lib[^\]]+)\]", needed))
    assert libraries <= {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6"}


def test_cuobjdump_agrees(folder: Path) -> None:
    """NVIDIA's own reader on the first kernel of ours."""
    data = (folder / "artifact/model.so").read_bytes()
    told = sass(next(images(data)))
    assert "code for sm_90" in told
    assert next(cubins(data))[1] == re.findall(r"Function : (\S+)", told)


def program(model: Path, **options: Any) -> Any:
    request = CompileRequest(
        str(model), Path("unused"), method="ngram", max_model_len=32, prefill_chunk=8, **options
    )
    return build_program(request, SilentProgress())


@pytest.mark.parametrize("arch", ["sm_100"])
def test_a_leaf_is_compiled_for_the_arch_that_is_asked_for(model: Path, arch: str) -> None:
    form = cuda_form(program(model))
    text = leaves.generate(form.functions["head"], arch)
    arrays = re.findall(r"cubin_(\w+)\[\] = \{([\d,]+)\}", text)
    assert len(arrays) == 2  # the norm, and the product
    for _, listed in arrays:
        ((found, names),) = cubins(bytes(map(int, listed.split(","))))
        assert found == int(arch.removeprefix("sm_"))
        assert len(names) == 1
    assert "async_compile" not in text
    # Products of f32 are plain ones: no instruction of tensor cores, which would round to 10 bits (TF32).
    (listed,) = (listed for name, listed in arrays if "linear" in name)
    product = sass(bytes(map(int, listed.split(","))))
    assert "FFMA" in product
    assert "HMMA" not in product
    assert not torch.cuda.is_available()  # nothing of the fakes stays


def test_a_quantised_product_is_one_kernel_on_integers(model: Path) -> None:
    """Read in NVIDIA's assembly: integers on tensor cores (IMMA)."""
    form = cuda_form(program(model, quant="int8"))
    text = leaves.generate(form.functions["head"], ARCH)
    arrays = dict(re.findall(r"cubin_(\w+)\[\] = \{([\d,]+)\}", text))
    (packed,) = (listed for name, listed in arrays.items() if "packed_linear" in name)
    assert len(arrays) == 2  # the norm, and the product
    assert "IMMA" in sass(bytes(map(int, packed.split(","))))


def test_two_forms_of_one_kernel_stay_two() -> None:
    """Inductor names files after Triton's function, and a product with a bias is another kernel than one without."""
    builder = Builder()
    x, w = (
        builder.input("x", TensorType("f32", ("T", 16))),
        builder.input("w", TensorType("f32", (16, 16))),
    )
    bias = builder.input("bias", TensorType("f32", (16,)))
    linear = torch.ops.specc_cuda.linear.default
    graph = builder.output(
        builder.op(linear, builder.op(linear, x, w, bias, False), w, None, False)
    )
    infer_types(graph)
    text = leaves.generate(Function("two", Role.LEAF, graph, ("y",)), ARCH)
    arrays = dict(re.findall(r"cubin_(\w+)\[\] = \{([\d,]+)\}", text))
    assert len(set(arrays.values())) == 2
    loads = re.findall(r"kernels_\.(\w+) = loadKernel\(cubin_(\w+), \"_linear_kernel\"", text)
    assert sorted(loads) == [(name, name) for name in sorted(arrays)]


# Whole texts


@pytest.fixture(scope="module")
def played(folder: Path, libcuda: Path) -> dict[str, Any]:
    """Texts by the engine, on the double, whose launches Triton's interpreter plays."""
    texts = [
        {"max_tokens": NEW, "num_speculative_tokens": 2, "guard_rounds": 1},
        {"max_tokens": 4, "num_speculative_tokens": 0},
        {"max_tokens": 6, "num_speculative_tokens": 2, "temperature": 0.8, "seed": 5},
    ]
    asked = json.dumps([{"prompt": PROMPT, **t} for t in texts])
    told = python(
        "tests.backends.cuda.interpreted",
        str(folder),
        str(libcuda),
        given=asked,
        TRITON_INTERPRET="1",
    )
    found: dict[str, Any] = json.loads(told)
    return found


def test_tokens_are_those_of_transformers(played: dict[str, Any], model: Path) -> None:
    speculated, plain, drawn = played["answers"]
    wanted = greedy(model, PROMPT, NEW)
    assert speculated["tokens"] == wanted
    assert speculated["accepted"] == 2 * (speculated["rounds"] + 1)  # the drafter is the target
    assert plain["tokens"] == wanted[:4]
    assert drawn["tokens"] == sampled(model, 6, 0.8, 5)
    assert played["living"] == 0  # memory of the GPU was given back


def sampled(model: Path, count: int, temperature: float, seed: int) -> list[int]:
    """Tokens by the noise that the README of the runtime defines, over transformers' logits."""
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = list(PROMPT)
    with torch.no_grad():
        for _ in range(count):
            logits = target(torch.tensor([ids])).logits[0, -1].double()
            ids.append(int((logits / temperature + gumbel(seed, len(ids), len(logits))).argmax()))
    return ids[len(PROMPT) :]


def test_a_round_waits_once_allocates_nothing_and_becomes_one_launch(
    played: dict[str, Any], folder: Path
) -> None:
    """What the double counts. (It refuses whatever is asked while a graph is recorded but launches.)"""
    manifest = Manifest.read(folder / "artifact")
    assert manifest.cuda is not None
    calls = manifest.cuda.functions["round_2"]
    assert calls.waits == 1
    for answer in (played["answers"][0], played["answers"][2]):
        counts, rounds = answer["counts"], answer["rounds"]
        assert rounds > 0
        assert counts["cuStreamSynchronize"] == rounds
        assert counts["cuMemcpyHtoDAsync_v2"] == rounds
        graphs, recorded = counts["cuGraphLaunch"], counts["cuGraphInstantiateWithFlags"]
        assert counts["cuLaunchKernel"] == (rounds - graphs + recorded) * calls.launches
        assert counts["cuMemcpyDtoDAsync_v2"] == 0  # caches are written in place
    assert played["answers"][2]["counts"]["cuMemAlloc_v2"] == 0
    # A round that is like one before is recorded, and from then on one launch.
    first = played["answers"][0]
    assert first["counts"]["cuGraphInstantiateWithFlags"] == 1
    assert first["counts"]["cuGraphLaunch"] >= first["rounds"] - 1


def test_no_guards_are_counted_where_caches_lie_on_the_gpu(played: dict[str, Any]) -> None:
    """One look each round was asked for, of memory of the host that nothing writes to."""
    assert played["answers"][0]["rounds"] > 0
    assert played["answers"][0]["guard_checks"] == 0


def test_kernels_compute_what_the_dialect_says() -> None:
    told = python("tests.backends.cuda.kernel_checks", TRITON_INTERPRET="1")
    assert told.split("\n")[:-1] == [
        "linear ok",
        "quantised ok",
        "caches ok",
        "token_trees ok",
        "rows ok",
        "verdicts ok",
    ]


# Loading


OPENING = """
import ctypes, sys
from specc.errors import SpeccError
from specc.runtime import Artifact
if sys.argv[2]:
    gpu = ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)
    gpu.nullgpu_capability(int(sys.argv[3]))
    if sys.argv[4]:
        gpu.nullgpu_fail(sys.argv[4].encode(), int(sys.argv[5]))
try:
    with Artifact.load(sys.argv[1], threads=1) as artifact, artifact.session() as session:
        session.append([1, 2, 3])
        session.next()
except SpeccError as error:
    print(error)
if sys.argv[2]:
    print("living:", gpu.nullgpu_living())
"""


@pytest.mark.parametrize(
    ("capability", "call", "code", "environment", "told"),
    [
        (80, "", 0, {}, ("SPECC-E0504", "compute capability 9.0 (sm_90)", "found: 8.0", "cuda:sm_80")),
        (100, "", 0, {}, ("SPECC-E0504", "found: 10.0", "--device cuda:sm_100")),
        (80, "", 0, {"SPECC_CUDA_DEVICE": "1"}, ("SPECC-E0504", "GPU 1, Null GPU 1")),
        (87, "", 0, {}, ("SPECC-E0504", "found: 8.7", "--device cuda:sm_86")),
        (75, "", 0, {}, ("SPECC-E0504", "found: 7.5", "no code for this one, only for sm_80, sm_86,")),
        (120, "", 0, {}, ("SPECC-E0504", "found: 12.0", "no code for this one")),
        (90, "cuStreamCreate", 2, {}, ("SPECC-E0608", "GPU 0")),
        (90, "cuMemAllocHost_v2", 2, {}, ("SPECC-E0608", "GPU 0")),
        (90, "cuInit", 100, {}, ("SPECC-E0515", "cuInit: 100")),
        (90, "cuMemAlloc_v2", 2, {}, ("SPECC-E0608", "CUDA_ERROR_OUT_OF_MEMORY", "--max-model-len")),
        (90, "cuLaunchKernel", 719, {}, ("SPECC-E0615", "cuLaunchKernel: 719")),
        (90, "cuModuleLoadData", 209, {}, ("SPECC-E0504", "cuModuleLoadData")),
        (90, "cuStreamSynchronize", 700, {}, ("SPECC-E0615", "cuStreamSynchronize: 700")),
        (90, "", 0, {"SPECC_CUDA_DEVICE": "7"}, ("SPECC-E0515", "GPU 7", "0 to 1")),
        (90, "", 0, {"SPECC_CUDA_DEVICE": "first"}, ("SPECC-E0601", "SPECC_CUDA_DEVICE", "first")),
    ],
)  # fmt: skip
def test_what_goes_wrong_on_the_gpu_has_a_code(
    folder: Path, libcuda: Path, capability: int, call: str, code: int, environment: dict[str, str],
    told: tuple[str, ...],
) -> None:  # fmt: skip
    arguments = [str(folder / "artifact"), str(libcuda), str(capability), call, str(code)]
    text = _opened(arguments, **environment)
    assert all(part in text for part in told), text
    assert text.endswith("living: 0\n"), "what was taken from the GPU is given back"


def test_a_value_that_nobody_took_to_the_gpu_is_not_read_there(
    folder: Path, libcuda: Path, tmp_path: Path
) -> None:
    """With the uploads taken out of its plans: a leaf would read what it saw in the first round for ever."""
    broken = Path(shutil.copytree(folder / "artifact", tmp_path / "broken"))
    manifest = json.loads((broken / "manifest.json").read_text())
    for function in manifest["functions"].values():
        names = {}
        for instruction in function["plan"]:
            if instruction["entry"] == "cuda.upload":
                names |= {
                    f"%{o}": i for o, i in zip(instruction["out"], instruction["in"], strict=True)
                }
        function["plan"] = [i for i in function["plan"] if i["entry"] != "cuda.upload"]
        for instruction in function["plan"]:
            instruction["in"] = [names.get(i, i) for i in instruction["in"]]
    (broken / "manifest.json").write_text(json.dumps(manifest))
    text = _opened([str(broken), str(libcuda), "90", "", "0"])
    assert "memory of the host that is no weight" in text
    assert "SPECC-E0609" in text


def test_a_copy_that_fails_leaves_nothing_behind(libcuda: Path, tmp_path: Path) -> None:
    """(Copies are rare: no artifact makes one on purpose.)"""
    cpp = ROOT / "runtime/cpp"
    own = [*(cpp / "cuda").glob("*.cpp"), cpp / "core/error.cpp"]
    own += [cpp / f"model/{name}.cpp" for name in ("tensor", "error", "pool")]
    folders = (ROOT / "runtime/include", cpp, cpp / "cuda", cpp / "model")
    subprocess.run(
        ["g++", "-std=c++20", "-O0", *(f"-I{f}" for f in folders), *own, HERE / "border_test.cpp", libcuda,
         f"-Wl,-rpath,{libcuda.parent}", "-ldl", "-o", tmp_path / "border"], check=True,
    )  # fmt: skip
    told = subprocess.run([tmp_path / "border"], capture_output=True, text=True, check=True).stdout
    assert told == "living: 0\n"


def test_without_a_driver_it_says_so(folder: Path) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver")
    text = _opened([str(folder / "artifact"), "", "", "", ""])
    assert "SPECC-E0515" in text
    assert "libcuda.so.1" in text


def _opened(arguments: list[str], **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", OPENING, *arguments], capture_output=True, text=True, check=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    return result.stdout


# What is refused, and what is said


def test_another_torch_or_triton_is_refused_by_what_it_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If this fails after an update, `fakes.HOOKS` names what has to be looked at."""
    assert fakes.missing() == []
    monkeypatch.delattr(PythonWrapperCodegen, "generate_and_run_autotune_block")
    with pytest.raises(BackendError, match="SPECC-E0451") as refused:
        fakes.require()
    assert "PythonWrapperCodegen.generate_and_run_autotune_block" in str(refused.value)
    monkeypatch.setattr(triton, "__version__", "9.9")
    with pytest.raises(BackendError, match=r"SPECC-E0451[\s\S]*triton 3\.7\.1[\s\S]*9\.9"):
        fakes.require()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"device": "cuda"}, "E0113"),
        ({"device": "cuda:0"}, "E0113"),
        ({"device": "cuda:sm_70"}, "E0113"),
        ({"method": "auto"}, "--method auto"),
        ({"quant": "bf16"}, "--quant bf16"),
        ({"dtype": "f64"}, "--dtype"),
        ({"device": "cpu", "dtype": "bf16"}, "has no --dtype bf16"),
        ({"device": "onnx", "dtype": "bf16"}, "has no --dtype bf16"),
        ({"kv_shards": (2, "")}, "--kv-shards"),
        ({"opset": 15}, "--opset 15"),
        ({"static": True}, "has no --static"),
        ({"max_num_seqs": 2}, "has no --max-num-seqs 2"),
        ({"method": "layerskip", "host_drafter": "ngram"}, "--host-drafter"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cuda_cannot_do_yet_is_refused(options: dict[str, Any], told: str) -> None:
    request = CompileRequest("model", Path("out"), method="ngram", device=f"cuda:{CUDA_ARCHS[0]}")
    with pytest.raises(UsageError) as refused:
        check_request(replace(request, **options))
    assert told in str(refused.value)


def test_an_operation_without_a_form_is_refused_by_name() -> None:
    def plan(entry: str, source: str) -> Plan:
        instruction = Instruction(entry, (source, "%i", "%i"), ())
        return Plan((Value("i", TensorType("i64", (2,))),), (), (instruction,))

    with pytest.raises(SpeccError, match=r"SPECC-E0452.*specc\.cache_move"):
        placed(plan("specc.cache_move", "s:target.k.0"), [])


def test_the_manifest_is_one_of_the_schema(folder: Path) -> None:
    manifest = Manifest.read(folder / "artifact")
    schema = json.loads((ROOT / "runtime/data/manifest.schema.json").read_text())
    jsonschema.validate(manifest.raw, schema)
    assert manifest.raw["device"]["gpu"] == ARCH


def test_each_architecture_that_the_command_takes_is_described() -> None:
    """Its capability is NVIDIA's name of it."""
    assert tuple(fakes.ARCHS) == CUDA_ARCHS
    assert {name: f"sm_{arch.capability}" for name, arch in fakes.ARCHS.items()} == {
        name: name for name in CUDA_ARCHS
    }
