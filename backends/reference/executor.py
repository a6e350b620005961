"""Runs a reference artifact: the same manifest, plans and round contract as libspecc, in Python."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from specc.backends.plan import BUILT_INS, Plan
from specc.backends.reference.lower import FOLDER
from specc.backends.reference.memory import Memory
from specc.errors import ArtifactError, ModelError, RequestError
from specc.ir.importers.pt2_archive import check_archive
from specc.ir.weights import WeightStore
from specc.runtime.manifest import FileEntry, Manifest, read_file

_OPERATIONS: dict[str, Any] = {entry: op for op, (entry, _) in BUILT_INS.items()}


class ReferenceArtifact:
    """Loaded `leaves` and weights of the artifact in `path`. Temperature uses the same noise as every backend."""

    def __init__(
        self, path: Path, manifest: Manifest, plans: dict[str, Plan], weights: dict[str, Tensor],
        leaves: dict[str, Any],
    ) -> None:  # fmt: skip
        self.path, self.manifest, self._plans = path, manifest, plans
        self._weights, self.leaves = weights, leaves

    @classmethod
    def load(cls, path: Path) -> Self:
        """Open the artifact in directory `path`; raises ArtifactError (SPECC-E0505) for a file that cannot be read."""
        manifest = Manifest.read(path)
        leaves = {}
        try:
            plans = {n: Plan.from_json(data) for n, data in manifest.raw["functions"].items()}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for entry in manifest.files.values():
                    if entry.path.startswith(f"{FOLDER}/"):
                        leaves[Path(entry.path).stem] = _leaf(path, entry)
            store = WeightStore.open(path / "weights.safetensors")
            weights = {name: weight.load() for name, weight in store.items()}
        except ArtifactError:
            raise
        except Exception as error:
            raise ArtifactError(
                "SPECC-E0505", "the artifact cannot be read", where=str(path), found=str(error)[:200],
                cure="compile it again",
            ) from error  # fmt: skip
        return cls(path, manifest, plans, weights, leaves)

    def run(self, name: str, inputs: dict[str, Tensor], state: dict[str, Tensor]) -> list[Tensor]:
        """Execute the plan of function `name`; writes to `state`."""
        plan = self._plans[name]
        values = {f"%{name}": value for name, value in inputs.items()}
        values |= {f"w:{name}": value for name, value in self._weights.items()}
        values |= {f"s:{name}": value for name, value in state.items()}
        with torch.no_grad():
            for step in plan.instructions:
                results = self._step(step.entry, [values[i] for i in step.inputs], step.attrs)
                values |= {f"%{o}": r for o, r in zip(step.outputs, results, strict=True)}
        return [values[f"%{o.name}"] for o in plan.outputs]

    def _step(self, entry: str, args: list[Tensor], attrs: Sequence[int]) -> list[Tensor]:
        if entry == "specc.cat":
            return [torch.cat(args)]
        call = _OPERATIONS.get(entry) or self.leaves[entry]
        result = call(*args, *attrs)
        if isinstance(result, Tensor):
            return [result]
        return list(result or ())

    def generate(
        self, prompt: Sequence[int], *, max_tokens: int, num_speculative_tokens: int = 0,
        depth: int = 0, temperature: float = 0.0, seed: int = 0, ignore_eos: bool = False,
    ) -> Iterator[int]:  # fmt: skip
        """New tokens after `prompt`, by rounds of K drafts (and of `depth`, where the drafter has depths).

        Near the end of the context a round has the largest K that fits. Raises RequestError:
        SPECC-E0601 for a K or depth that the artifact does not have, E0607 for an empty prompt,
        E0604 where a logit that decides is NaN.
        """
        model, lengths = self.manifest.model, self.manifest.num_speculative_tokens
        drafter = self.manifest.drafter
        _check_option("num_speculative_tokens", num_speculative_tokens, lengths)
        if num_speculative_tokens or depth:
            _check_option("draft_depth", depth, self.manifest.drafter.depths or (0,))
        if not prompt:
            raise RequestError("SPECC-E0607", "the prompt is empty", cure="pass at least one token")
        arena = Memory(self.manifest)
        state = arena.buffers
        tokens = list(prompt)
        row = self._prefill(tokens[:-1], state)
        extended = 0  # positions of the drafter's own state that are right, and the token after each known to it
        made = 0
        while made < max_tokens and len(tokens) < model.max_model_len:
            room = model.max_model_len - len(tokens)
            fits = len(tokens) - 1 + drafter.draft_rows <= model.max_model_len
            wanted = num_speculative_tokens if len(tokens) > drafter.min_length and fits else 0
            k = max(
                k for k in lengths if k <= wanted and self.manifest.round(k, depth).nodes <= room
            )
            name = self.manifest.round(k, depth).function
            pairs = {}
            if k and drafter.extend is not None:
                pairs = self._extend(drafter.extend, tokens, extended, state)
                extended = len(tokens) - 1
            chosen, accepted = self._round(name, tokens, row, temperature, seed, state, pairs)
            arena.check_guards()
            if accepted < 0:
                raise RequestError("SPECC-E0604", "a logit is NaN", cure="report the model")
            row = accepted
            for token in chosen[: accepted + 1]:
                tokens.append(token)
                made += 1
                yield token
                if made == max_tokens or (token in model.eos_token_ids and not ignore_eos):
                    return

    def _prefill(self, tokens: list[int], state: dict[str, Tensor]) -> int:
        """Fill state in chunks; returns the row of the last position in its chunk."""
        chunk, row = self.manifest.model.prefill_chunk, 0
        for start in range(0, len(tokens), chunk):
            part = torch.tensor(tokens[start : start + chunk])
            at = torch.arange(start, start + len(part))
            self.run("prefill", {"tokens": part, "positions": at, "rows": at}, state)
            row = len(part) - 1
        return row

    def _extend(
        self, function: str, tokens: list[int], begin: int, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Extend the drafter over the committed tokens but for one chunk: inputs for the round to do that."""
        chunk, end = self.manifest.model.prefill_chunk, len(tokens) - 1
        while end - begin > chunk:
            self.run(function, _pairs(tokens, begin, begin + chunk), state)
            begin += chunk
        return _pairs(tokens, min(begin, end - 1), end)

    def _round(
        self, name: str, tokens: list[int], row: int, temperature: float, seed: int,
        state: dict[str, Tensor], pairs: dict[str, Tensor],
    ) -> tuple[list[int], int]:  # fmt: skip
        length = len(tokens) - 1
        known = {
            "root": torch.tensor([tokens[-1]]),
            "previous": torch.tensor([tokens[max(length - 1, 0)]]),
            "length": torch.tensor([length]),
            "first_row": torch.tensor([0]),
            "tap_row": torch.tensor([row]),
            "temperature": torch.tensor([temperature], dtype=torch.float64),
            "seed": torch.tensor([seed]),
            **pairs,
        }
        inputs = {v.name: known[v.name] for v in self._plans[name].inputs}
        chosen, accepted = self.run(name, inputs, state)
        return chosen.tolist(), int(accepted)


def _leaf(path: Path, entry: FileEntry) -> Any:
    """A compiled leaf, if it is what the manifest lists, and data alone: torch.export.load may unpickle and evaluate.

    An artifact comes from anywhere, and so does the manifest that vouches for its files.
    """
    file, content = path / entry.path, read_file(path, entry)
    try:
        check_archive(file, content, ours=True)
    except ModelError as error:
        raise ArtifactError(
            "SPECC-E0505", "a file of the artifact is not read, since it is more than data, or none",
            where=str(file), found=error.what, cure="compile it again",
        ) from error  # fmt: skip
    return torch.export.load(io.BytesIO(content)).module()


def _pairs(tokens: list[int], begin: int, end: int) -> dict[str, Tensor]:
    """Positions begin to end - 1, and the token after each."""
    at = torch.arange(begin, end)
    return {"next_tokens": torch.tensor(tokens[begin + 1 : end + 1]), "positions": at, "rows": at}


def _check_option(name: str, value: int, choices: Sequence[int]) -> None:
    if value not in choices:
        raise RequestError(
            "SPECC-E0601", "an option is out of range", where=name,
            expected=f"one of {', '.join(map(str, choices))}", found=str(value),
            cure="choose one of these",
        )  # fmt: skip
