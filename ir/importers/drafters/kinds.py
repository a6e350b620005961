"""What kind of drafter a checkpoint is, by the names of its tensors: formats differ, parts do not."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from specc.ir.importers.drafters.files import open_tensors
from specc.ir.importers.drafters.spec import Kind


def kind_of(names: Collection[str]) -> Kind | None:
    """The kind that these tensors make, or None if they make none that is known (a whole model, for one)."""
    first = ("midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight")
    if any(n.endswith("0.0.linear.weight") for n in names):
        return Kind.MEDUSA
    if "mtp_layers.0.input_proj.weight" in names:
        return Kind.MTP
    if "mask_hidden" in names:
        return Kind.PEAGLE
    if "fc.weight" not in names:
        return None
    if any(n in names for n in first):
        return Kind.EAGLE3
    if "hidden_norm.weight" in names:
        heads = any("markov_head." in n or "confidence_head." in n for n in names)
        return Kind.DSPARK if heads else Kind.DFLASH
    return Kind.EAGLE if "layers.0.self_attn.q_proj.weight" in names else None


def kind_in(folder: Path) -> Kind | None:
    """The kind of drafter in `folder`, None for anything else. Raises ModelError as `load_drafter` for its files."""
    return kind_of(open_tensors(folder).names()) if folder.is_dir() else None
