"""Runs the graphs of an artifact by onnxruntime, called back by its engine. Needs numpy and onnxruntime."""

from __future__ import annotations

import ctypes as c
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specc.errors import ArtifactError
from specc.runtime import native
from specc.runtime.graph_facts import Graphs
from specc.runtime.manifest import Manifest

LIBRARY = "model.so"


class _Data(c.Structure):
    """`specc_graph_data` of graphs.h."""

    _fields_ = (("data", c.c_void_p), ("bytes", c.c_size_t))


_Executor = c.CFUNCTYPE(
    c.c_int32, c.c_void_p, c.c_char_p, c.POINTER(_Data), c.POINTER(_Data), c.c_void_p, c.c_size_t
)


class GraphRunner:
    """Sessions of onnxruntime, opened when first called. Whoever may run a graph keeps it."""

    def __init__(self, library: c.CDLL, path: Path, manifest: Manifest, threads: int) -> None:
        assert manifest.graphs is not None
        self._path, self._files, self._threads = path, manifest.graphs.files, threads
        self._sessions: dict[str, GraphSession] = {}
        self._opens: Callable[[Path, int], GraphSession] = GraphSession
        # Through a weak reference: the library must not keep what keeps it.
        self._callback = _Executor(_weakly(self))
        library.specc_model_executor.restype = None
        library.specc_model_executor.argtypes = [_Executor, c.c_void_p]
        library.specc_model_executor(self._callback, None)
        weakref.finalize(self, library.specc_model_executor, _Executor(), None)

    def run(self, name: str, given: Any, taken: Any) -> None:
        """Run the graph `name` on the engine's tensors."""
        if name not in self._sessions:
            self._sessions[name] = self._opens(self._path / self._files[name], self._threads)
        self._sessions[name].run(given, taken)

    def open_by(self, opens: Opens) -> None:
        """From now on `opens` makes what runs a graph, in place of what there is: to look inside."""
        self._opens = opens
        self._sessions.clear()


def device_runs(path: Path) -> bool:
    """Whether the artifact's library, loaded by the engine, has opened a device that runs its graphs."""
    runs = getattr(native.map_library(path / LIBRARY), "specc_model_runs_graphs", None)
    return runs is not None and bool(runs())


_runners: weakref.WeakValueDictionary[int, GraphRunner] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def runner_for(path: Path, manifest: Manifest, threads: int) -> GraphRunner:
    """The one that runs this artifact's graphs: its library, loaded by the engine, knows one at a time."""
    library = native.map_library(path / LIBRARY)
    with _lock:
        known = _runners.get(library._handle)
        if known is None:
            known = _runners[library._handle] = GraphRunner(library, path, manifest, threads)
        return known


def _weakly(runner: GraphRunner) -> Any:
    """What the engine calls back: an exception becomes its text."""
    reference = weakref.ref(runner)

    def run(user: int, name: bytes, given: Any, taken: Any, error: int, room: int) -> int:
        del user
        try:
            alive = reference()
            assert alive is not None, "the artifact is closed"
            alive.run(name.decode(), given, taken)
        except Exception as problem:
            text = f"{type(problem).__name__}: {problem}".encode()[: room - 1]
            c.memmove(error, text + b"\0", len(text) + 1)
            return 1
        return 0

    return run


class GraphSession:
    """One graph. Tensors are the engine's memory; only integers are copied, as graphs take them in 32 bits."""

    def __init__(self, file: Path, threads: int, model: bytes | None = None) -> None:
        """Open `file`; or `model`, an edition of it that shares its weights."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        # Weights stay mapped files that all graphs share; packing would copy them for each.
        options.add_session_config_entry("session.disable_prepacking", "1")
        if model is not None:
            key = "session.model_external_initializers_file_folder_path"
            options.add_session_config_entry(key, str(file.parent))
        self._session = onnxruntime.InferenceSession(
            str(file) if model is None else model, options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [(i.name, i.type, tuple(i.shape)) for i in self._session.get_inputs()]
        self._outputs = [(o.type, tuple(o.shape)) for o in self._session.get_outputs()]

    def run(self, given: Any, taken: Any) -> None:
        """From `given` to `taken`, arrays of `specc_graph_data`."""
        feed = {
            name: _view(given[i], type_, shape, whole=True)
            for i, (name, type_, shape) in enumerate(self._inputs)
        }
        results = self._results(feed)
        for i, (result, (type_, shape)) in enumerate(zip(results, self._outputs, strict=True)):
            _view(taken[i], type_, shape, whole=False)[...] = result

    def _results(self, feed: dict[str, Any]) -> list[Any]:
        """The graph's results, in its order."""
        results: list[Any] = self._session.run(None, feed)
        return results


Opens = Callable[[Path, int], GraphSession]
"""(file of a model, threads) -> what runs it."""


def _view(at: Any, type_: str, shape: tuple[int, ...], *, whole: bool) -> Any:
    """The engine's memory as an array; integers of an input, 64 bits there, as a copy of 32.

    Raises ValueError for a model that wants another size than the engine has.
    """
    import numpy as np

    dtype: Any = {
        "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int32)": np.int64,
        "tensor(bool)": np.bool_,
    }[type_]  # fmt: skip
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if count != at.bytes:
        raise ValueError(f"the model takes {count} bytes where the engine has {at.bytes}")
    array = np.frombuffer((c.c_char * count).from_address(at.data), dtype).reshape(shape)
    return array.astype(np.int32) if whole and type_ == "tensor(int32)" else array


def require_onnxruntime(path: Path, graphs: Graphs) -> None:
    """Raise ArtifactError (SPECC-E0509) if it is not installed; E0512 where several NPUs would have to run `graphs`."""
    unasked = os.environ.get("SPECC_EXECUTOR") != "onnxruntime"
    if graphs.soc and graphs.shards is not None and unasked:
        raise ArtifactError(
            "SPECC-E0512", "no runtime plays caches on several NPUs yet", where=str(path),
            found=f"{graphs.shards.count} devices of {graphs.soc}",
            cure="set SPECC_EXECUTOR=onnxruntime to run all shards on the CPU, or compile without --kv-shards",
        )  # fmt: skip
    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ArtifactError(
            "SPECC-E0509", "the artifact's graphs need onnxruntime", where=str(path), found=str(error),
            cure="pip install 'specc-compiler[onnx]'",
        ) from error  # fmt: skip
