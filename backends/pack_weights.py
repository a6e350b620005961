"""Matrices in tiles, for backends whose products are packed ones."""

from __future__ import annotations

from torch import fx

from specc.ir import SpeculativeProgram, Weight
from specc.ir.encodings import BF16, F32
from specc.ir.graphs import type_of, weight_name
from specc.ir.packing import is_multiplied, is_packable, pack


def pack_weights(program: SpeculativeProgram) -> SpeculativeProgram:
    """Every matrix that leaves only multiply with, or look rows up in, in tiles (`ir.packing.pack`), rounded nowhere.

    A tied embedding and head stay one tensor: both are packed the same way. What is packed already, such as quantised
    matrices, is left alone.
    """

    def as_it_is(call: fx.Node, taken: fx.Node, name: str) -> Weight:
        del call
        return program.weights[name].encoded(BF16 if type_of(taken).dtype == "bf16" else F32)

    return pack(program, as_it_is)


def unpacked(program: SpeculativeProgram) -> list[str]:
    """Matrices that leaves multiply with and that `pack_weights` leaves alone, such as those of f16."""
    names = (
        weight_name(given)
        for _, given, taken in program.leaf_arguments()
        if is_multiplied(taken) and not is_packable(taken)
    )
    return list(dict.fromkeys(n for n in names if n is not None))
