"""The map from draft ids to target ids, proved rather than guessed."""

from __future__ import annotations

import torch

from specc.errors import ModelError
from specc.ir.importers.drafters.files import Tensors


def draft_ids(tensors: Tensors, draft_size: int, size: int) -> tuple[torch.Tensor | None, str]:
    """The target id i64[draft_size] of each draft id, or None if they are the same, and how it was read.

    `d2t` holds offsets (target id = draft id + offset) in the formats that have it; some converters write ids. `t2d`
    bool[size] marks the ids that are kept, in ascending order, and decides. Without it, a reading counts only if all
    ids are different and in range, and the other reading is not possible too.
    Raises ModelError (SPECC-E0279) for tables that fit neither reading, or both.
    """
    here = "d2t" in tensors
    if draft_size == size:
        # Trainers write tables of no effect for a full vocabulary.
        table = tensors.integers("d2t", [size]) if here else torch.zeros(size, dtype=torch.int64)
        if "t2d" in tensors:
            tensors.drop("t2d")
        if bool((table == 0).all()) or bool((table == torch.arange(size)).all()):
            return None, "all ids"
        raise _bad(tensors, "d2t changes ids although the draft vocabulary is the target's")
    readings: dict[str, torch.Tensor] = {}
    if here:
        # (First of all, since it checks the size: the configuration's may be more than memory has.)
        table = tensors.integers("d2t", [draft_size])
        readings = {"offsets": torch.arange(draft_size) + table, "ids": table}
    if "t2d" in tensors:
        kept = tensors.integers("t2d", [size]).nonzero().reshape(-1)
        if not here:
            readings = {"t2d alone": kept}
        readings = {
            how: found for how, found in readings.items()
            if len(kept) == draft_size and torch.equal(found.sort().values, kept)
        }  # fmt: skip
    elif not here:
        tensors.shape("d2t")  # which refuses it as missing
    possible = {how: found for how, found in readings.items() if _distinct(found, size)}
    if len(possible) == 1 or (len(possible) == 2 and torch.equal(*possible.values())):
        how, found = next(iter(possible.items()))
        return found, how
    if possible:
        raise _bad(tensors, "d2t could hold offsets or ids, and there is no t2d to decide")
    raise _bad(tensors, "d2t fits neither as offsets nor as ids")


def _distinct(ids: torch.Tensor, size: int) -> bool:
    inside = bool(((ids >= 0) & (ids < size)).all())
    return inside and len(set(ids.tolist())) == len(ids)


def _bad(tensors: Tensors, what: str) -> ModelError:
    return ModelError(
        "SPECC-E0279", f"the drafter's map of its vocabulary cannot be used: {what}",
        where=f"{tensors.where}: d2t", expected="d2t[i] = target id - i, and t2d marking the ids that are kept",
        cure="export the checkpoint again with the tool it was trained with",
    )  # fmt: skip
