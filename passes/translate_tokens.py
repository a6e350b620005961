"""A drafter of another tokenizer reads and proposes the target's tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Role, SpeculativeProgram, Weight
from specc.ir.graphs import Builder, copy_graph, results_of, retype, type_of, weight_name
from specc.ir.infer import infer_types
from specc.ir.program import Function
from specc.ir.types import TensorType
from specc.passes.base import Pass, PassResult, need, promise
from specc.passes.head_rows import call_with_rows
from specc.passes.replay import parts_of

aten = torch.ops.aten

SUFFIX = ".translated"
READ, PLACES = "translated.read", "translated.places"


@dataclass(frozen=True)
class TranslateTokens(Pass):
    """Tokens that are read become the drafter's, and logits those of the target's tokens.

    Before: x = call embed(positions, tokens, @wte)                 tokens: the drafter's
            logits = call head(x, @head)                            logits: f32[T, D]      @head: f32[D, H]
    After:  x = call embed.translated(positions, tokens, @wte, @translated.read)           i64[V, 1]
            logits = call head.translated(x, @head.translated, @translated.places)         [F, H], i32[V]

    Lossless speculation over different vocabularies by their intersection (TLI of arXiv 2502.05202): what only one
    of the two can say is never proposed, and what the drafter has no token for it reads as something near.
    Only the F tokens that the target knows too are rows of the head.
    """

    name: ClassVar[str] = "translate-tokens"

    read: tuple[int, ...] = ()
    """V numbers: what the drafter reads for each of the target's tokens."""
    said: tuple[int, ...] = ()
    """V numbers: the drafter's token that says the same as each of the target's; -1 where none does."""

    @property
    def common(self) -> int:
        """How many of the target's tokens the drafter can say."""
        return sum(i >= 0 for i in self.said)

    def requires(self, program: SpeculativeProgram) -> None:
        parts_of(program)
        functions = [n for n, f in program.functions.items() if f.role is not Role.LEAF]
        need(
            functions == ["target"], "the drafter is a part of another program already",
            "translate-tokens before attach-draft-model",
        )  # fmt: skip
        if not self.read or len(self.read) != len(self.said) or max(self.said) < 0:
            raise PassError(
                "SPECC-E0370", "there is nothing to translate with", expected="as many tokens to read as to say",
                found=f"{len(self.read)} and {self.common} of {len(self.said)}",
                cure="give both for each of the target's tokens",
            )  # fmt: skip
        known = program.model.vocab_size
        if READ not in program.weights and not all(
            0 <= i < known for i in (*self.read, max(self.said))
        ):
            raise PassError(
                "SPECC-E0370", "a translation to tokens that the drafter does not have", expected=f"ids below {known}",
                found=f"up to {max(*self.read, *self.said)}", cure="make it with the drafter's own tokenizer",
            )  # fmt: skip

    def call(self, program: SpeculativeProgram) -> PassResult:
        ids = sorted({i for i in self.said if i >= 0})
        place = {token: row for row, token in enumerate(ids)}
        places = [place.get(token, len(ids)) for token in self.said]
        weights = {
            # (A column: ONNX's shape inference takes rows of numbers for shapes, and would want to read them.)
            READ: Weight.of(torch.tensor(self.read).unsqueeze(1)),
            PLACES: Weight.of(torch.tensor(places, dtype=torch.int32)),
        }
        if READ in program.weights:
            program.weights.added(weights)  # refuses another translation
            return PassResult(program, modified=False)
        target, leaves = program.functions["target"], dict[str, Function]()
        graph, copies = copy_graph(target.graph)
        tokens = next(copies[n] for n in target.inputs if n.name == "tokens")
        for call in [n for n in graph.nodes if n.op == "call_module"]:
            leaf = program.functions[str(call.target)]
            if call.meta["part"] == "head":
                new = call_with_rows(call, leaf, ids, SUFFIX, PLACES, program.weights, weights)
                retype(call, new)
            elif tokens in call.args:
                new = _reading(call, leaf, call.args.index(tokens), weights[READ].type)
            else:
                continue
            leaves[leaf.name] = new
        for node in [n for n in graph.nodes if weight_name(n) is not None and not n.users]:
            graph.erase_node(node)
        done = Function("target", target.role, graph, target.outputs)
        functions = {n: f for n, f in program.functions.items() if n not in leaves}
        rewritten = replace(
            program, weights=program.weights.added(weights), functions=functions,
            model=replace(program.model, vocab_size=len(self.read)),
            contract=replace(program.contract, draft_vocab_size=len(ids)),
        ).with_functions(*leaves.values()).replacing(done)  # fmt: skip
        return PassResult(rewritten, modified=True)

    def ensures(self, program: SpeculativeProgram) -> None:
        (logits,) = results_of(program.functions["target"].graph)
        promise(
            type_of(logits).shape == ("T", len(self.said)), "logits are not of the target's tokens"
        )


def _reading(call: fx.Node, leaf: Function, index: int, table: TensorType) -> Function:
    """Make `call` of `leaf`, whose input `index` are tokens, one of the leaf returned, which looks them up first."""
    graph, copies = copy_graph(leaf.graph)
    tokens, last = copies[leaf.inputs[index]], copies[leaf.inputs[-1]]
    with graph.inserting_after(last):
        read = graph.placeholder("read")
    read.meta["type"] = table
    with graph.inserting_after(read):
        found = graph.call_function(aten.index_select.default, (read, 0, tokens))
    with graph.inserting_after(found):
        own = graph.call_function(aten.select.int, (found, 1, 0))
    tokens.replace_all_uses_with(own, delete_user_cb=lambda user: user is not found)
    infer_types(graph, leaf.name)
    with call.graph.inserting_before(call):
        call.args = (*call.args, Builder(call.graph).weight(READ, table))
    call.target = leaf.name + SUFFIX
    return Function(call.target, leaf.role, graph, leaf.outputs)
