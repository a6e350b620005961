"""What a manifest says of code for a GPU, of graphs that a device runs, and of caches that lie on several devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specc.runtime.fields import Field


@dataclass(frozen=True)
class ShardCost:
    """What one way to cut caches costs each device in a call of one new token, as `ir/sharding.py` says.

    `link_microseconds` is None where nobody told the speed of the links.
    """

    way: str
    exchanges: int
    bytes_received: int
    cache_bytes: int
    multiply_adds: int
    refused: str
    link_microseconds: float | None

    @classmethod
    def read(cls, at: Field) -> ShardCost:
        """Of the manifest."""
        time = at.get("link_microseconds")
        return cls(
            at["way"].string(), at["exchanges"].integer(0), at["bytes_received"].integer(0),
            at["cache_bytes"].integer(0), at["multiply_adds"].integer(0), at["refused"].string(),
            None if time.value is None else time.number(0),
        )  # fmt: skip


@dataclass(frozen=True)
class Shards:
    """The target's caches lie on `count` devices, cut by rows or by heads; `costs` is of both ways."""

    count: int
    way: str
    costs: tuple[ShardCost, ...]

    @classmethod
    def read(cls, at: Field) -> Shards | None:
        """Of the manifest, where there are any."""
        if at.value is None:
            return None
        costs = tuple(map(ShardCost.read, at["costs"].items()))
        return cls(at["count"].integer(2), at["way"].string(), costs)


@dataclass(frozen=True)
class CudaCalls:
    """What one call of a function asks of the GPU: kernels that are launched, and times that the host waits."""

    launches: int
    waits: int


@dataclass(frozen=True)
class CudaCode:
    """Code for an NVIDIA GPU of the architecture `arch`, as in sm_90: `kernels` are all that lie in model.so.

    `dtype`: of matrices and of what they are multiplied with. `verified_on_gpu`: whether anyone saw what this release
    compiles run on a GPU.
    """

    arch: str
    kernels: int
    functions: Mapping[str, CudaCalls]
    verified_on_gpu: bool
    dtype: str = "f32"

    @classmethod
    def read(cls, at: Field) -> CudaCode | None:
        """Of the manifest, where there is any."""
        if at.value is None:
            return None
        calls = {
            name: CudaCalls(item["launches"].integer(0), item["waits"].integer(0))
            for name, item in at["functions"].entries()
        }
        return cls(
            at["arch"].string(), at["kernels"].integer(1), calls, at["verified_on_gpu"].boolean(),
            at.get("dtype").string(default="f32"),
        )  # fmt: skip


@dataclass(frozen=True)
class Graphs:
    """Graphs that onnxruntime or a device runs. `files`: the model of each.

    `state`: onnx-only, or om where CANN compiled them. `verified_on_npu`: whether anyone saw them run on one.
    `soc`: the chip that they are for, empty for whatever runs ONNX.
    """

    format: str
    opset: int
    state: str
    verified_on_npu: bool
    files: Mapping[str, str]
    dtype: str = "f32"
    shards: Shards | None = None
    soc: str = ""

    @classmethod
    def read(cls, at: Field) -> Graphs | None:
        """Of the manifest, where there are any."""
        if at.value is None:
            return None
        files = {name: item["file"].inner_path() for name, item in at["functions"].entries()}
        return cls(
            at["format"].string(), at["opset"].integer(1), at["state"].string(),
            at["verified_on_npu"].boolean(), files, at.get("dtype").string(default="f32"),
            Shards.read(at.get("shards")), at.get("soc").string(default=""),
        )  # fmt: skip
