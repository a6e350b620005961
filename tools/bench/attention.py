"""What attention yields inside an artifact's graphs, as onnxruntime computes it: where shards of caches are merged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from specc.runtime import Artifact
from specc.runtime.graphs import GraphSession, runner_for

Array = np.ndarray[Any, Any]
Layers = dict[int, Array]
"""Layer -> what its attention yields, [T, heads * width]."""

_PROJECTION = re.compile(r"layer\.(\d+)/.*attn.*\.(?:o_proj|out_proj|c_proj|dense)/Gemm")
"""The product that follows attention, by the name that the emitter gives it."""


@dataclass
class Seen:
    """What graphs computed; of each layer the latest."""

    layers: Layers = field(default_factory=dict)
    shares: dict[str, list[dict[str, Array]]] = field(default_factory=dict)
    """Graph that attends to a shard -> its inputs by name, of each device in turn."""

    def take(self) -> Seen:
        """What was seen so far, which is forgotten here."""
        taken = Seen(self.layers, self.shares)
        self.layers, self.shares = {}, {}
        return taken


@contextmanager
def watched(artifact: Artifact) -> Iterator[Seen]:
    """Gets what the artifact's graphs compute meanwhile, by onnxruntime.

    What attention yields is what the layer's next product takes: of models where that is a Gemm of the module's own.
    """
    seen = Seen()
    runner = runner_for(artifact.path, artifact.manifest, artifact.threads)
    runner.open_by(lambda file, threads: _Watched(file, threads, seen))
    try:
        yield seen
    finally:
        runner.open_by(GraphSession)


class _Watched(GraphSession):
    """A graph that also returns what attention yields."""

    def __init__(self, file: Path, threads: int, seen: Seen) -> None:
        model = onnx.load(file, load_external_data=False)
        found = [(_PROJECTION.match(n.name), n.input[0]) for n in model.graph.node]
        self._layers = {int(match[1]): value for match, value in found if match}
        model.graph.output.extend(onnx.ValueInfoProto(name=v) for v in self._layers.values())
        super().__init__(file, threads, model.SerializeToString())
        self._seen, self._graph = seen, file.stem
        self._own = len(self._outputs) - len(self._layers)
        del self._outputs[self._own :]

    def _results(self, feed: dict[str, Any]) -> list[Any]:
        results = super()._results(feed)
        self._seen.layers |= zip(self._layers, results[self._own :], strict=True)
        if ".attend_" in self._graph:
            given = {name: np.array(value) for name, value in feed.items()}
            self._seen.shares.setdefault(self._graph, []).append(given)
        return results[: self._own]
