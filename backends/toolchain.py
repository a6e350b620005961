"""The C++ compiler: sources -> objects -> libraries, each compiled once per content."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path

import torch

from specc import cache
from specc.backends.base import Progress, arch_of
from specc.cache import Pieces
from specc.errors import BackendError
from specc.runtime import sources

_TORCH = Path(torch.__file__).parent / "include"
_DEFINITIONS = (
    "TORCH_INDUCTOR_CPP_WRAPPER", "STANDALONE_TORCH_HEADER", "C10_USING_CUSTOM_GENERATED_MACROS",
    "NDEBUG",
)  # fmt: skip
_CAPABILITY = {"x86-64-v3": "AVX2", "x86-64-v4": "AVX512", "armv8-a": "NEON"}
_NEON = ("-DAT_BUILD_ARM_VEC256_WITH_SLEEF", f"-I{sources.CPP / 'model/neon'}")
"""Torch's vector headers then call SLEEF's functions, by the names of specc's own."""
# Contraction is off where Inductor wrote the code, since eager does not contract, and on where specc did, since its
# kernels are chains of fused multiply-adds by design.
_LEAF_FLAGS = (
    "-O3",
    "-ffp-contract=off",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-fno-tree-loop-vectorize",
)
_LEAF_HEADERS = (
    "#include <torch/csrc/inductor/cpp_prefix.h>\n"
    "#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>\n"
)
_KERNEL_FLAGS = ("-O3", "-ffp-contract=fast")
_ENGINE_FOLDERS = ("core", "core/engine", "core/drafters", "core/sampling", "tokenizer")
_ARCHIVES = ("lib/libmodel.a", "lib/libspecc.a")
_FOR_APPS = {
    "include/specc.h": sources.INCLUDE / "specc.h",
    "lib/cmake/specc/specc-config.cmake": sources.CPP / "specc-config.cmake",
}
# Code keeps __FILE__, of headers too, and where they were is nobody's business.
_PLACES = (f"-fmacro-prefix-map={_TORCH}=torch", f"-fmacro-prefix-map={sources.CPP.parent}=specc")
# No names that are one in a whole program: a library that has some is never unloaded, and an archive cannot hide them.
_COMMON = (
    "-std=c++20", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-fno-gnu-unique", "-w",
)  # fmt: skip


@dataclass(frozen=True)
class Object:
    """One file to compile."""

    source: str
    name: str
    flags: tuple[str, ...]
    header: str = ""
    """The content of a header that it alone includes: nothing else is compiled again for it."""
    first: str = ""
    """Lines that include others' headers, read before the source. The compiler keeps them as it has understood them: of
    a leaf they are 186,000 lines and three quarters of the work, and the next one needs them again."""


class Toolchain:
    """Compiles for one instruction set, through the cache. Safe to use from several processes."""

    def __init__(self, isa: str) -> None:
        self.isa = isa
        arch = arch_of(isa)
        name = "g++" if arch == platform.machine() else f"{arch}-linux-gnu-g++"
        found = shutil.which(os.environ.get("CXX", name))
        if found is None:
            raise BackendError(
                "SPECC-E0403", f"there is no C++ compiler for {arch}",
                expected=f"{name} 11 or newer, or CXX",
                cure="apt-get install g++, or for --isa neon g++-aarch64-linux-gnu",
            )  # fmt: skip
        if arch != platform.machine() and arch not in (makes := _told(found, "-dumpmachine")):
            raise BackendError(
                "SPECC-E0403", f"the C++ compiler is none for {arch}", where=found, expected=name,
                found=makes, cure="unset CXX, or set it to one for that architecture",
            )  # fmt: skip
        self.compiler = found
        self._running: set[subprocess.Popen[str]] = set()
        self._objects, self._headers = Pieces("objects"), Pieces("headers")
        self._understood: dict[str, Path] = {}
        self.version = _version(found)

    @cached_property
    def march(self) -> str:
        """The flag for this instruction set."""
        return f"-march={self.isa}"

    def leaf(self, source: str, name: str) -> Object:
        """Generated code of one leaf, whose functions get names that begin with `name`."""
        return Object(_named(source, name), name, self._leaf_flags(), first=_LEAF_HEADERS)

    def calling(self, source: str, name: str) -> Object:
        """The same of a leaf that only tells a GPU what to compute, on the runtime's `cuda/leaf_cuda.h`."""
        folder = sources.CPP / "cuda"
        flags = ("-O1", *(f for f in self._leaf_flags() if f != "-O3"), f"-I{folder}")
        header, first = ((folder / n).read_text() for n in ("leaf_cuda.h", "redirected.h"))
        return Object(_named(source, name), name, flags, header, first)

    def _leaf_flags(self) -> tuple[str, ...]:
        capability = _CAPABILITY[self.isa]
        return (
            *_LEAF_FLAGS, self.march, *(f"-D{d}" for d in _DEFINITIONS),
            f"-DCPU_CAPABILITY={capability}", f"-DCPU_CAPABILITY_{capability}",
            *(_NEON if capability == "NEON" else ()),
            f"-I{_TORCH}", f"-I{_TORCH / 'torch/csrc/api/include'}", f"-I{sources.CPP / 'model'}",
        )  # fmt: skip

    def launching(self, source: str, name: str) -> Object:
        """A leaf that only launches what a GPU runs, on the runtime's folder `cuda`."""
        own = (sources.INCLUDE, sources.CPP, sources.CPP / "cuda", sources.CPP / "model")
        header = "".join(p.read_text() for p in sorted((sources.CPP / "cuda").glob("*.h")))
        return Object(source, name, ("-O1", self.march, *(f"-I{p}" for p in own)), header)

    def kernels(self) -> list[Object]:
        """Specc's own kernels and the shim that leaves call."""
        folder = sources.CPP / "model"
        flags = (*_KERNEL_FLAGS, self.march, f"-I{sources.INCLUDE}", f"-I{folder}")
        files = sorted(p for p in folder.glob("*.cpp") if not p.name.startswith("bench_"))
        return [Object(p.read_text(), f"kernel_{p.stem}", flags) for p in files]

    def table(self, leaves: Sequence[str]) -> Object:
        """The generated list of leaves."""
        flags = ("-O1", self.march, f"-I{sources.INCLUDE}", f"-I{sources.CPP / 'model'}")
        return Object(leaf_table(leaves, self.isa), "leaves", flags)

    def player(
        self, folder: str, table: str, *, parts: Sequence[str] = (), include: Sequence[Path] = ()
    ) -> list[Object]:
        """What plays leaves that are no code of the CPU: their generated `table`, and the runtime's `folder`.

        `parts`: folders in it that count too; `include`: where headers of others are.
        """
        home = sources.CPP / folder
        own = (sources.INCLUDE, sources.CPP, home, sources.CPP / "model", *include)
        flags = ("-O2", self.march, *(f"-I{p}" for p in own))
        header = "".join(p.read_text() for p in sorted(home.rglob("*.h")))
        files = [p for part in (".", *parts) for p in sorted((home / part).glob("*.cpp"))]
        objects = [
            Object(p.read_text(), f"{folder}_{p.parent.name}_{p.stem}", (f"-iquote{p.parent}", *flags), header)
            for p in (*files, sources.CPP / "core/error.cpp")
        ]  # fmt: skip
        return [*objects, Object(table, f"{folder}_table", flags, header)]

    def engine(self) -> list[Object]:
        """libspecc: engine, tokenizer and C ABI, for any CPU of its architecture, a folder at a time.

        Most of what a file costs is the standard library's headers, so the files of a folder are read as one; names
        that they keep to themselves must differ.
        """
        flags = ("-O2", "-fno-math-errno", f'-DSPECC_VERSION="{version("specc-compiler")}"',
                 f"-I{sources.INCLUDE}", f"-I{sources.CPP}", f"-I{sources.CPP / 'core'}")  # fmt: skip
        units = []
        for part in _ENGINE_FOLDERS:
            folder = sources.CPP / part
            texts = (f'#line 1 "{p.name}"\n{p.read_text()}' for p in sorted(folder.glob("*.cpp")))
            units.append(
                Object("\n".join(texts), part.replace("/", "_"), (f"-iquote{folder}", *flags))
            )
        return units

    @contextmanager
    def at_work(
        self, cores: int | None = None
    ) -> Iterator[Callable[[Sequence[Object]], list[Future[Path]]]]:
        """Within this context, a function that compiles what the cache does not have, on every core or on so many.

        It returns at once. When the context ends by an exception, no compiler runs on.
        """
        pool = ThreadPoolExecutor(cores or max(1, len(os.sched_getaffinity(0))))
        try:
            yield lambda objects: [pool.submit(self._compile, o) for o in objects]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(self._running):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            pool.shutdown()

    @contextlib.contextmanager
    def ahead(self, *first: Object) -> Iterator[None]:
        """Within this context, `first` and what depends on no model is compiled on one core; the cache then has it."""
        with self.at_work(cores=1) as start:
            start([*first, *self.kernels(), *self.engine()])
            yield

    def build(
        self, into: Path, model: Sequence[Object], leaves: Iterable[Object], progress: Progress, doing: str,
        *, static: bool = False,
    ) -> tuple[str, ...]:  # fmt: skip
        """`write`, of what is compiled while `leaves` are generated on one core, in a phase named `doing`."""
        with self.at_work() as start:
            with progress.phase(doing):
                started, engine = start(model), start(self.engine())
                for leaf in leaves:
                    started += start([leaf])
            with progress.phase(f"compile for {self.isa}"):
                objects = [[f.result() for f in part] for part in (started, engine)]
        return self.write(into, *objects, static=static)

    def write(
        self, into: Path, model: Sequence[Path], engine: Sequence[Path], *, static: bool
    ) -> tuple[str, ...]:
        """What an app needs, under `into`: model.so, libspecc, its header and a package for CMake; returns their names.

        `static`: archives of both libraries too.
        """
        libraries = [("model.so", model, "specc_model_*"), ("lib/libspecc.so", engine, "specc_*")]
        for name, objects, exports in libraries:
            (into / name).parent.mkdir(exist_ok=True)
            self.link(objects, into / name, exports=exports)
        names = [name for name, _, _ in libraries]
        if static:
            # What tells a program with another artifact's code from one with this one's.
            build = 'extern "C" __attribute__((visibility("default"))) const char specc_model_build[] = "{}";'
            told = Object(build.format(cache.sha256(into / "model.so")), "build", ("-O1",))
            self.archive(
                [*model, self._compile(told)], into / "lib/libmodel.a", exports="specc_model_*"
            )
            self.archive(engine, into / "lib/libspecc.a", exports="specc_*")
            names += _ARCHIVES
        for name, source in _FOR_APPS.items():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, into / name)
        return (*names, *_FOR_APPS)

    def archive(self, objects: Sequence[Path], into: Path, *, exports: str) -> None:
        """The same for static linking: one object, whose names an app sees only as far as they match `exports`."""
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder) / f"{into.stem}.o"
            self._run([
                self.compiler, "-r", "-nostdlib", "-Wl,--force-group-allocation", "-o", str(whole), *map(str, objects),
            ], into.name)  # fmt: skip
            names = ["--wildcard", f"--keep-global-symbol={exports}", str(whole)]
            self._run([self._tool("objcopy"), *names], into.name)
            self._run([self._tool("ar"), "rcsD", str(into), str(whole)], into.name)

    def _tool(self, name: str) -> str:
        """The compiler's own: that of the machine may know no other processor's files."""
        return _told(self.compiler, f"-print-prog-name={name}") or name

    def link(self, objects: Sequence[Path], into: Path, *, exports: str) -> None:
        """A shared library that exports the names matching `exports` alone and needs libstdc++ and libc only."""
        with tempfile.NamedTemporaryFile("w", suffix=".map") as script:
            script.write(f"{{ global: {exports}; local: *; }};")
            script.flush()
            self._run([
                self.compiler, "-shared", "-o", str(into), *map(str, objects), "-s",
                f"-Wl,--version-script={script.name}", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,--gc-sections",
                f"-Wl,-soname,{into.name}", "-pthread", "-ldl", "-lm",
            ], str(into.name))  # fmt: skip

    def _compile(self, item: Object) -> Path:
        flags = [*_COMMON, *item.flags, *_PLACES]
        key = self._key(flags, item.first + item.source, _headers() + item.header)

        def make(path: Path) -> None:
            # A relative name: the code keeps __FILE__, and where it was built is nobody's business.
            source = f"{item.name}.cpp"
            (path.parent / source).write_text(item.source)
            first = ("-include", str(self._understand(item.first, flags))) if item.first else ()
            command = [self.compiler, "-c", *flags, *first, "-o", str(path), source]
            self._run(command, item.name, path.parent)

        return self._objects.get(f"{item.name}-{key}.o", make)

    def _key(self, flags: Sequence[str], *texts: str) -> str:
        # Headers are part of an object's identity: specc's by content, torch's by its version.
        settings = [
            f.partition("-prefix-map=")[0] for f in flags if not f.startswith(("-I", "-iquote"))
        ]
        arch = arch_of(self.isa)  # a clang says nothing of it
        identity = "\0".join([self.version, arch, torch.__version__, *settings, *texts])
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    def _understand(self, text: str, flags: Sequence[str]) -> Path:
        """A header of `text`; beside it, what g++ takes in its place where that was made by the same g++ for `flags`.

        The object is the same either way.
        """
        key = self._key(flags, text)
        if key not in self._understood:
            header = self._headers.get(f"{key}.h", lambda p: p.write_text(text))
            # (clang has another way, and fails where g++ reads the text.)
            if "clang" not in self.version:
                command = [self.compiler, *flags, "-x", "c++-header", str(header), "-o"]
                self._headers.get(
                    f"{key}.h.gch", lambda p: self._run([*command, str(p)], "torch's headers")
                )
            self._understood[key] = header
        return self._understood[key]

    def _run(self, command: list[str], what: str, folder: Path | None = None) -> None:
        """Run the compiler in `folder`, in a process group of its own."""
        process = subprocess.Popen(
            command, cwd=folder, text=True, start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=_environment(),
        )  # fmt: skip
        self._running.add(process)
        try:
            _, told = process.communicate()
        finally:
            self._running.discard(process)
        if process.returncode and "No space left on device" in told:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), what)
        if process.returncode:
            lines = [line for line in told.splitlines() if "error" in line or "undefined" in line]
            raise BackendError(
                "SPECC-E0404", f"the C++ compiler failed on {what}", where=" ".join(command[:3]),
                found="; ".join(lines[:5]) or told[-400:],
                cure="run `specc doctor`, and report it with this text",
            )  # fmt: skip


def _named(source: str, name: str) -> str:
    return f"#define SPECC_LEAF(f) {name}_##f\n#define aot_inductor {name}_inductor\n{source}"


def _environment() -> dict[str, str]:
    """Without folders to search first, which no key of the cache knows the content of."""
    elsewhere = ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
    return {**{k: v for k, v in os.environ.items() if k not in elsewhere}, "LC_ALL": "C"}


def _told(compiler: str, option: str) -> str:
    """What the compiler prints when asked, or nothing."""
    command = [compiler, option]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _version(compiler: str) -> str:
    """First line of `g++ --version`. Raises BackendError (SPECC-E0403) for what is no compiler."""
    try:
        result = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=False
        )
        lines, told = result.stdout.splitlines(), f"exit code {result.returncode}"
    except OSError as error:
        lines, told = [], str(error)
    if not lines or result.returncode:
        raise BackendError(
            "SPECC-E0403", "the C++ compiler does not answer to --version", where=compiler,
            expected="g++ 11 or newer", found=told, cure="unset CXX, or set it to a C++ compiler",
        )  # fmt: skip
    return lines[0]


@lru_cache
def _headers() -> str:
    digest = hashlib.sha256()
    # Of what every library has; others are in Object.header.
    own = [p for part in ("core", "model", "tokenizer") for p in (sources.CPP / part).rglob("*.h")]
    for path in sorted([*own, *sources.INCLUDE.glob("*.h")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def c_dtype(dtype: str) -> str:
    """The name that specc_model.h has for a dtype."""
    return f"SPECC_{dtype.upper()}"


def played_leaves(calls: Sequence[tuple[str, str]], isa: str) -> str:
    """`specc_leaves` where code of ours plays them: each by name, and the call on (in, n, out, m) that runs it."""
    rows = "\n".join(
        f'    {{"{name}", create,\n'
        f"     [](void*, specc_tensor** in, int n, specc_tensor** out, int m) -> int32_t {{\n"
        f"       return specc::{call}; }}, told}},"
        for name, call in calls
    )
    return (
        "namespace {\nint32_t create(void** leaf) { *leaf = leaf; return 0; }\n"
        'const char* told() { return ""; }\n}\n' + _leaves(rows, len(calls), isa)
    )


def _leaves(rows: str, count: int, isa: str) -> str:
    return (
        f"const specc_leaf specc_leaves[] = {{\n{rows}\n}};\n"
        f'const int specc_leaf_count = {count};\nconst char specc_isa[] = "{isa}";\n'
    )


def leaf_table(names: Sequence[str], isa: str, played: Mapping[str, str] | None = None) -> str:
    """leaves.cpp: a `specc_leaf` for each compiled leaf, named as the plan names it.

    `played`: more entries, and the function of namespace specc that runs each.
    """
    declarations, rows = [], []
    for number, name in enumerate(names):
        p = f"leaf{number}"
        declarations.append(
            f"int32_t {p}_create(void**);\n"
            f"int32_t {p}_run(void*, specc_tensor**, int, specc_tensor**, int);\n"
            f"const char* {p}_error();"
        )
        rows.append(f'    {{"{name}", {p}_create, {p}_run, {p}_error}},')
    for name, function in (played or {}).items():
        rows.append(
            f'    {{"{name}", [](void** leaf) -> int32_t {{ *leaf = leaf; return 0; }},\n'
            f"     [](void*, specc_tensor** in, int n, specc_tensor** out, int m) -> int32_t {{\n"
            f'       return specc::{function}(in, n, out, m); }}, []() -> const char* {{ return ""; }}}},'
        )
    count = len(names) + len(played or {})
    declared = "\n".join(declarations)
    return f'#include "leaf_table.h"\nextern "C" {{\n{declared}\n}}\n' + _leaves(
        "\n".join(rows), count, isa
    )
