"""Drafters that are trained for one model: which are public, and which one a request means.

Importing this is cheap; what reads tensors is imported when needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc import flags
from specc.errors import UsageError
from specc.locate import locate
from specc.method_table import TRAINED

if TYPE_CHECKING:
    from specc.ir.importers.drafters import DrafterCheckpoint, Target
    from specc.ir.importers.source import ImportedModel

DISTILLED: Mapping[str, tuple[str, ...]] = {
    "eagle3": ("--draft-vocab-size", "--intermediate-size", "--full-head"),
    "mtp": ("--intermediate-size",),
    "medusa": ("--full-head",),
    "dflash": ("--draft-vocab-size", "--intermediate-size", "--full-head"),
    "dspark": ("--draft-vocab-size", "--intermediate-size", "--full-head"),
}
"""Those that `specc distill` trains, and the flags that shape each."""

SHIPPED = Path(__file__).parent / "data" / "drafters"
"""A folder for each drafter that comes with specc."""

WITHOUT = "suffix"
"""The method that needs nothing and pays most often."""


@dataclass(frozen=True)
class Known:
    """Public drafters of one method: `exact` for models of the target's sizes, `family` for its other sizes.

    Each is (model, drafter).
    """

    family_name: str
    exact: tuple[tuple[str, str], ...]
    family: tuple[tuple[str, str], ...]


def public(model: str, method: str) -> Known:
    """What `data/drafters.json` lists for the model that `model` names: a folder with config.json, or a hub id."""
    targets = _table()["targets"]
    facts = _facts(model)
    named = [t for t in targets if t["model"].split("/")[-1].lower() == Path(model).name.lower()]
    if not facts and named:
        facts = named[0]
    family = [t for t in targets if t["architecture"] == facts.get("architecture")]
    same = [
        t for t in family if all(t[k] == facts.get(k) for k in ("hidden_size", "layers"))
    ]  # fmt: skip
    exact = named or same
    rest = [t for t in family if t not in exact]
    return Known(
        str(facts.get("architecture", "this model")), _pairs(exact, method), _pairs(rest, method)
    )


def may_be_shipped(model: str, method: str) -> bool:
    """Whether a drafter that comes with specc could be for `model`: what can be known before the model is read."""
    whole = model.startswith("pypi:") or model.endswith(".gguf")
    facts = {} if whole else _facts(model)
    return (whole or bool(facts)) and any(
        made["method"] == method and facts.items() <= made["target"].items()
        for _, made in _shipped()
    )


def shipped(method: str, target: Target) -> Path | None:
    """The folder of the drafter that comes with specc for this very target, told by its sizes and its head."""
    from specc.ir.weights import content_hash

    facts = {
        "architecture": target.architecture, "hidden_size": target.hidden_size, "layers": target.num_layers,
    }  # fmt: skip
    alike = [
        (folder, made) for folder, made in _shipped()
        if made["method"] == method and facts.items() <= made["target"].items()
    ]  # fmt: skip
    if not alike:
        return None
    head = content_hash(target.head.load())
    return next((folder for folder, made in alike if made["target"]["head"] == head), None)


def _shipped() -> list[tuple[Path, dict[str, Any]]]:
    """The folders of the drafters in the package, each with its recipe (what `specc distill` writes beside it)."""
    found = sorted(SHIPPED.glob("*/distill.json"))
    return [(path.parent, json.loads(path.read_text())) for path in found]


def missing(model: str, method: str) -> UsageError:
    """The error for a trained method without a drafter: which exist, how one is trained, what works without."""
    known = public(model, method)
    if known.exact:
        found = "public: " + "; ".join(f"{d} (for {m})" for m, d in known.exact)
        first = f"specc compile {model} --method {method} --drafter {known.exact[0][1]}"
    else:
        found = f"no public {method} drafter is known for this size of {known.family_name}"
        if known.family:
            found += "; for others: " + "; ".join(f"{d} (for {m})" for m, d in known.family[:4])
        first = "--drafter FOLDER of one that you have"
    others = [m for m in TRAINED if m != method and public(model, m).exact]
    train = f"specc distill {model} --method {method} -o FOLDER, or " if method in DISTILLED else ""
    also = f"; --method {' or '.join(others)} has one" if others else ""
    return flags.conflict(
        f"{method} needs a drafter that was trained for this very model",
        f"{first}{also}; train one: {train}{_table()['train'][method]}; or without any: --method {WITHOUT}",
        expected="--drafter FOLDER or ORG/NAME", found=found,
    )  # fmt: skip


def method_of(drafter: str) -> str | None:
    """The method that a drafter is for, or None if it is a model of its own. Raises ModelError for broken files."""
    from specc.ir.importers.drafters import kind_in

    kind = kind_in(locate(drafter))
    return None if kind is None else kind.method


def load(
    method: str, model: str, drafter: str | None, imported: ImportedModel
) -> DrafterCheckpoint:
    """The checkpoint that a request means: `drafter`, one that comes with specc, or the model's own MTP layer.

    Raises UsageError (SPECC-E0104) if there is none; ModelError, as `specc.ir.importers.drafters.load_drafter` and
    `load_native`.
    """
    from specc.ir.importers.drafters import Target, load_drafter, load_native

    target = Target.of(imported.program)
    if drafter is None:
        ours = shipped(method, target)
        if ours is not None:
            return load_drafter(ours, target, method)
        if method != "mtp":
            raise missing(model, method)
        return load_native(locate(model), target)
    return load_drafter(locate(drafter), target, method)


def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(files("specc").joinpath("data/drafters.json").read_text())
    return table


def _facts(model: str) -> dict[str, Any]:
    """Architecture and sizes from a folder's config.json; nothing where there is none."""
    path = Path(model).expanduser() / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        text = values.get("text_config") or values
        return {
            "architecture": text["model_type"], "hidden_size": text["hidden_size"], "layers": text["num_hidden_layers"],
        }  # fmt: skip
    except (OSError, ValueError, RecursionError, KeyError, AttributeError, TypeError):
        return {}  # what is wrong with it, importing will tell


def _pairs(targets: list[dict[str, Any]], method: str) -> tuple[tuple[str, str], ...]:
    return tuple((t["model"], d) for t in targets for d in t.get(method, ()))
