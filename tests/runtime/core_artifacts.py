"""Artifacts whose model is written by hand in tests/runtime/cpp: a manifest for each kind of drafter, and the files."""

import copy
import hashlib
import json
import shutil
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specc.ir import arena

VOCAB, VALID, MAX_LEN, CHUNK, SALT = 100, 97, 64, 4, 12345
LENGTHS = [0, 1, 2, 4]
STATES = {"tap": "target", "drawn": "target", "model": "own", "pairs": "own"}

Json = dict[str, Any]


def value(name: str, *shape: int | str, dtype: str = "i64") -> Json:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def call(entry: str, inputs: str, outputs: str = "", *attrs: int) -> Json:
    return {"entry": entry, "in": inputs.split(), "out": outputs.split(), "attrs": list(attrs)}


def drafting(kind: str, k: int, depth: int) -> tuple[list[Json], list[Json]]:
    """A round's inputs, and how it drafts."""
    names = ["root", "previous", "length", "first_row", "tap_row", "seed"]
    inputs = [*(value(name, 1) for name in names), value("temperature", 1, dtype="f64")]
    plan = []
    if k > 0 and kind == "tap":
        plan += [
            call("specc.row", "s:taps %tap_row", "tap"),
            call("tap_draft", "%tap %previous %root %length s:text w:salt", "drafts", k, depth),
        ]
    elif k > 0 and kind == "pairs":
        inputs = [*inputs, *(value(name, "T") for name in ("next_tokens", "positions", "rows"))]
        pairs = "%next_tokens %positions s:text s:draft_text %length w:salt"
        plan += [call("pair_draft", pairs, "drafts", k)]
    elif k > 0 and kind == "model":
        plan += [call("draft", "%previous %root %length s:draft_text w:salt", "drafts", k)]
    elif k > 0 and kind == "drawn":
        told = " ".join(f"{what}_{j}" for what in ("logits", "confidence") for j in range(k))
        given = "%root %length %temperature %seed s:text w:salt"
        plan += [call("drawn", given, f"drafts {told}", k)]
    elif k > 0:
        inputs = [*inputs, value("drafts", k)]
    return inputs, plan


def proposal(kind: str, k: int, depth: int = 0) -> Json:
    inputs, plan = drafting(kind, k, depth)
    told = [
        value(f"{name}_{j}", 1, width, dtype="f32")
        for name, width in (("logits", VOCAB), ("confidence", 1))
        for j in range(k if kind == "drawn" else 0)
    ]
    return {"inputs": inputs, "outputs": [value("drafts", k), *told], "plan": plan}


def round_function(kind: str, k: int, depth: int = 0) -> Json:
    """Draft, verify, accept, as a compiler would emit it for each kind of drafter."""
    inputs, plan = drafting(kind, k, depth)
    tokens = "%block" if k > 0 else "%root"
    if k > 0:
        plan += [call("specc.cat", "%root %drafts", "block")]
    plan += [
        call("specc.positions", "%length", "at", k + 1, 0),
        call("lm", f"{tokens} %at s:text w:salt", "hidden logits"),
        call("specc.cache_copy", "%hidden s:taps"),
        call(
            "specc.accept", f"{tokens} %logits %length %temperature %seed", "tokens accepted", VALID
        ),
    ]
    return {
        "inputs": inputs,
        "outputs": [value("tokens", k + 1), value("accepted", 1)],
        "plan": plan,
    }


def functions(kind: str, depths: list[int]) -> Json:
    prompt = [value(name, "T") for name in ("tokens", "positions", "rows")]
    prefill = [
        call("lm", "%tokens %positions s:text w:salt", "hidden logits"),
        call("specc.cache_copy", "%hidden s:taps"),
        call("draft_write", "%tokens %rows s:draft_text"),
    ]
    result: Json = {"prefill": {"inputs": prompt, "outputs": [], "plan": prefill}}
    if kind == "pairs":
        prefill.pop()
        result["fill pairs"] = {
            "inputs": [value(name, "T") for name in ("next_tokens", "positions", "rows")],
            "outputs": [],
            "plan": [call("extend", "%next_tokens %positions s:text s:draft_text")],
        }
    for k in LENGTHS:
        verify = [
            call("lm", "%tokens %positions s:text w:salt", "hidden logits"),
            call("specc.cache_copy", "%hidden s:taps"),
        ]
        result[f"verify_{k}"] = {
            "inputs": [value("tokens", k + 1), value("positions", k + 1)],
            "outputs": [value("logits", k + 1, VOCAB, dtype="f32")],
            "plan": verify,
        }
        for depth in (depths if k else []) or [0]:
            name = f"{k}_d{depth}" if depth else f"{k}"
            result[f"round_{name}"] = round_function(kind, k, depth)
            if k and kind in STATES:
                result[f"propose_{name}"] = proposal(kind, k, depth)
    return result


def state(name: str, dtype: str, bytes_each: int, *shape: int) -> Json:
    size = bytes_each
    for dimension in shape:
        size *= dimension
    return {
        "name": name,
        "dtype": dtype,
        "shape": list(shape),
        "owner": "target",
        "zone": "kv",
        "bytes": size,
    }


def rounds(kind: str, depths: list[int]) -> list[Json]:
    played = []
    for k in LENGTHS:
        for depth in (depths if k else []) or [0]:
            name = f"{k}_d{depth}" if depth else f"{k}"
            propose = f"propose_{name}" if k and kind in STATES else None
            pieces = {} if kind == "whole" else {"propose": propose, "verify": f"verify_{k}"}
            played.append({"function": f"round_{name}", "k": k, "depth": depth, **pieces})
    return played


def manifest_of(kind: str) -> Json:
    depths = [2, 3] if kind == "tap" else []
    return {
        "schema_version": 1,
        "abi": 1,
        "device": {"type": "cpu", "arch": "x86_64", "isa": "x86-64"},
        "model": {
            "vocab_size": VALID,
            "max_model_len": MAX_LEN,
            "prefill_chunk": CHUNK,
            "eos_token_ids": [3] if kind == "eos" else [],
            "bos_token_id": None,
            "add_bos": False,
        },
        "num_speculative_tokens": LENGTHS,
        "drafter": {
            "kind": f"a drafter called {kind}",  # the engine does not care
            "state": STATES.get(kind, "none"),
            "lag": int(kind == "model"),
            "extend": "fill pairs" if kind == "pairs" else None,
            "min_length": int(kind == "pairs"),
            "host_drafter": kind if kind in ("ngram", "suffix") else None,
            "depths": depths,
            "options": {},
        },
        "rounds": rounds(kind, depths),
        "state": [
            state("text", "i64", 8, MAX_LEN),
            state("draft_text", "i64", 8, MAX_LEN),
            state("taps", "f32", 4, max(CHUNK, LENGTHS[-1] + 1), 2),
        ],
        "functions": functions(kind, depths),
        "provenance": {},
    } | (in_two_plans() if kind == "short" else {})


def in_two_plans() -> Json:
    """State that lies as the compiler lays it out, in 24 rows or all."""
    texts = {
        n: state(n, "i64", 8, 1, MAX_LEN) | {"kind": "kv_cache"} for n in ("text", "draft_text")
    }
    taps = state("taps", "f32", 4, max(CHUNK, LENGTHS[-1] + 1), 2) | {"kind": "hidden_states"}
    plans = []
    for rows in (24, MAX_LEN):
        zones = {
            "target": {"text": rows * 8},
            "drafter": {"draft_text": rows * 8},
            "taps": {"taps": taps["bytes"]},
        }
        sized = [(name, held, arena.needed(held)) for name, held in zones.items()]
        plans.append(asdict(arena.lay_out(sized, rows)))
    guard = {"page": arena.PAGE, "canary": arena.CANARY}
    found = {"split": "auto", "guard": guard, "writes": 0, "plans": plans}
    return {"state": [*texts.values(), taps], "arena": found}


def for_texts(manifest: Json, texts: int) -> Json:
    """The same with caches for several texts, each from a row of its own on, and a score of what they draft."""
    manifest = copy.deepcopy(manifest)
    manifest["model"]["max_num_seqs"] = texts
    for buffer in manifest["state"]:
        if buffer["name"] == "taps":
            buffer |= state("taps", "f32", 4, max(CHUNK, texts * (LENGTHS[-1] + 1)), 2)
        else:
            buffer |= state(buffer["name"], "i64", 8, texts * MAX_LEN)
    for name, function in manifest["functions"].items():
        given = {value["name"] for value in function["inputs"]}
        if name.startswith("verify"):
            function["inputs"].append(function["inputs"][0] | {"name": "rows"})
            given.add("rows")
        plan = []
        for each in function["plan"]:
            if each["entry"] == "lm":
                tokens, at, *rest = each["in"]
                rows = "%rows" if "rows" in given else "%at_rows"
                if "rows" not in given:
                    plan.append(call("specc.rows", f"{at} %first_row", "at_rows"))
                each = each | {"entry": "lm_of", "in": [tokens, at, rows, *rest]}
            elif each["entry"] in ("draft", "tap_draft", "drawn"):
                each = each | {"entry": each["entry"] + "_of", "in": [*each["in"], "%first_row"]}
            plan.append(each)
        function["plan"] = plan
    manifest["functions"]["score"] = {
        "inputs": [value(name, "T") for name in ("tokens", "positions", "rows")],
        "outputs": [value("logits", "T", VOCAB, dtype="f32")],
        "plan": manifest["functions"]["verify_0"]["plan"],
    }
    return manifest | {"score": "score"}


def weights_bytes() -> bytes:
    entry = {"salt": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}
    header = json.dumps(entry).encode().ljust(120)  # the data then starts at byte 128
    return struct.pack("<Q", len(header)) + header + struct.pack("<q", SALT)


def write_artifact(folder: Path, manifest: Json, library: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(weights_bytes())
    shutil.copy(library, folder / "model.so")
    files = {
        name: {
            "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
            "bytes": (folder / name).stat().st_size,
        }
        for name in ("weights.safetensors", "model.so")
    }
    complete = {
        "weights": {"file": "weights.safetensors", "bytes": files["weights.safetensors"]["bytes"]},
        "files": files,
    }
    (folder / "manifest.json").write_text(json.dumps(complete | manifest))
    return folder
