"""Token trees: which draft follows which, where a round verifies several continuations at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_NODES = 256
"""Drafts of one tree. Attention lists the cache rows of every path: their number grows with the square."""


@dataclass(frozen=True)
class StaticTree:
    """The same places in every round, each named by its path of ranks from the root.

    (0, 2) is the third best token after the best. Ascending by depth, then by ranks; every path's beginning is a path
    too. Medusa's choices and vLLM's `speculative_token_tree` are such lists.
    """

    paths: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, paths: Iterable[Sequence[int]]) -> StaticTree:
        """A tree of `paths` in any order; ValueError, saying why, if they are none."""
        known = {tuple(p) for p in paths}
        if not known or () in known or any(rank < 0 for p in known for rank in p):
            raise ValueError("paths are lists of ranks, 0 or more, as in [(0,), (1,), (0, 0)]")
        if len(known) > MOST_NODES:
            raise ValueError(f"{len(known)} nodes; {MOST_NODES} at most")
        if orphans := sorted(p for p in known if len(p) > 1 and p[:-1] not in known):
            raise ValueError(f"{orphans[0]} is there, but {orphans[0][:-1]} is not")
        return cls(tuple(sorted(known, key=lambda p: (len(p), p))))

    @property
    def depth(self) -> int:
        """Drafts of the longest path."""
        return len(self.paths[-1])

    def size(self, k: int) -> int:
        """Drafts of a round of depth `k`: those of depth up to k."""
        return sum(len(p) <= k for p in self.paths)

    def nodes(self, k: int) -> tuple[tuple[int, ...], ...]:
        """Paths of a round of depth `k`, the root's () first."""
        return ((), *self.paths[: self.size(k)])

    def parents(self, k: int) -> list[int]:
        """For each of `nodes`, which its parent is; -1 for the root."""
        nodes = self.nodes(k)
        place = {p: i for i, p in enumerate(nodes)}
        return [place[p[:-1]] if p else -1 for p in nodes]

    def ranks(self, depth: int) -> int:
        """How many tokens of each parent at `depth` (from 1 on) are wanted: the best, the second best, ..."""
        return 1 + max(p[-1] for p in self.paths if len(p) == depth)

    def __str__(self) -> str:
        return "[" + ", ".join(str(p).replace(" ", "") for p in self.paths) + "]"


@dataclass(frozen=True)
class DynamicTree:
    """The `most` likeliest drafts of what a round grows: the best `width` tokens after `width` nodes of each level.

    EAGLE-2's (2406.16858): how likely a node is, is the product of what the drafter gives the tokens of its path.
    """

    most: int
    width: int

    def size(self, k: int) -> int:
        """Drafts of a round of depth `k`: all that are grown, where they are fewer than `most`."""
        return min(self.most, self.width + (k - 1) * self.width**2)

    def __str__(self) -> str:
        return f"{self.most} of width {self.width}"


Tree = StaticTree | DynamicTree
