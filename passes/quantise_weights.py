"""Matrices in fewer bits: what a token reads is what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import fx

from specc.errors import PassError
from specc.ir import Encoding, Owner, Role, SpeculativeProgram, Weight
from specc.ir.graphs import weight_name
from specc.ir.packing import is_multiplied, is_packable, pack
from specc.passes.base import Pass, PassResult, need, same
from specc.passes.fuse_linears import chooses_experts
from specc.passes.leaf_writer import PREFIX
from specc.passes.rounding import ROUNDINGS

aten, specc = torch.ops.aten, torch.ops.specc

KEEP = "keep"
"""In place of an encoding: as the model's file has it."""


@dataclass(frozen=True)
class QuantiseWeights(Pass):
    """Store the matrices of layers as `layers` says, and those outside, such as embedding and head, as `ends` says.

    Before: layer.0: linear(%x, %w: f32[N, K])                    call layer.0(%x, @w)
    After:  layer.0: specc.linear(%x, %w: u8[...], None, N, q4mg32)   call layer.0(%x, @w#q4mg32)

    The arithmetic changes with it, and is the same for every backend (`ir.products`). Of all functions there are: the
    target's and the drafter's, or those of one `owner`. What stays as it is (`left`): matrices that the encoding does
    not fit, routers of experts, tables looked up by position, and with `keep` what the file has in floating point.
    """

    name: ClassVar[str] = "quantise-weights"

    layers: str = "q8g32"
    ends: str = "q8g32"
    """Names of encodings, or `keep` in both: as the model's file has them."""
    rounding: str = "nearest"
    """One of `ROUNDINGS`."""
    owner: Owner | None = None
    """Whose matrices; None for everybody's. A drafter may guess in fewer bits than its target decides in: what it
    reads for a draft is what the draft costs, and no text changes."""

    def requires(self, program: SpeculativeProgram) -> None:
        leaves = [f for f in program.functions.values() if f.role is Role.LEAF]
        need(leaves, "there are no leaves", "outline-layers")
        if self.layers == KEEP:
            _require_blocks(program, self.owner)

    def call(self, program: SpeculativeProgram) -> PassResult:
        packed = _packed(program, self.owner)
        found = sorted({(part, str(w.packing.encoding)) for part, w in packed})  # type: ignore[union-attr]
        if found:
            wanted = sorted({(part, self._name(part)) for part, _ in found})
            if self.layers != KEEP:
                same("encodings", found, wanted)
            return PassResult(program, modified=False)
        rewritten = pack(program, partial(self._choose, program))
        return PassResult(rewritten, modified=any(_packed(rewritten, self.owner)))

    def _name(self, part: str) -> str:
        return self.layers if part == "layer" else self.ends

    def _choose(
        self, program: SpeculativeProgram, call: fx.Node, taken: fx.Node, name: str
    ) -> Weight | None:
        weight, wanted = program.weights[name], self._name(call.meta["part"])
        if not _counts(taken) or not _is_of(self.owner, program, taken, name):
            return None
        if wanted == KEEP:
            return weight.as_stored() if weight.stored is not None else None
        encoding = Encoding.parse(wanted)
        if not encoding.fits(*weight.type.at()):
            return None
        if not encoding.quantised or self.rounding == "nearest":
            return weight.encoded(encoding)
        return ROUNDINGS[self.rounding](weight, encoding)


def _counts(taken: fx.Node) -> bool:
    """Whether a leaf's input is a matrix that a token's time and the model's size go by."""
    return is_packable(taken) and all(
        not chooses_experts(user) if user.target is aten.linear.default else _by_token(user)
        for user in taken.users
    )


def _by_token(lookup: fx.Node) -> bool:
    """Whether an embedding is of the tokens (not of positions, as tables of cosines are)."""
    waiting, seen = list(lookup.all_input_nodes), set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder" and node.name == "tokens":
            return True
        if node not in seen:
            seen.add(node)
            waiting += node.all_input_nodes
    return False


def _arguments(
    program: SpeculativeProgram, owner: Owner | None
) -> Iterator[tuple[fx.Node, fx.Node, str]]:
    """Each weight of `owner`, or of everybody, that a leaf is passed: the call, the leaf's input, the weight's name."""
    for call, given, taken in program.leaf_arguments():
        if (name := weight_name(given)) is not None and _is_of(owner, program, taken, name):
            yield call, taken, name


def _is_of(owner: Owner | None, program: SpeculativeProgram, taken: fx.Node, name: str) -> bool:
    # (Who asks for everybody's waits for no comparison of contents.)
    return owner is None or owner_of(program, taken, name) is owner


def owner_of(program: SpeculativeProgram, taken: fx.Node, name: str) -> Owner:
    """Whose the weight is that a leaf takes as `taken`.

    The target's head is its own where the target reads it. What a drafter only looks up in (an embedding) costs a draft
    nothing, and is the target's where it is the same as the target's.
    """
    if not name.startswith(PREFIX):
        return Owner.TARGET
    if is_multiplied(taken) or any(user.target is specc.linear.default for user in taken.users):
        return Owner.DRAFTER
    weight = program.weights[name]
    theirs = (w for n, w in program.weights.items() if not n.startswith(PREFIX))
    same_as = any(w.type == weight.type and w.key == weight.key for w in theirs)
    return Owner.TARGET if same_as else Owner.DRAFTER


def _packed(program: SpeculativeProgram, owner: Owner | None) -> Iterator[tuple[str, Weight]]:
    """Packed weights of `owner`, or of everybody, with the part that reads them."""
    for call, _, name in _arguments(program, owner):
        if program.weights[name].packing is not None:
            yield call.meta["part"], program.weights[name]


def left(program: SpeculativeProgram, owner: Owner | None = None) -> list[str]:
    """Matrices of `owner`, or of everybody, that leaves multiply with and that are not packed, each once."""
    found = [name for _, taken, name in _arguments(program, owner) if is_multiplied(taken)]
    return [n for n in dict.fromkeys(found) if program.weights[n].packing is None]


def _require_blocks(program: SpeculativeProgram, owner: Owner | None) -> None:
    taken = _arguments(program, owner)
    matrices = {n: program.weights[n] for _, node, n in taken if _counts(node)}
    stored = {name: w.stored for name, w in matrices.items() if w.stored is not None}
    kept = "Q4_0, Q4_1 or Q8_0"
    if not stored and not any(_packed(program, owner)):
        raise PassError(
            "SPECC-E0360", "there is nothing to keep: the model's file has no quantised matrices",
            expected=f"a GGUF of {kept}", cure="choose --quant int8 or int4",
        )  # fmt: skip
    for name, found in stored.items():
        if found.encoding is None:
            raise PassError(
                "SPECC-E0361", f"blocks of {found.kind} cannot be used as they are", where=name,
                expected=kept, found=found.kind, cure=f"take a {kept} file, or choose --quant int8 or int4",
            )  # fmt: skip
