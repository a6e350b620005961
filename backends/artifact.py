"""Writes an artifact: manifest, weights, tokenizer, and what a backend lowered (format: runtime/README.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from specc import cache
from specc.backends.base import Device, Lowered, Progress
from specc.backends.plan import Plan
from specc.ir import Packing, Role, SpeculativeProgram, WeightStore
from specc.ir.arena import PAGE, Arena
from specc.ir.types import TensorType, itemsize
from specc.runtime.manifest import MODEL_ABI, SCHEMA_VERSION, Manifest

WEIGHTS = "weights.safetensors"
MANIFEST = "manifest.json"

LINE = 64
"""Bytes of a cache line: every weight begins on one."""


@dataclass(frozen=True)
class TokenizerFiles:
    """`compiled`: tokenizer.bin for the runtime, if there is one. `files`: Hugging Face files, copied as they are."""

    compiled: bytes | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    add_bos: bool = False


def write_artifact(
    program: SpeculativeProgram, lowered: Lowered, into: Path, *, backend: str, device: Device,
    tokenizer: TokenizerFiles, provenance: Mapping[str, str], progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """Complete `into`, where the backend has written its files; returns the manifest."""
    with progress.phase("write weights"):
        names = lowered.weights.canonical_names()
        size = write_weights(lowered.weights, names, into / WEIGHTS)
    written = sorted(set(names.values()))
    files = [*lowered.files, WEIGHTS]
    if tokenizer.compiled is not None:
        (into / "tokenizer.bin").write_bytes(tokenizer.compiled)
        files.append("tokenizer.bin")
    for name, data in tokenizer.files.items():
        (into / "tokenizer").mkdir(exist_ok=True)
        (into / "tokenizer" / name).write_bytes(data)
        files.append(f"tokenizer/{name}")
    contract = program.contract
    manifest: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "abi": MODEL_ABI,
        "specc_version": version("specc-compiler"),
        "name": program.name,
        "method": contract.kind,
        "backend": backend,
        "lossless": lowered.lossless,
        "device": device.as_json(),
        "model": {
            "architecture": program.model.architecture,
            "vocab_size": program.model.vocab_size,
            "hidden_size": program.model.hidden_size,
            "num_layers": program.model.num_layers,
            "max_model_len": program.max_model_len,
            "max_num_seqs": program.max_num_seqs,
            "prefill_chunk": program.prefill_chunk,
            "eos_token_ids": list(program.model.eos_token_ids),
            "bos_token_id": program.model.bos_token_id,
            "add_bos": tokenizer.add_bos,
        },
        "num_speculative_tokens": list(contract.num_speculative_tokens),
        "drafter": {
            "kind": contract.kind,
            "state": str(contract.state),
            "lag": contract.lag,
            "extend": contract.extend,
            "min_length": contract.min_length,
            "draft_rows": contract.draft_rows,
            "host_drafter": contract.host_drafter,
            "depths": list(contract.depths),
            "layers": list(contract.layers),
            "taps": list(contract.taps),
            "draft_vocab_size": contract.draft_vocab_size,
            "options": dict(contract.options),
        },
        **({"graphs": dict(lowered.graphs)} if lowered.graphs else {}),
        **({"cuda": dict(lowered.cuda)} if lowered.cuda else {}),
        "rounds": [vars(played) for played in program.rounds],
        "score": next((n for n, f in program.functions.items() if f.role is Role.SCORE), None),
        "state": [
            {
                "name": b.name, "dtype": b.type.dtype, "shape": list(b.type.shape),
                "owner": str(b.owner), "kind": str(b.kind), "zone": b.zone, "bytes": b.bytes,
            }
            for b in program.state.values()
        ],
        **({} if program.arena is None else {"arena": _arena(program.arena)}),
        "functions": {n: _renamed(p, names).as_json() for n, p in lowered.plans.items()},
        "weights": {
            "file": WEIGHTS,
            "bytes": size,
            "packed": {n: _packing(p) for n in written if (p := lowered.weights[n].packing)},
        },
        "files": {name: fingerprint(into / name) for name in files},
        "provenance": {**program.provenance, **provenance, **lowered.notes},
    }  # fmt: skip
    manifest["capabilities"] = Manifest.parse(json.dumps(manifest)).capabilities
    (into / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def _arena(arena: Arena) -> dict[str, Any]:
    told = asdict(arena)
    return {"guard": {"page": PAGE, "canary": told.pop("canary")}, **told}


def _packing(packing: Packing) -> dict[str, Any]:
    shape = (packing.rows, packing.columns)
    return {"encoding": packing.encoding.name, "shape": list(shape)}


def _renamed(plan: Plan, names: Mapping[str, str]) -> Plan:
    """The plan with weights of equal content under one name."""

    def rename(ref: str) -> str:
        return f"w:{names[ref[2:]]}" if ref.startswith("w:") else ref

    instructions = tuple(replace(i, inputs=tuple(map(rename, i.inputs))) for i in plan.instructions)
    return replace(plan, instructions=instructions)


def write_weights(weights: WeightStore, names: Mapping[str, str], path: Path) -> int:
    """Write every distinct weight once, one after the other, and return the file's size.

    The safetensors format (github.com/huggingface/safetensors), with the header padded and small `fill` tensors in
    between, so that every weight begins on a cache line (the format allows no holes). Written tensor by tensor, since a
    model may not fit in memory twice; the library's own writer takes all at once and does not align.
    """
    unique = sorted(set(names.values()))
    header: dict[str, Any] = {}
    offset = 0
    for name in unique:
        type_ = weights[name].type
        begin, end = offset, offset + _bytes(type_)
        shape, dtype = list(type_.shape), type_.dtype.upper()
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        offset = end + -end % LINE
        if offset > end:
            fill = {"dtype": "U8", "shape": [offset - end], "data_offsets": [end, offset]}
            header[f"fill.{len(header)}"] = fill
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % LINE)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in unique:
            tensor = weights[name].load().detach().contiguous()
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
            file.write(bytes(-file.tell() % LINE))
        return file.tell()


def _bytes(type_: TensorType) -> int:
    total = itemsize(type_.dtype)
    for dim in type_.at():
        total *= dim
    return total


def fingerprint(path: Path) -> dict[str, Any]:
    """A file's hash and size, as a manifest lists them."""
    return {"sha256": cache.sha256(path), "bytes": path.stat().st_size}
