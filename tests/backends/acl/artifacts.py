"""Artifacts for the double's chip, of each method."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specc.backends.onnx import lower
from tests.backends.acl.double import SOC
from tests.conftest import compiled
from tests.ir.importers.drafters import synthetic, synthetic_mtp

TAPS = [0, 3, 6]
DRAFTERS: dict[str, Callable[[Path, Any], Path]] = {
    "eagle3": synthetic.eagle3,
    "mtp": synthetic_mtp.speculators,
    "dflash": lambda folder, target: synthetic.zlab_dflash(folder, target, taps=TAPS),
    "dspark": lambda folder, target: synthetic.deepspec_dspark(folder, target, TAPS, markov="rnn"),
}


class Artifacts:
    """Each method's artifact, made when first asked for."""

    def __init__(self, folder: Path, model: Path, cann: Path) -> None:
        self.folder, self.model, self.cann = folder, model, cann
        self.tables: dict[Path, str] = {}
        """The generated C++ of each."""

    def of(self, method: str, **options: Any) -> Path:
        from transformers import AutoModelForCausalLM

        path = self.folder / f"{'-'.join([method, *options])}.specc"
        drafter = self.folder / f"drafter-{method}"
        if not drafter.exists():
            target = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
            if method in DRAFTERS:
                DRAFTERS[method](drafter, target)
            elif method == "draft_model":
                shutil.copytree(self.model, drafter)
        if drafter.exists():
            options["drafter"] = str(drafter)
        if method == "layerskip":
            options["draft_layers"] = (0, 1, 2, 5, 6, 7)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ASCEND_HOME_PATH", str(self.cann))
            patch.setattr(lower, "graph_table", self._keeping(path))
            return compiled(
                self.model, path, method, device=f"ascend:{SOC}", prefill_chunk=4, max_model_len=64,
                **options,
            )  # fmt: skip

    def _keeping(self, path: Path) -> Any:
        def table(*args: Any) -> str:
            self.tables[path] = made(*args)
            return self.tables[path]

        made = lower.graph_table
        return table
