"""Decide how much of a block the target would have said itself: one function for each K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from specc.ir import Role, SpeculativeProgram
from specc.ir.dialect import ops
from specc.ir.graphs import Builder, results_of, type_of
from specc.ir.program import Function
from specc.ir.types import TensorType
from specc.passes.base import Pass, PassResult, need, same

ONE = TensorType("i64", (1,))


@dataclass(frozen=True)
class BuildAccept(Pass):
    """Add the decision on a block of K drafts, for each K.

    Before: verify_K(tokens[K+1], positions[K+1], rows[K+1]) -> logits[K+1, V]
    After:  the same, and accept_K(tokens[K+1], logits[K+1, V], length, temperature, seed)
            -> (tokens[K+1], accepted)
            or, where drafts are a tree of N nodes,
            accept_K(tokens[N+1], parents[N+1], logits[N+1, V], length, temperature, seed)
            -> (tokens[K+1], accepted, nodes[K+1]): which nodes the accepted path has

    The rule is target sampling: at each row the target's own choice is made (greedy, or with noise
    keyed by the absolute position), and a draft is accepted if it is that choice. So the tokens are
    those of plain decoding with the same seed, whatever was drafted. Ids at and beyond the
    vocabulary (padding of the head) are never chosen.
    """

    name: ClassVar[str] = "build-accept"

    def requires(self, program: SpeculativeProgram) -> None:
        need("verify_0" in program.functions, "there is no verify", "build-verify")

    def call(self, program: SpeculativeProgram) -> PassResult:
        ks = program.contract.num_speculative_tokens
        if "accept_0" in program.functions:
            there = tuple(k for k in ks if f"accept_{k}" in program.functions)
            same("K", there, ks)
            return PassResult(program, modified=False)
        functions = []
        for k in ks:
            if k and program.contract.branches:
                functions.append(_of_tree(program, k))
                continue
            (scored,) = results_of(program.functions[f"verify_{k}"].graph)
            row = TensorType("i64", (k + 1,))
            builder = Builder()
            inputs = [
                builder.input("tokens", row),
                builder.input("logits", type_of(scored)),
                builder.input("length", ONE),
                builder.input("temperature", TensorType("f64", (1,))),
                builder.input("seed", ONE),
            ]
            vocabulary = program.model.vocab_size
            results = builder.ops(ops.accept.default, *inputs, vocabulary, types=(row, ONE))
            graph = builder.output(*results)
            functions.append(Function(f"accept_{k}", Role.ACCEPT, graph, ("tokens", "accepted")))
        return PassResult(program.with_functions(*functions), modified=True)


def _of_tree(program: SpeculativeProgram, k: int) -> Function:
    (scored,) = results_of(program.functions[f"verify_{k}"].graph)
    every, path = (TensorType("i64", (n + 1,)) for n in (program.contract.nodes(k), k))
    builder = Builder()
    inputs = [
        builder.input("tokens", every),
        builder.input("parents", every),
        builder.input("logits", type_of(scored)),
        builder.input("length", ONE),
        builder.input("temperature", TensorType("f64", (1,))),
        builder.input("seed", ONE),
    ]
    vocabulary, types = program.model.vocab_size, (path, ONE, path)
    results = builder.ops(ops.accept_tree.default, *inputs, k, vocabulary, types=types)
    names = ("tokens", "accepted", "nodes")
    return Function(f"accept_{k}", Role.ACCEPT, builder.output(*results), names)
