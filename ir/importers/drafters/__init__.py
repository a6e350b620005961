"""Drafter checkpoints of every public format -> one contract (`spec.py`) and its tensors."""

from specc.ir.importers.drafters.kinds import kind_in
from specc.ir.importers.drafters.load import load_drafter
from specc.ir.importers.drafters.native import load_native
from specc.ir.importers.drafters.spec import (
    Attention,
    Block,
    Confidence,
    DrafterCheckpoint,
    DrafterSpec,
    Experts,
    Fuse,
    Kind,
    LatentAttention,
    Layer,
    Markov,
    Medusa,
    Mlp,
    Ownership,
    Recycle,
    Rope,
)
from specc.ir.importers.drafters.target import Target

__all__ = [
    "Attention",
    "Block",
    "Confidence",
    "DrafterCheckpoint",
    "DrafterSpec",
    "Experts",
    "Fuse",
    "Kind",
    "LatentAttention",
    "Layer",
    "Markov",
    "Medusa",
    "Mlp",
    "Ownership",
    "Recycle",
    "Rope",
    "Target",
    "kind_in",
    "load_drafter",
    "load_native",
]
