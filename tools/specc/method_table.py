"""What is known of each method before anything is imported: who drafts, and where it runs.

A new method is a row here and a pipeline in `methods.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from specc.device_names import CUDA

AUTO = "auto"
"""The method that measures others, and is none."""

STRUCTURE = "mtp:structure"


class Drafts(Enum):
    """Who drafts."""

    NOBODY = auto()
    TEXT = auto()  # what was said before
    GRAPH = auto()  # the target's own layers, or another model's
    TRAINED = auto()  # a checkpoint made for the target


@dataclass(frozen=True)
class Method:
    """`graphs`: its graphs leave choosing tokens to the host, which --device onnx and ascend need.

    `cuda`: --device cuda runs it. `calibrated`: something is measured on a text when it is compiled.
    `not_in_mlc`: why MLC's engine has no speculative_mode for it; empty where it has.
    """

    drafts: Drafts
    graphs: bool = False
    cuda: bool = False
    calibrated: bool = False
    not_in_mlc: str = ""


_MODELS_ALONE = "its drafts come from models alone"
_A_TOKEN_A_STEP = "it drafts one token a step, and these a block"
_NOTHING_SHARED = "its drafter cannot share the target's layers and caches"

TABLE: Mapping[str, Method] = {
    "none": Method(Drafts.NOBODY, graphs=True, cuda=True),
    "ngram": Method(Drafts.TEXT, graphs=True, cuda=True, not_in_mlc=_MODELS_ALONE),
    "suffix": Method(Drafts.TEXT, graphs=True, cuda=True, not_in_mlc=_MODELS_ALONE),
    STRUCTURE: Method(Drafts.TEXT, calibrated=True, not_in_mlc=_MODELS_ALONE),
    "draft_model": Method(Drafts.GRAPH, graphs=True, cuda=True),
    "layerskip": Method(Drafts.GRAPH, graphs=True, cuda=True, calibrated=True, not_in_mlc=_NOTHING_SHARED),
    "eagle:adaptive": Method(Drafts.GRAPH, cuda=True, calibrated=True, not_in_mlc=_NOTHING_SHARED),
    "eagle": Method(Drafts.TRAINED, graphs=True, cuda=True),
    "eagle3": Method(
        Drafts.TRAINED, graphs=True, cuda=True,
        not_in_mlc="it passes on one hidden state of the target's width, and EAGLE-3 reads three",
    ),
    "mtp": Method(
        Drafts.TRAINED, graphs=True, cuda=True,
        not_in_mlc="its eagle mode passes on one stream, and an MTP layer reads two",
    ),
    "dflash": Method(Drafts.TRAINED, graphs=True, cuda=True, not_in_mlc=_A_TOKEN_A_STEP),
    "dspark": Method(Drafts.TRAINED, graphs=True, cuda=True, not_in_mlc=_A_TOKEN_A_STEP),
    "medusa": Method(Drafts.TRAINED, graphs=True, cuda=True),
}  # fmt: skip

METHODS = tuple(TABLE)


def by(*drafts: Drafts) -> tuple[str, ...]:
    """Methods whose drafts are made by one of these."""
    return tuple(name for name, method in TABLE.items() if method.drafts in drafts)


ON_HOST, TRAINED = by(Drafts.TEXT), by(Drafts.TRAINED)
CALIBRATED = tuple(name for name, method in TABLE.items() if method.calibrated)
MLC_METHODS = tuple(name for name, method in TABLE.items() if not method.not_in_mlc)


def running_on(kind: str) -> tuple[str, ...]:
    """Methods that a device of this kind runs: cpu, cuda, onnx or ascend."""
    if kind == "cpu":
        return METHODS
    return tuple(n for n, m in TABLE.items() if (m.cuda if kind == CUDA else m.graphs))
