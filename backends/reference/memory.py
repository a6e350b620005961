"""A session's state in one tensor, laid out as the manifest says, with guards that are looked at every round."""

from __future__ import annotations

import torch
from torch import Tensor

from specc.errors import RequestError
from specc.ir.types import DTYPES
from specc.runtime.manifest import Manifest

_PATTERN = 0xC5


class Memory:
    """`buffers` by name: zeros in one allocation. Artifacts of before have no arena, but tensors of their own."""

    def __init__(self, manifest: Manifest) -> None:
        self._guards: list[tuple[str, str, Tensor]] = []
        self.buffers: dict[str, Tensor] = {
            b.name: torch.zeros(b.shape, dtype=DTYPES[b.dtype]) for b in manifest.state
        }
        if manifest.arena is None:
            return
        known, plan = {b.name: b for b in manifest.state}, manifest.arena.plans[-1]
        whole = torch.zeros(plan.bytes, dtype=torch.uint8)
        for zone in plan.zones:
            ends = [zone.offset, *(at + known[name].bytes for name, at in zone.buffers.items())]
            begins = [*zone.buffers.values(), zone.offset + zone.bytes]
            for name, at in zone.buffers.items():
                held = whole[at : at + known[name].bytes].view(DTYPES[known[name].dtype])
                self.buffers[name] = held.view(known[name].shape)
            for beside, end, begin in zip([*zone.buffers, "the end"], ends, begins, strict=True):
                whole[end:begin] = _PATTERN
                self._guards.append((zone.name, beside, whole[end:begin]))

    def check_guards(self) -> None:
        """Raise RequestError (SPECC-E0613) if anything was written between two buffers."""
        for zone, beside, guard in self._guards:
            if not bool((guard == _PATTERN).all()):
                raise RequestError(
                    "SPECC-E0613", "something wrote outside of its state buffer (kv_zone_guard)",
                    where=f"zone {zone}, before {beside}", expected="guard bytes", found="others", cure="report it",
                )  # fmt: skip
