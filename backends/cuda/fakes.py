"""A GPU that is not there: what torch and Triton ask of one while they only compile.

Inductor writes CUDA code where `torch.cuda` says that there is a device, asks it for its properties, and loads and
times what it compiled. Nothing of that is needed to know the code. `gpu(arch)` answers for the architecture by name.
What it replaces is private to torch and Triton: `HOOKS` lists it, so that another release is refused by name
and not by what it happens to do.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from specc.backends import TRITON
from specc.errors import BackendError


@dataclass(frozen=True)
class Arch:
    """A GPU of its kind: `sms` multiprocessors, bytes of shared memory for a block (NVIDIA's tuning guides)."""

    capability: int
    model: str
    sms: int
    shared_memory: int
    l2: int


ARCHS = {
    "sm_80": Arch(80, "A100", 108, 163 << 10, 40 << 20),
    "sm_86": Arch(86, "A10", 72, 99 << 10, 6 << 20),
    "sm_89": Arch(89, "L40S", 142, 99 << 10, 96 << 20),
    "sm_90": Arch(90, "H100", 132, 227 << 10, 50 << 20),
    "sm_100": Arch(100, "B200", 148, 227 << 10, 126 << 20),
}

HOOKS = (
    *(f"torch.cuda:{name}" for name in (
        "is_available", "device_count", "current_device", "get_device_properties", "get_device_capability",
        "get_device_name", "_lazy_init", "synchronize", "set_device", "_exchange_device", "_maybe_exchange_device",
        "is_bf16_supported", "is_initialized", "get_arch_list", "get_rng_state", "set_rng_state",
    )),
    *(f"torch._dynamo.device_interface:CudaInterface.{name}" for name in (
        "current_device", "device_count", "get_device_properties", "get_raw_stream", "synchronize", "set_device",
        "exchange_device", "maybe_exchange_device", "is_bf16_supported", "Worker.get_device_properties",
    )),
    "torch._C:_ensureCUDADeviceGuardSet",
    "torch._inductor.runtime.hints:DeviceProperties.create",
    "torch._inductor.fx_passes.joint_graph:lazy_init",
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.run",
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.precompile",
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.save_gpu_kernel",
    "torch._inductor.runtime.triton_heuristics:StaticTritonCompileResult.can_statically_launch",
    "torch._inductor.runtime.triton_helpers:set_driver_to_gpu",
    "torch._inductor.codegen.wrapper:PythonWrapperCodegen.generate_and_run_autotune_block",
    "torch.utils.cpp_extension:CUDA_HOME",
    "torch.utils._triton:has_triton",
    "triton.compiler:CompiledKernel._init_handles",
    "triton.runtime:driver.set_active",
    "triton.backends.compiler:GPUTarget",
)  # fmt: skip
"""MODULE:NAME of everything that is replaced or relied on, beyond what torch and Triton document."""


def missing() -> list[str]:
    """The hooks that this torch and this Triton do not have."""
    absent = []
    for hook in HOOKS:
        module, _, path = hook.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
        except (ImportError, AttributeError):
            absent.append(hook)
    return absent


def require() -> None:
    """Raise BackendError (SPECC-E0451) without Triton, with another one, or with a torch that lost a hook."""
    try:
        import triton
    except ImportError:
        raise BackendError(
            "SPECC-E0451", "--device cuda needs Triton, which compiles its kernels",
            expected=f"triton {TRITON}", cure="pip install 'specc-compiler[cuda]'",
        ) from None  # fmt: skip
    if triton.__version__ != TRITON:
        raise BackendError(
            "SPECC-E0451", "--device cuda needs the Triton that its fakes know", expected=f"triton {TRITON}",
            found=triton.__version__, cure="pip install 'specc-compiler[cuda]'",
        )  # fmt: skip
    if triton.knobs.runtime.interpret:
        raise BackendError(
            "SPECC-E0451", "Triton interprets kernels here instead of compiling them", where="TRITON_INTERPRET",
            cure="unset it",
        )  # fmt: skip
    if absent := missing():
        raise BackendError(
            "SPECC-E0451", "torch or Triton lost what --device cuda replaces to compile without a GPU",
            expected=", ".join(absent), found=f"torch {torch.__version__}, triton {triton.__version__}",
            cure="pip install torch==2.13.0 'specc-compiler[cuda]'",
        )  # fmt: skip


class _Driver:
    """What Triton asks of a driver while it only compiles."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {
                "max_shared_mem": arch.shared_memory, "multiprocessor_count": arch.sms, "warpSize": 32,
                "max_num_regs": 65536,
            },
            unload_module=lambda module: None,
        )  # fmt: skip

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> object:
        return torch.cuda

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    @staticmethod
    def is_active() -> bool:
        return True


def _properties(arch: Arch) -> SimpleNamespace:
    return SimpleNamespace(
        name=f"NVIDIA {arch.model}", major=arch.capability // 10, minor=arch.capability % 10,
        multi_processor_count=arch.sms, total_memory=24 << 30, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=1536, max_threads_per_block=1024, warp_size=32,
        shared_memory_per_block=48 << 10, shared_memory_per_block_optin=arch.shared_memory,
        shared_memory_per_multiprocessor=arch.shared_memory + 1024, L2_cache_size=arch.l2, is_integrated=0,
        gcnArchName="", clock_rate=1_400_000, memory_clock_rate=1_500_000, memory_bus_width=384,
    )  # fmt: skip


@contextlib.contextmanager
def gpu(name: str) -> Iterator[dict[str, Any]]:
    """Within it, torch and Triton compile for the architecture `name`; gives Inductor's kernels by their names.

    (Inductor's own files are named after Triton's function, of which a leaf may have several versions.)
    Raises BackendError (SPECC-E0451).
    """
    require()
    import torch.utils._triton as has
    import triton
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.fx_passes import joint_graph
    from torch._inductor.runtime import hints, triton_helpers, triton_heuristics
    from torch.utils import cpp_extension
    from triton.compiler import CompiledKernel

    arch = ARCHS[name]
    properties = _properties(arch)
    capability = (properties.major, properties.minor)
    torch._C._ensureCUDADeviceGuardSet()  # while no GPU is visible: a guard that does nothing
    on_cpu = joint_graph.lazy_init

    def forget() -> None:
        hints.DeviceProperties.create.cache_clear()
        for answer in vars(has).values():
            if hasattr(answer, "cache_clear"):
                answer.cache_clear()

    kernels: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:

        def answer(owner: object, **answers: Any) -> None:
            for attribute, value in answers.items():
                stack.enter_context(mock.patch.object(owner, attribute, value, create=True))

        def always(value: object) -> Any:
            return lambda *args, **kwargs: value

        answer(
            torch.cuda, is_available=always(True), device_count=always(1), current_device=always(0),
            get_device_properties=always(properties), get_device_capability=always(capability),
            get_device_name=always(properties.name), _lazy_init=always(None), synchronize=always(None),
            set_device=always(None), _exchange_device=always(0), _maybe_exchange_device=always(0),
            is_bf16_supported=always(True), is_initialized=always(False), get_arch_list=always([name]),
            get_rng_state=always(torch.zeros(16, dtype=torch.uint8)), set_rng_state=always(None),
        )  # fmt: skip
        answer(
            torch._C, _cuda_getDevice=always(0), _cuda_setDevice=always(None), _cuda_exchangeDevice=always(0),
            _cuda_maybeExchangeDevice=always(0), _cuda_getCurrentRawStream=always(0), _cuda_synchronize=always(None),
        )  # fmt: skip
        answer(
            CudaInterface, current_device=always(0), device_count=always(1), get_device_properties=always(properties),
            get_raw_stream=always(0), synchronize=always(None), set_device=always(None), exchange_device=always(0),
            maybe_exchange_device=always(0), is_bf16_supported=always(True),
        )  # fmt: skip
        answer(CudaInterface.Worker, get_device_properties=always(properties))
        # It makes a constant on the device, which a fake one cannot hold.
        answer(joint_graph, lazy_init=lambda device=None: on_cpu(torch.device("cpu")))
        if cpp_extension.CUDA_HOME is None:
            answer(cpp_extension, CUDA_HOME="/nonexistent")
        answer(CompiledKernel, _init_handles=_without_handles)
        answer(triton_heuristics.StaticTritonCompileResult, can_statically_launch=always(None))
        answer(triton_heuristics.CachingAutotuner, run=_keep_first)
        answer(triton_helpers, set_driver_to_gpu=always(None))
        answer(
            PythonWrapperCodegen,
            generate_and_run_autotune_block=lambda wrapper: _compile_only(wrapper, kernels),
        )
        stack.enter_context(torch._inductor.config.patch(
            compile_threads=1, shape_padding=False, joint_graph_constant_folding=False,
        ))  # fmt: skip
        # Line tables would carry this machine's paths into the artifact.
        stack.enter_context(triton.knobs.compilation.scope())
        triton.knobs.compilation.disable_line_info = True
        forget()
        stack.callback(forget)
        before = getattr(triton.runtime.driver, "_active", None)
        triton.runtime.driver.set_active(_Driver(arch))
        stack.callback(lambda: setattr(triton.runtime.driver, "_active", before))
        yield kernels


def _without_handles(kernel: Any) -> None:
    """A compiled kernel that is never loaded."""
    kernel.module = kernel.function = None
    kernel.n_regs = kernel.n_spills = 0
    kernel.n_max_threads = 1024
    kernel._run = lambda *args, **kwargs: None


def _keep_first(tuner: Any, *args: object, **kwargs: object) -> None:
    """Of the configurations that could be timed, the one that Inductor names first; none is launched."""
    if not tuner.launchers:
        tuner.precompile()
    launcher = tuner.launchers[0]
    if not getattr(tuner, "cuda_kernel_saved", False) and launcher.store_cubin:
        tuner.save_gpu_kernel(0, launcher)


def _compile_only(wrapper: Any, kernels: dict[str, Any]) -> None:
    """In place of running each kernel once on example inputs: compile it."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    wrapper.kernel_autotune_defs.splice("\nasync_compile.wait(globals())\ndel async_compile\n")
    scope: dict[str, Any] = {}
    exec(wrapper.kernel_autotune_defs.getvalue(), scope)  # code that Inductor wrote a moment ago
    for kernel in list(scope.values()):
        if isinstance(kernel, CachingAutotuner):
            _keep_first(kernel)
            kernels[kernel.inductor_meta["kernel_name"]] = kernel
