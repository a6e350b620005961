"""What a call of a function must read and compute, from an artifact's manifest and weights.

Only what cannot be avoided: every weight once, and the rows of the key and value caches that lie
before the context's end. Activations stay in cache and count as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from specc import tensors
from specc.runtime import Manifest

_LOOKED_UP_BY = "%tokens"


@dataclass(frozen=True)
class Traffic:
    """Of one function. A call of T rows at context c reads `weights + c * per_position` bytes.

    `products`: elements of the matrices, so that T rows take 2 * T * products operations; attention
    adds 2 * T * c * `per_position_products`, which counts the query heads that share a key and value as
    one, since manifests do not say how many they are. `integers`: whether the matrices are quantised.
    """

    weights: int
    per_position: int
    products: int
    per_position_products: int
    integers: bool

    def bytes(self, context: int) -> int:
        """Read by a call whose text is `context` tokens long."""
        return self.weights + context * self.per_position

    def operations(self, rows: int, context: int) -> int:
        """Multiplications and additions of `rows` rows."""
        return 2 * rows * (self.products + context * self.per_position_products)


def of(artifact: Path, manifest: Manifest, function: str) -> Traffic:
    """Traffic of `function`.

    A weight that is looked up by token (an embedding that is not the head as well) counts as
    nothing. Every expert of a mixture counts, though a row reads a few.
    """
    weights = tensors.header(artifact / manifest.weights_file)
    buffers = {b["name"]: b for b in manifest.raw["state"]}
    streamed: set[str] = set()
    cached: set[str] = set()
    for call in manifest.raw["functions"][function]["plan"]:
        cached |= {r[2:] for r in call["in"] if r.startswith("s:")}
        if _LOOKED_UP_BY not in call["in"]:
            streamed |= {r[2:] for r in call["in"] if r.startswith("w:")}
    packed = manifest.raw["weights"].get("packed", {})
    long = manifest.model.max_model_len
    rows = [buffers[n] for n in cached if long in buffers[n]["shape"]]
    return Traffic(
        weights=sum(_bytes(weights[name]) for name in streamed),
        per_position=sum(b["bytes"] // long for b in rows),
        products=sum(_elements(packed.get(name, weights[name])["shape"]) for name in streamed),
        per_position_products=sum(prod(b["shape"]) // long for b in rows),
        integers=any(packed[n]["encoding"].startswith("q") for n in streamed & packed.keys()),
    )


def _bytes(tensor: Mapping[str, Any]) -> int:
    begin, end = tensor["data_offsets"]
    return int(end - begin)


def _elements(shape: Sequence[int]) -> int:
    """Of a matrix; a vector is no product's."""
    return prod(shape) if len(shape) > 1 else 0
