"""Keep the hidden states that enter chosen layers, for drafters that read them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from specc.errors import PassError
from specc.ir import Owner, Role, SpeculativeProgram, StateBuffer, StateKind
from specc.ir.dialect import ops
from specc.ir.graphs import STATE, copy_graph, type_of
from specc.ir.program import Function
from specc.ir.types import TensorType
from specc.passes.base import Pass, PassResult, promise, same
from specc.passes.replay import parts_of


@dataclass(frozen=True)
class TapHiddenStates(Pass):
    """Copy what enters layer j, row by row, to state `tap.j`.

    j = 0 is the embedding's output, j = L what leaves the last.

    Before: x2 = call layer.0(x1, ...)
    After:  cache_copy(x1, $tap.1); x2 = call layer.0(x1, ...)

    The index is that of Hugging Face's `output_hidden_states` but for L,
    which is *before* the final norm. `rows` bounds the rows of a call: the longest prefill chunk or
    verify.
    """

    name: ClassVar[str] = "tap-hidden-states"

    layers: tuple[int, ...] = ()
    rows: int = 64

    def requires(self, program: SpeculativeProgram) -> None:
        parts_of(program)
        wanted = [j for j in self.layers if f"tap.{j}" not in program.state]
        if wanted and "prefill" in program.functions:
            raise PassError(
                "SPECC-E0330", "prefill was made without these taps",
                cure="run tap-hidden-states before gather-logits",
            )  # fmt: skip
        for layer in self.layers:
            if not 0 <= layer <= program.model.num_layers:
                raise PassError(
                    "SPECC-E0351", f"there is no hidden state {layer} to tap",
                    expected=f"0 to {program.model.num_layers}", cure="choose another tap",
                )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        taps = [program.state.get(f"tap.{j}") for j in self.layers]
        for buffer in filter(None, taps):
            same(f"rows of ${buffer.name}", buffer.type.shape[0], self.rows)
        wanted = [j for j in self.layers if f"tap.{j}" not in program.state]
        if not wanted:
            return PassResult(program, modified=False)
        target = program.functions["target"]
        graph, copies = copy_graph(target.graph)
        buffers = []
        for part in parts_of(program):
            index = part.layer if part.part == "layer" else program.model.num_layers
            if part.part not in ("layer", "head") or index not in wanted:
                continue
            stream = part.node.args[0]
            width = type_of(stream).shape[-1]  # type: ignore[arg-type]
            buffer = StateBuffer(
                f"tap.{index}", TensorType(type_of(stream).dtype, (self.rows, width)),  # type: ignore[arg-type]
                StateKind.HIDDEN_STATES, Owner.DRAFTER,
            )  # fmt: skip
            with graph.inserting_before(copies[part.node]):
                state = graph.create_node("get_attr", STATE + buffer.name)
                state.meta["type"] = buffer.type
                graph.call_function(ops.cache_copy.default, (copies[stream], state))  # type: ignore[index]
            buffers.append(buffer)
        function = Function("target", Role.TARGET, graph, target.outputs)
        contract = replace(program.contract, taps=tuple(sorted({*program.contract.taps, *wanted})))
        rewritten = program.replacing(function).with_state(*buffers)
        return PassResult(replace(rewritten, contract=contract), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        promise(all(f"tap.{j}" in program.state for j in self.layers), "a tap is missing")
