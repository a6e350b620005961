"""Write down who drafts, before anything is built for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from specc.errors import PassError
from specc.ir import DraftState, SpeculativeProgram
from specc.passes.base import Pass, PassResult, same

HOST_OPTIONS: Mapping[str, Mapping[str, tuple[int | float, float, float]]] = {
    "none": {},
    "ngram": {"prompt_lookup_max": (4, 1, 64), "prompt_lookup_min": (2, 1, 64)},
    "suffix": {
        "max_tree_depth": (24, 2, 256), "max_spec_factor": (1.0, 0.1, 8.0),
        "min_token_prob": (0.1, 0.0, 1.0),
    },
    "mtp:structure": {
        "max_matches": (8, 1, 64), "max_window": (4096, 16, 1 << 20), "min_similarity": (0.0, -1.0, 1.0),
    },
}  # fmt: skip
"""Host drafters: option -> default, least, most. Names as in vLLM's speculative configuration, where it has them.

An option whose default is an int takes whole numbers alone.
"""

BESIDE = ("ngram", "suffix")
"""Those that see tokens alone, so that they may stand beside any drafter in the graph."""


@dataclass(frozen=True)
class DeclareDrafter(Pass):
    """Set the contract's kind, where it drafts, and its options.

    A drafter that is not on the host is taken to draft through the target's caches, until the pass
    that attaches it says otherwise.

    Before: drafter none
    After:  drafter ngram prompt_lookup_max=4 prompt_lookup_min=2

    `beside`: a host drafter for a text's own repetitions, where another drafts in the graph.
    `trees`: the drafts of one on the host may be any tree of K nodes.
    """

    name: ClassVar[str] = "declare-drafter"

    kind: str = "none"
    host: bool = True
    options: Mapping[str, int | float] = field(default_factory=dict)
    beside: str | None = None
    trees: bool = False

    @property
    def _host_drafter(self) -> str | None:
        alone = self.kind if self.host and self.kind != "none" else None
        return alone or self.beside

    def requires(self, program: SpeculativeProgram) -> None:
        if self.host and self.kind not in HOST_OPTIONS:
            raise PassError(
                "SPECC-E0359", f"there is no host drafter {self.kind}",
                expected=", ".join(HOST_OPTIONS), cure="choose another --method",
            )  # fmt: skip
        if self.beside is not None and (self.host or self.beside not in BESIDE):
            raise PassError(
                "SPECC-E0359", f"{self.beside} cannot stand beside {self.kind}",
                expected="ngram or suffix beside a drafter in the graph",
                cure="correct --host-drafter",
            )  # fmt: skip
        known = HOST_OPTIONS[self._host_drafter or "none"]
        for name, value in self.options.items():
            if name not in known or not known[name][1] <= value <= known[name][2]:
                allowed = ", ".join(f"{n} ({lo} to {hi})" for n, (_, lo, hi) in known.items())
                raise PassError(
                    "SPECC-E0357", f"{self._host_drafter or self.kind} has no option {name}={value}",
                    expected=allowed or "no options", cure="correct --drafter-options",
                )  # fmt: skip
            if isinstance(known[name][0], int) and value != int(value):
                raise PassError(
                    "SPECC-E0357", f"{self._host_drafter or self.kind} takes no fraction as {name}",
                    expected=f"a whole number, {known[name][1]} to {known[name][2]}", found=str(value),
                    cure="correct --drafter-options",
                )  # fmt: skip

        settings = self._options()
        least, most = settings.get("prompt_lookup_min", 0), settings.get("prompt_lookup_max", 0)
        if least > most:
            raise PassError(
                "SPECC-E0357", f"{self.kind} cannot look up {least} to {most} tokens",
                expected="prompt_lookup_min up to prompt_lookup_max",
                cure="correct --drafter-options",
            )  # fmt: skip

    def _options(self) -> dict[str, int | float]:
        """All options, defaults included; whole numbers as ints, which flags do not tell from others."""
        defaults = {n: o[0] for n, o in HOST_OPTIONS[self._host_drafter or "none"].items()}
        given = {n: int(v) if isinstance(defaults[n], int) else v for n, v in self.options.items()}
        return defaults | given

    def call(self, program: SpeculativeProgram) -> PassResult:
        contract = replace(
            program.contract, kind=self.kind, options=self._options(),
            state=DraftState.NONE if self.host else DraftState.TARGET,
            host_drafter=self._host_drafter, given_trees=self.trees,
        )  # fmt: skip
        found = program.contract
        if found.kind != "none":
            same("kind", found.kind, self.kind)
            same("options", dict(found.options), contract.options)
            same("host drafter", found.host_drafter, contract.host_drafter)
            same("trees", found.given_trees, contract.given_trees)
            return PassResult(program, modified=False)
        return PassResult(replace(program, contract=contract), modified=contract != found)
