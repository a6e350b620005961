"""Fix the size and the zone of every state buffer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import fx

from specc.errors import PassError
from specc.ir import Function, Owner, SpeculativeProgram, StateBuffer, StateKind, TensorType
from specc.ir.graphs import copy_graph, state_name
from specc.passes.base import Pass, PassResult, promise, same
from specc.passes.leaf_writer import PREFIX
from specc.passes.tabulate_positions import tables

KV_CACHE_DTYPES = ("auto", "f32", "f16", "bf16")


def _enough(what: str, found: int, least: int, option: str) -> None:
    if found < least:
        raise PassError(
            "SPECC-E0335", f"too few {what}", expected=f"{least} or more", found=str(found),
            cure=f"correct {option}, or what the pass that made them was given",
        )  # fmt: skip


@dataclass(frozen=True)
class PlanState(Pass):
    """Everything that lives between calls gets its bytes at compile time.

    Before: state $target.k.0: f32[3, S, 64] (target kv_cache)
    After:  state $target.k.0: f32[3, 2048, 64] (target kv_cache, zone target)

    A cache holds `max_num_seqs` texts one after the other: text s has the rows from s * 2048 on. It is
    of type `kv_cache_dtype`: writing rounds to it, attention widens it. Zones: `target` and `drafter`
    hold caches, `taps` hidden states. A verify of K drafts writes K rows beyond the committed length;
    the engine never lets them pass S, so S rows are enough.
    """

    name: ClassVar[str] = "plan-state"

    max_model_len: int = 2048
    max_num_seqs: int = 1
    kv_cache_dtype: str = "auto"
    """Of caches: f32, f16, bf16, or auto: f16 where matrices have 8 or fewer bits, else as keys are computed."""

    def requires(self, program: SpeculativeProgram) -> None:
        limit = program.model.max_position
        if not 1 < self.max_model_len <= (limit or self.max_model_len):
            raise PassError(
                "SPECC-E0353",
                f"a context of {self.max_model_len} positions cannot be planned",
                expected=f"2 to {limit}, what the model was trained for",
                cure="choose another --max-model-len",
            )
        if self.max_num_seqs < 1:
            raise PassError(
                "SPECC-E0353", f"caches for {self.max_num_seqs} texts cannot be planned",
                expected="1 or more", cure="give 1 or more texts",
            )  # fmt: skip
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise PassError(
                "SPECC-E0353", f"caches of {self.kv_cache_dtype} cannot be planned",
                expected=", ".join(KV_CACHE_DTYPES), cure="correct --kv-cache-dtype",
            )  # fmt: skip
        positions = program.max_model_len or self.max_model_len
        held = positions * (program.max_num_seqs or self.max_num_seqs)
        longest = max(program.prefill_chunk, program.contract.num_speculative_tokens[-1] + 1)
        if "prefill" in program.functions:
            _enough("rows of a prefill", program.prefill_chunk, 1, "--prefill-chunk")
        for name, rows in tables(program).items():
            _enough(f"rows of @{name}", rows, positions, "--max-model-len")
        for buffer in program.state.values():
            if buffer.kind is StateKind.HIDDEN_STATES:
                rows = int(buffer.type.shape[0])
                _enough(f"rows of ${buffer.name}", rows, longest, "--prefill-chunk")
            elif buffer.type.shape[1] not in ("S", held):
                raise PassError(
                    "SPECC-E0335", f"${buffer.name} holds another number of positions",
                    expected=f"S, or {held}", found=str(buffer.type),
                    cure="plan target and drafter together",
                )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        quantised = _quantised(program)
        if program.max_model_len:
            same("max_model_len", program.max_model_len, self.max_model_len)
            same("max_num_seqs", program.max_num_seqs, self.max_num_seqs)
            caches = [b.type for b in program.state.values() if b.kind is StateKind.KV_CACHE]
            found, wanted = ({str(t.dtype) for t in types} for types in (
                caches, [self._cached(t, quantised) for t in caches]
            ))  # fmt: skip
            same("kv_cache_dtype", found, wanted)
            return PassResult(program, modified=False)
        state = {name: self._planned(b, quantised) for name, b in program.state.items()}
        cached = _given_caches(program)
        functions = {}
        for name, function in program.functions.items():
            graph, copies = copy_graph(function.graph)
            for node in graph.nodes:
                if (buffer := state_name(node)) is not None:
                    node.meta["type"] = state[buffer].type
            for node in function.inputs:
                type_ = self._sized(node.meta["type"], quantised, node in cached)
                copies[node].meta["type"] = type_
            functions[name] = Function(name, function.role, graph, function.outputs)
        rewritten = replace(
            program, state=state, functions=functions, max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
        )  # fmt: skip
        return PassResult(rewritten, modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        promise(
            all(b.zone and b.bytes > 0 for b in program.state.values()), "a buffer has no place"
        )
        for buffer in program.state.values():
            if buffer.kind is not StateKind.HIDDEN_STATES:
                held = buffer.type.shape[1]
                wanted = program.max_model_len * program.max_num_seqs
                promise(held == wanted, f"${buffer.name} holds {held} positions")

    def _planned(self, buffer: StateBuffer, quantised: bool) -> StateBuffer:
        zone = (
            "taps"
            if buffer.kind is StateKind.HIDDEN_STATES
            else ("target" if buffer.owner is Owner.TARGET else "drafter")
        )
        type_ = self._sized(buffer.type, quantised, buffer.kind is StateKind.KV_CACHE)
        return replace(buffer, type=type_, zone=zone)

    def _sized(self, type_: TensorType, quantised: bool, cache: bool) -> TensorType:
        """With a number in place of S; of a cache, in the type that caches have as well."""
        if "S" not in type_.shape:
            return type_
        held = self.max_model_len * self.max_num_seqs
        cached = self._cached(type_, quantised) if cache else type_
        return TensorType(cached.dtype, tuple(held if d == "S" else d for d in type_.shape))

    def _cached(self, type_: TensorType, quantised: bool) -> TensorType:
        chosen = self.kv_cache_dtype
        if chosen == "auto":
            chosen = "f16" if quantised else type_.dtype
        return TensorType(chosen, type_.shape)


def _given_caches(program: SpeculativeProgram) -> set[fx.Node]:
    """Inputs of leaves that a cache is passed to. Nothing else is rounded: hidden states may exceed halves."""
    names = {n for n, b in program.state.items() if b.kind is StateKind.KV_CACHE}
    return {taken for _, given, taken in program.leaf_arguments() if state_name(given) in names}


def _quantised(program: SpeculativeProgram) -> bool:
    # (Of the target: what a drafter's weights have may change no text.)
    packings = (w.packing for name, w in program.weights.items() if not name.startswith(PREFIX))
    return any(p is not None and p.encoding.quantised for p in packings)
