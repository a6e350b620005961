"""Give every state buffer its place in one allocation, and prove that no write leaves it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from specc.errors import PassError
from specc.ir import SpeculativeProgram, StateKind
from specc.ir.arena import CANARY, LONG_CONTEXT, PAGE, ZONES, Arena, Plan, lay_out, needed
from specc.ir.extents import prove_writes
from specc.passes.base import Pass, PassResult, need, promise, same


@dataclass(frozen=True)
class PlanArena(Pass):
    """Zones for target, drafter and taps, sized by what they hold, or split as asked.

    Before: state $target.k.0: f32[3, 2048, 64] (target kv_cache, zone target)
            state $drafter.k.0: f32[1, 2048, 64] (drafter kv_cache, zone drafter)
    After:  the same, and arena auto (74 writes proved): 2048 rows, 2113536 bytes
              zone target at 4096: 1576960 bytes, 1573120 used
                $target.k.0 at 7936
              zone drafter at 1585152: ...

    Where texts may be longer than 7,200 tokens, shorter ones have a plan of their own, if the backend's code takes
    caches of any length (`shorter`). `ir/extents.py` says what is proved of writes.
    """

    name: ClassVar[str] = "plan-arena"

    splits: tuple[tuple[int, int], ...] = ()
    """Parts of drafter and target in what both take; the second, if there is one, for texts over 7,200 tokens."""
    size: int = 0
    """Bytes of drafter's and target's zones together; 0: as many as it takes."""
    shorter: bool = False
    canary: int = CANARY
    """Bytes of a guard between buffers, which begin on its multiples."""

    @property
    def split(self) -> str:
        """As it was asked for."""
        named = ",".join(f"{drafter}:{target}" for drafter, target in self.splits) or "auto"
        return f"{named}@{self.size}" if self.size else named

    def requires(self, program: SpeculativeProgram) -> None:
        need(program.max_model_len, "buffers have no size yet", "plan-state")
        need(program.rounds, "there are no rounds yet", "fuse-round")
        zones = {b.zone for b in program.state.values()}
        if self.splits and not {"target", "drafter"} <= zones:
            raise PassError(
                "SPECC-E0377", f"the drafter of {program.contract.kind} has no caches, so there is nothing to split",
                expected="--kv-arena auto", found=self.split, cure="leave out --kv-arena",
            )  # fmt: skip
        if len(self.splits) > 1 and program.max_model_len <= LONG_CONTEXT:
            raise PassError(
                "SPECC-E0377", f"the second split is for texts over {LONG_CONTEXT} tokens",
                expected="one split", found=f"{self.split}, for {program.max_model_len} tokens",
                cure="leave out the second one, or raise --max-model-len",
            )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        if program.arena is not None:
            same("split", program.arena.split, self.split)
            same("canary", program.arena.canary, self.canary)
            return PassResult(program, modified=False)
        rows = program.max_model_len * program.max_num_seqs
        short = self.shorter and program.max_num_seqs == 1 and rows > LONG_CONTEXT
        plans = tuple(
            self._plan(program, each, sized=each == rows)
            for each in ((LONG_CONTEXT, rows) if short else (rows,))
        )
        arena = Arena(self.split, plans, prove_writes(program), self.canary)
        return PassResult(replace(program, arena=arena), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        assert program.arena is not None
        for plan in program.arena.plans:
            placed = [name for zone in plan.zones for name in zone.buffers]
            promise(sorted(placed) == sorted(program.state), "a buffer has no place, or two")
            promise(all(z.used <= z.bytes for z in plan.zones), "a zone is too small")

    def _plan(self, program: SpeculativeProgram, rows: int, *, sized: bool) -> Plan:
        """The layout for texts of `rows` positions; `sized`: of the bytes that were asked for."""
        # (Caches that lie on several devices have zones of their own.)
        names = dict.fromkeys((*ZONES, *(b.zone for b in program.state.values())))
        held = {name: sizes for name in names if (sizes := _sizes(program, name, rows))}
        least = {name: needed(sizes, self.canary) for name, sizes in held.items()}
        both = least.get("target", 0) + least.get("drafter", 0)
        if not self.splits:
            if sized and self.size and both > self.size:
                raise self._too_small(program, "target and drafter", both, self.size)
            return lay_out([(n, sizes, least[n]) for n, sizes in held.items()], rows, self.canary)
        drafter, target = self.splits[-1 if rows > LONG_CONTEXT else 0]
        whole = drafter + target
        total = self.size if sized and self.size else max(
            -(-least["drafter"] * whole // drafter), -(-least["target"] * whole // target)
        )  # fmt: skip
        given = {"drafter": total * drafter // whole, "target": total * target // whole}
        for name, size in given.items():
            given[name] = size - size % PAGE if sized and self.size else size + -size % PAGE
            if given[name] < least[name]:
                raise self._too_small(program, name, least[name], given[name])
        zones = [(n, sizes, given.get(n, least[n])) for n, sizes in held.items()]
        return lay_out(zones, rows, self.canary)

    def _too_small(self, program: SpeculativeProgram, what: str, takes: int, has: int) -> PassError:
        most = program.contract.num_speculative_tokens[-1]
        each = program.max_model_len
        fits = has * each // takes
        return PassError(
            "SPECC-E0377", f"--kv-arena {self.split} cannot hold {each} positions with K up to {most}",
            where=f"zone {what}", expected=f"{takes} bytes or more", found=f"{has}, about {fits} positions",
            cure=f"choose --kv-arena auto or another split, or --max-model-len {max(2, fits * 99 // 100)}",
        )  # fmt: skip


_BY_POSITION = (StateKind.KV_CACHE, StateKind.FEATURES)


def _sizes(program: SpeculativeProgram, zone: str, rows: int) -> dict[str, int]:
    """Bytes of each buffer of a zone at `rows` positions of a text. Taps hold the rows of a call, shards a part."""
    whole = program.max_model_len * program.max_num_seqs
    return {
        b.name: b.bytes // whole * rows if b.type.shape[1] == whole and b.kind in _BY_POSITION else b.bytes
        for b in program.state.values() if b.zone == zone
    }  # fmt: skip
