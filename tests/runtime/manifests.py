"""A manifest for tests."""

import json
from typing import Any

from specc.runtime import Manifest


def document() -> dict[str, Any]:
    """A manifest as README.md describes it."""
    return {
        "schema_version": 1, "abi": 1, "specc_version": "0", "name": "tiny", "method": "ngram",
        "backend": "inductor", "lossless": True,
        "device": {"type": "cpu", "arch": "x86_64", "isa": "x86-64-v3"},
        "model": {
            "vocab_size": 256, "max_model_len": 128, "prefill_chunk": 64, "eos_token_ids": [2],
            "bos_token_id": 1, "add_bos": False,
        },
        "num_speculative_tokens": [0, 2, 4],
        "drafter": {
            "kind": "ngram", "state": "none", "lag": 0, "host_drafter": "ngram", "depths": [],
            "options": {"prompt_lookup_max": 4},
        },
        "rounds": [{"function": f"round_{k}", "k": k, "depth": 0} for k in (0, 2, 4)],
        "state": [{
            "name": "target.k.0", "dtype": "f32", "shape": [2, 128, 16], "owner": "target",
            "zone": "target", "bytes": 16384,
        }],
        "arena": {
            "split": "auto", "guard": {"page": 4096, "canary": 128}, "writes": 7,
            "plans": [{"rows": 128, "bytes": 28672, "zones": [{
                "name": "target", "offset": 4096, "bytes": 20480, "used": 16640, "buffers": {"target.k.0": 8064},
            }]}],
        },
        "functions": {
            "prefill": {
                "inputs": [{"name": "tokens", "dtype": "i64", "shape": ["T"]}], "outputs": [],
                "plan": [{"entry": "embed", "in": ["%tokens"], "out": ["x"]}],
            },
            **{f"round_{k}": {"inputs": [], "outputs": [], "plan": []} for k in (0, 2, 4)},
        },
        "weights": {"file": "weights.safetensors", "bytes": 10},
        "files": {"model.so": {"sha256": "00", "bytes": 1}},
        "provenance": {"model": "somewhere"},
    }  # fmt: skip


def parse(doc: object) -> Manifest:
    return Manifest.parse(json.dumps(doc))
