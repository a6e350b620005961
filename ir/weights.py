"""The weight store: tensors by name, each content once, loaded when needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from specc.errors import InvalidProgramError
from specc.ir.encodings import Encoding, Packing
from specc.ir.types import TensorType


def content_hash(tensor: torch.Tensor) -> str:
    """SHA-256 over type and bytes: equal tensors have equal hashes whatever they are called."""
    data = tensor.detach().contiguous().cpu()
    digest = hashlib.sha256(str(TensorType.of(data)).encode())
    digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


Blocks = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Integers q [N, K], scales d and, if there are any, minima m f16[N, K / group]: what `Encoding.from_blocks` takes."""


@dataclass(frozen=True)
class Stored:
    """How the file has a quantised matrix: in blocks of type `kind`, which `encoding` can hold as they are.

    `encoding` is None where none can, or where the matrix is not the file's any more.
    """

    kind: str
    encoding: Encoding | None = None
    load: Callable[[], Blocks] = field(default=tuple, repr=False)  # type: ignore[assignment]


def _stacked(parts: Sequence[Stored | None]) -> Stored | None:
    """Of matrices below each other, if all are stored alike."""
    there = [part for part in parts if part is not None]
    kinds = dict.fromkeys(part.kind for part in there)
    if not there:
        return None
    if len(there) < len(parts) or len(kinds) > 1 or there[0].encoding is None:
        return Stored(" and ".join(kinds))

    def load() -> Blocks:
        q, d, m = zip(*(part.load() for part in there), strict=True)
        return torch.cat(q), torch.cat(d), None if m[0] is None else torch.cat(m)

    return Stored(there[0].kind, there[0].encoding, load)


@dataclass(frozen=True, eq=False)
class Weight:
    """A constant tensor, compared by identity.

    `load` returns it (mapped or computed); it is never written to.
    """

    type: TensorType
    load: Callable[[], torch.Tensor] = field(repr=False)
    derivation: str = ""
    """How a derived weight came about, from its sources' keys; empty for content of its own."""
    packing: Packing | None = None
    """What a packed weight stands for."""
    stored: Stored | None = None
    """How the file of the model has it, if it is quantised there."""

    @cached_property
    def key(self) -> str:
        """Identity of the content: its hash, or the hash of its derivation from known sources."""
        if self.derivation:
            return hashlib.sha256(self.derivation.encode()).hexdigest()
        return content_hash(self.load())

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Weight:
        """A weight that holds `tensor`."""
        fixed = tensor.detach()
        return cls(TensorType.of(fixed), lambda: fixed)

    def derive(
        self, what: str, type_: TensorType, compute: Callable[[torch.Tensor], torch.Tensor]
    ) -> Weight:
        """The weight `compute(self)`; `what` names the computation and its parameters."""
        return Weight(
            type_, lambda: compute(self.load()), f"{what}({self.key})",
            stored=None if self.stored is None else Stored(self.stored.kind),
        )  # fmt: skip

    def encoded(self, encoding: Encoding) -> Weight:
        """This matrix [N, K], packed as `encoding` when loaded (see `Encoding.encode` for what that raises)."""
        rows, columns = self.type.at()
        type_ = encoding.type(rows, columns)
        packed = self.derive(f"pack.{encoding}", type_, lambda t: encoding.encode(t.float()))
        return replace(packed, packing=Packing(encoding, rows, columns))

    def as_stored(self) -> Weight:
        """This matrix [N, K], packed with the integers and scales that its file has."""
        assert self.stored is not None
        assert self.stored.encoding is not None
        (rows, columns), encoding, load = self.type.at(), self.stored.encoding, self.stored.load
        return Weight(
            encoding.type(rows, columns), lambda: encoding.from_blocks(*load()),
            f"keep.{encoding}({self.key})", Packing(encoding, rows, columns),
        )  # fmt: skip

    def rows(self, ids: Sequence[int]) -> Weight:
        """Rows `ids` of this weight [N, ...], as [len(ids), ...]."""
        chosen = torch.tensor(list(ids))
        type_ = TensorType(self.type.dtype, (len(ids), *self.type.shape[1:]))
        found = self.derive(f"rows.{content_hash(chosen)}", type_, lambda t: t[chosen])
        if self.stored is None or self.stored.encoding is None:
            return found
        load = self.stored.load

        def blocks() -> Blocks:
            q, d, m = load()
            return q[chosen], d[chosen], None if m is None else m[chosen]

        return replace(found, stored=replace(self.stored, load=blocks))

    @classmethod
    def stacked(cls, parts: Sequence[Weight]) -> Weight:
        """The weights [N_i, ...] below each other, [sum of N_i, ...]; they differ in N_i alone."""
        rows = sum(int(part.type.shape[0]) for part in parts)
        type_ = TensorType(parts[0].type.dtype, (rows, *parts[0].type.shape[1:]))
        keys = ", ".join(part.key for part in parts)
        return cls(
            type_, lambda: torch.cat([p.load() for p in parts]), f"stack({keys})",
            stored=_stacked([p.stored for p in parts]),
        )  # fmt: skip


class WeightStore(Mapping[str, Weight]):
    """Immutable mapping of names to weights. Equal contents have equal keys and are saved once."""

    def __init__(self, weights: Mapping[str, Weight] | None = None) -> None:
        self._weights = dict(weights or {})

    def __getitem__(self, name: str) -> Weight:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def added(self, more: Mapping[str, Weight]) -> WeightStore:
        """This store with `more`.

        Raises InvalidProgramError (SPECC-E0303) for a name that already stands for another content.
        """
        for name, weight in more.items():
            known = self._weights.get(name, weight)
            if known is not weight and (known.type != weight.type or known.key != weight.key):
                raise InvalidProgramError(
                    "SPECC-E0303", f"the name {name} already stands for another weight",
                    expected=str(weight.type), found=str(known.type),
                    cure="rename that weight of the model",
                )  # fmt: skip
        fresh = {n: w for n, w in more.items() if n not in self._weights}
        return WeightStore({**self._weights, **fresh})

    def replaced(self, more: Mapping[str, Weight]) -> WeightStore:
        """This store with `more` in place of what had these names, if anything did."""
        return WeightStore({**self._weights, **more})

    def only(self, names: set[str]) -> WeightStore:
        """The weights called `names`."""
        return WeightStore({n: w for n, w in self._weights.items() if n in names})

    def canonical_names(self) -> dict[str, str]:
        """Each name to the first name, in sorted order, that has the same content."""
        first: dict[str, str] = {}
        return {n: first.setdefault(self._weights[n].key, n) for n in sorted(self._weights)}

    def save(self, path: Path, metadata: Mapping[str, str] | None = None) -> None:
        """Write every distinct content once, under its canonical name, as safetensors."""
        names = sorted(set(self.canonical_names().values()))
        tensors = {n: _alone(self._weights[n].load()) for n in names}
        save_file(tensors, path, metadata=dict(metadata or {}))

    @classmethod
    def open(cls, path: Path) -> WeightStore:
        """Map a safetensors file; tensors are read when loaded."""

        def lazy(name: str) -> Callable[[], torch.Tensor]:
            def load() -> torch.Tensor:
                with safe_open(path, framework="pt") as file:
                    tensor: torch.Tensor = file.get_tensor(name)
                return tensor

            return load

        weights = {}
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                part = file.get_slice(name)
                dtype = _SAFETENSORS_DTYPES[part.get_dtype()]
                weights[name] = Weight(TensorType(dtype, tuple(part.get_shape())), lazy(name))
        return cls(weights)


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` in memory of its own: safetensors refuses views of one storage."""
    shared = tensor.untyped_storage().nbytes() != tensor.nbytes
    return tensor.clone(memory_format=torch.contiguous_format) if shared else tensor.contiguous()


_SAFETENSORS_DTYPES = {
    "F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16", "I64": "i64", "I32": "i32",
    "I8": "i8", "U8": "u8", "BOOL": "bool",
}  # fmt: skip
