"""Builds the model library's sources and drives the result as the engine does."""

import concurrent.futures
import ctypes
import hashlib
import os
import pathlib
import subprocess

import numpy as np
from filelock import FileLock

from specc import cache
from tests.runtime.kernels.remote import Remote

HERE = pathlib.Path(__file__).parent
RUNTIME = HERE.parents[2] / "runtime"
MODEL = RUNTIME / "cpp" / "model"
FLAGS = [
    *(
        "-std=c++20",
        "-O3",
        "-fPIC",
        "-ffp-contract=fast",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-psabi",
    ),
    *(f"-I{RUNTIME / 'include'}", f"-I{MODEL}"),
]
LINK = ["-Wl,-z,defs", f"-Wl,--version-script={MODEL / 'export.map'}"]
DTYPES = {"float16": 5, "float32": 6, "float64": 7, "int64": 4, "uint8": 0, "bfloat16": 15}
NUMPY = {number: name for name, number in DTYPES.items()}
CPU_FLAGS = pathlib.Path("/proc/cpuinfo").read_text()
NATIVE = ["x86-64-v3"] + ["x86-64-v4"] * all(
    f" avx512{x}" in CPU_FLAGS for x in ("f", "vl", "bw", "dq", "cd")
)
ARM = "armv8-a"
# Ten times slower, and with tools that pip does not have: for who works on kernels.
ISAS = NATIVE + [ARM] * (os.environ.get("SPECC_TEST_ARM") == "1")
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"

P, I32, I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
BODY = ctypes.CFUNCTYPE(None, P, I32)
SHAPE, INT, HANDLES = ctypes.POINTER(I64), ctypes.POINTER(I32), ctypes.POINTER(P)


class Host(ctypes.Structure):
    _fields_ = [("parallel", P), ("pool", P), ("threads", I32)]


class Table(ctypes.Structure):
    _fields_ = [
        ("abi", ctypes.c_uint32),
        ("isa", ctypes.c_char_p),
        ("entry_count", I32),
        ("entry_names", ctypes.POINTER(ctypes.c_char_p)),
        ("attach", ctypes.CFUNCTYPE(I32, ctypes.POINTER(Host))),
        ("view", ctypes.CFUNCTYPE(P, P, I32, I32, SHAPE)),
        ("retain", ctypes.CFUNCTYPE(P, P)),
        ("release", ctypes.CFUNCTYPE(None, P)),
        ("data", ctypes.CFUNCTYPE(P, P)),
        ("info", ctypes.CFUNCTYPE(I32, P, INT, INT, ctypes.POINTER(SHAPE), ctypes.POINTER(SHAPE))),
        ("run", ctypes.CFUNCTYPE(I32, I32, HANDLES, I32, HANDLES, I32, SHAPE, I32)),
        ("error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
    ]


class KernelError(Exception):
    pass


class Model:
    """A loaded model library."""

    def __init__(self, library, spawn, probe):
        self.largest_error = ctypes.CDLL(str(probe)).largest_error
        self.largest_error.restype = ctypes.c_double
        entry = ctypes.CDLL(str(library)).specc_model_entry
        entry.restype = ctypes.POINTER(Table)
        self.table = entry().contents
        self.spawn = spawn
        names = [self.table.entry_names[i].decode() for i in range(self.table.entry_count)]
        self.entries = {name: index for index, name in enumerate(names)}
        self.use_threads(1)

    def use_threads(self, count):
        self.host = Host(ctypes.cast(self.spawn, P) if count > 1 else None, None, count)
        self.table.attach(self.host)

    def view(self, array):
        """A numpy array or a torch tensor, contiguous and kept alive by the caller."""
        torch_tensor = hasattr(array, "data_ptr")
        assert array.is_contiguous() if torch_tensor else array.flags.c_contiguous
        data = array.data_ptr() if torch_tensor else array.ctypes.data
        shape = (I64 * max(1, array.ndim))(*array.shape)
        dtype = DTYPES[str(array.dtype).removeprefix("torch.")]
        return self.table.view(data, dtype, array.ndim, shape)

    def array(self, handle):
        dtype, ndim, shape, stride = I32(), I32(), SHAPE(), SHAPE()
        self.table.info(handle, dtype, ndim, shape, stride)
        dims = [shape[i] for i in range(ndim.value)]
        name = np.dtype(NUMPY[dtype.value])
        span = (
            1 + sum((shape[i] - 1) * stride[i] for i in range(ndim.value)) if 0 not in dims else 0
        )
        raw = ctypes.string_at(self.table.data(handle), span * name.itemsize)
        strides = [stride[i] * name.itemsize for i in range(ndim.value)]
        return np.lib.stride_tricks.as_strided(np.frombuffer(raw, name), dims, strides).copy()

    def run(self, name, *inputs, outputs=1, attrs=()):
        """Runs an entry on arrays (C-contiguous, kept alive by the caller) and returns arrays."""
        ins = (P * max(1, len(inputs)))(*[self.view(x) for x in inputs])
        outs = (P * max(1, outputs))()
        status = self.table.run(
            self.entries[name],
            ins,
            len(inputs),
            outs,
            outputs,
            (I64 * max(1, len(attrs)))(*attrs),
            len(attrs),
        )
        if status != 0:
            raise KernelError(self.table.error().decode())
        results = [self.array(outs[i]) for i in range(outputs)]
        for i in range(outputs):
            self.table.release(outs[i])
        return results[0] if outputs == 1 else results


def compile_all(commands):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in pool.map(
            lambda c: subprocess.run(c, capture_output=True, text=True, check=False), commands
        ):
            assert done.returncode == 0, done.stderr


def built():
    """The folder of what `build` makes of these sources, made once on this machine whoever asks first."""
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(repr([version, FLAGS, LINK, ISAS]).encode())
    for folder in (MODEL, RUNTIME / "include", HERE):
        for path in sorted(p for p in folder.iterdir() if p.is_file()):
            digest.update(path.read_bytes())
    work = cache.folder() / "test-kernels" / digest.hexdigest()[:32]
    work.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{work}.lock"):
        if not (work / "done").exists():
            work.mkdir(exist_ok=True)
            build(work)
            (work / "done").touch()
    return work


def build(work):
    """Fills a folder with a model library for each ISA, and the tests' helper libraries."""
    sources = [s for s in sorted(MODEL.glob("*.cpp")) if not s.name.startswith("bench_")]
    commands, links = [], []
    for isa in ISAS:
        compiler = CROSS if isa == ARM else "g++"
        extra = ["-fvisibility=hidden", f"-march={isa}", f'-DTEST_ISA="{isa}"']
        served = [HERE / f"{name}.cpp" for name in ("served", "host", "vecmath_probe")]
        objects = []
        for source in [*sources, HERE / "leaves.cpp", *(served if isa == ARM else ())]:
            objects.append(work / f"{source.stem}.{isa}.o")
            commands.append([compiler, *FLAGS, *extra, "-c", source, "-o", objects[-1]])
        if isa == ARM:
            links.append([compiler, "-static", *objects, "-o", work / isa])
            continue
        links.append([compiler, "-shared", *LINK, *objects, "-o", work / f"{isa}.so"])
        probe = [HERE / "vecmath_probe.cpp", "-o", work / f"vecmath.{isa}.so"]
        commands.append([compiler, *FLAGS, f"-march={isa}", "-shared", *probe])
    host = [HERE / "host.cpp", "-lpthread", "-o", work / "host.so"]
    commands.append(["g++", *FLAGS, "-shared", *host])
    compile_all(commands)
    compile_all(links)


def load(work):
    spawn = ctypes.CDLL(str(work / "host.so")).spawn_parts
    models = {isa: Model(work / f"{isa}.so", spawn, work / f"vecmath.{isa}.so") for isa in NATIVE}
    if ARM in ISAS:
        models[ARM] = Remote([EMULATOR, work / ARM], NUMPY, DTYPES, KernelError)
    return models
