"""Every K, plain decoding too, is played by the graph of the greatest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import fx

from specc.errors import PassError
from specc.ir import Role, SpeculativeProgram, TensorType
from specc.ir.dialect import ops
from specc.ir.graphs import Builder, copy_graph, results_of, retype, type_of
from specc.ir.program import Function
from specc.passes.base import Pass, PassResult, need, promise


@dataclass(frozen=True)
class OneVerify(Pass):
    """verify_K fills its rows up to those of the greatest K, and calls that; so do the rounds.

    Before: verify_0(tokens[1], positions[1], rows[1]): ...
            round_0: logits[1, V] = call verify_0(root, length, row); call accept_0(root, logits, ...)
    After:  verify_0: logits[5, V] = call verify_4(pad_rows(tokens, 5), pad_rows(positions, 5), pad_rows(rows, 5))
                      first_rows(logits, 1)
            round_0: logits[5, V] = call verify_4(pad_rows(root, 5), ...); call accept_0(root, logits, ...)

    For devices that sum in another order for another number of rows: what decodes is then what verifies. A repeated
    row is the row itself once more, and the verdict looks at no more rows than there are tokens.
    """

    name: ClassVar[str] = "one-verify"

    def requires(self, program: SpeculativeProgram) -> None:
        need(program.rounds, "there are no rounds", "fuse-round")
        if program.contract.branches:
            raise PassError(
                "SPECC-E0383", "rounds of trees have no graph in common with plain decoding yet",
                expected="drafts that are chains", cure="leave out --tree",
            )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        *fewer, most = program.contract.num_speculative_tokens
        one = program.functions[f"verify_{most}"]
        names = {f"verify_{k}" for k in fewer} - {f.name for f in _callers(program, one.name)}
        if not names:
            return PassResult(program, modified=False)
        changed = [_called(program, name, one, most + 1) for name in sorted(names)]
        for function in program.functions.values():
            if function.role is Role.ROUND and names & _calls(function):
                changed.append(_round(function, names, one, most + 1))
            elif function.role is Role.ACCEPT and function.name != f"accept_{most}":
                changed.append(_accept(function, type_of(results_of(one.graph)[0])))
        return PassResult(program.replacing(*changed), modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        most = program.contract.num_speculative_tokens[-1]
        for function in program.functions.values():
            if function.role is Role.ROUND:
                verifies = {n for n in _calls(function) if n.startswith("verify_")}
                promise(verifies == {f"verify_{most}"}, f"{function.name} calls {verifies}")


def _calls(function: Function) -> set[str]:
    return {str(n.target) for n in function.graph.nodes if n.op == "call_module"}


def _callers(program: SpeculativeProgram, name: str) -> list[Function]:
    return [f for f in program.functions.values() if name in _calls(f)]


def _padded(builder: Builder, args: list[fx.Node], rows: int) -> list[fx.Node]:
    type_ = TensorType("i64", (rows,))
    return [builder.op(ops.pad_rows.default, a, rows, type_=type_) for a in args]


def _called(program: SpeculativeProgram, name: str, one: Function, rows: int) -> Function:
    """verify_K in terms of `one`."""
    builder, old = Builder(), program.functions[name]
    given = [builder.input(n.name, type_of(n)) for n in old.inputs]
    (logits,) = builder.call(one, _padded(builder, given, rows))
    wanted = type_of(results_of(old.graph)[0])
    first = builder.op(ops.first_rows.default, logits, int(wanted.shape[0]), type_=wanted)
    return Function(name, old.role, builder.output(first), old.outputs)


def _round(function: Function, names: set[str], one: Function, rows: int) -> Function:
    graph, _ = copy_graph(function.graph)
    builder = Builder(graph)
    for call in [n for n in graph.nodes if n.op == "call_module" and n.target in names]:
        with graph.inserting_before(call):
            call.args = tuple(_padded(builder, list(call.args), rows))
        call.target = one.name
        retype(call, one)
    return Function(function.name, function.role, graph, function.outputs)


def _accept(function: Function, logits: TensorType) -> Function:
    """accept_K of more logits than it looks at."""
    graph, _ = copy_graph(function.graph)
    for node in graph.nodes:
        if node.op == "placeholder" and node.name == "logits":
            node.meta["type"] = logits
    return Function(function.name, function.role, graph, function.outputs)
