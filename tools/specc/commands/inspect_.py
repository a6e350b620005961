"""`specc inspect`: what is in an artifact, without running any of it."""

from __future__ import annotations

import json as json_text
import struct
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from specc import cache, output, tensors
from specc.commands.compile_ import described
from specc.flags import Json, Switch
from specc.progress import human_bytes
from specc.runtime import Manifest
from specc.runtime.graph_facts import Shards
from specc.runtime.state import Arena

OVERHEAD = 60_000_000
"""Bytes that the process, the engine and its scratch may take beside weights and state."""


def main(
    artifact: Path,
    /,
    *,
    memory: Switch = False,
    check_hash: Switch = False,
    json: Json = False,
) -> int:
    """Show what is in an artifact, without running it.

    Exit code 1 if a file is missing, truncated or altered.

    Example: specc inspect smol.specc --memory

    Args:
        artifact: Directory that `specc compile` made.
        memory: Show the plan of every byte that a session takes, with a picture of its arena.
        check_hash: Read all files and compare their hashes.
        json: Print one JSON object on stdout.
    """
    manifest = Manifest.read(artifact)
    problems = check_files(manifest, artifact, hashes=check_hash)
    facts: dict[str, Any] = {
        **described(manifest),
        "specc_version": manifest.specc_version,
        "model": asdict(manifest.model),
        "drafter": asdict(manifest.drafter),
        "weights": {
            "bytes": manifest.weights_bytes,
            "by_dtype": weight_types(manifest, artifact),
            **bits_per_weight(manifest, artifact),
        },
        "memory": memory_plan(manifest),
        "functions": {n: f.calls for n, f in manifest.functions.items()},
        "files": {n: asdict(f) for n, f in manifest.files.items()},
        "provenance": manifest.provenance,
        "hashes": "checked" if check_hash else "not checked",
        "problems": problems,
    }
    if json:
        if memory:
            facts["state"] = [asdict(b) for b in manifest.state]
            facts["arena"] = None if manifest.arena is None else asdict(manifest.arena)
        output.emit(facts)
    else:
        print(render(manifest, facts, memory=memory))
    return output.EXIT_FAILURE if problems else output.EXIT_OK


def check_files(manifest: Manifest, artifact: Path, *, hashes: bool) -> list[str]:
    """What is wrong with the files: missing, of another size, or (with `hashes`) altered."""
    problems = []
    for entry in manifest.files.values():
        path = artifact / entry.path
        if not path.is_file():
            problems.append(f"SPECC-E0505 {entry.path} is missing")
        elif (size := path.stat().st_size) != entry.bytes:
            problems.append(f"SPECC-E0505 {entry.path} has {size} bytes, not {entry.bytes}")
        elif hashes and cache.sha256(path) != entry.sha256:
            problems.append(f"SPECC-E0505 {entry.path} was altered")
    return problems


def memory_plan(manifest: Manifest) -> dict[str, Any]:
    """Bytes at run time: weights are mapped once for all sessions, state is each session's own."""
    zones = manifest.state_bytes_by_zone
    state = manifest.state_bytes
    return {
        "weights_bytes": manifest.weights_bytes,
        "state_bytes": state,
        "state_bytes_by_zone": zones,
        "bytes_per_token": sum(zones.values())
        // (manifest.model.max_model_len * manifest.model.max_num_seqs),
        "one_session_at_most_bytes": manifest.weights_bytes + state + OVERHEAD,
    }


def weight_types(manifest: Manifest, artifact: Path) -> dict[str, dict[str, int]]:
    """Tensors and bytes by element type, from the weights' header; empty if it cannot be read."""
    found: dict[str, dict[str, int]] = {}
    for dtype, _, size in _tensors(manifest, artifact).values():
        entry = found.setdefault(dtype, {"tensors": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["bytes"] += size
    return found


def bits_per_weight(manifest: Manifest, artifact: Path) -> dict[str, Any]:
    """Stored bits for each number, scales included: of all weights, and of matrices by encoding.

    Nothing if the weights' header cannot be read.
    """
    encodings: dict[str, dict[str, float]] = {}
    numbers = bits = 0
    for name, (_, count, size) in _tensors(manifest, artifact).items():
        if (matrix := manifest.packed.get(name)) is not None:
            count = matrix.rows * matrix.columns
            entry = encodings.setdefault(matrix.encoding, {"matrices": 0, "numbers": 0, "bytes": 0})
            entry["matrices"] += 1
            entry["numbers"] += count
            entry["bytes"] += size
            entry["bits_per_weight"] = 8 * entry["bytes"] / entry["numbers"]
        numbers += count
        bits += 8 * size
    return {"bits_per_weight": bits / numbers, "by_encoding": encodings} if numbers else {}


def _tensors(manifest: Manifest, artifact: Path) -> dict[str, tuple[str, int, int]]:
    """Type, elements and bytes of each tensor but the fill between them; empty if the file cannot be read."""
    try:
        found = {}
        for name, tensor in tensors.header(artifact / manifest.weights_file).items():
            if not name.startswith("fill."):
                start, end = tensor["data_offsets"]
                found[name] = (str(tensor["dtype"]), prod(tensor["shape"]), end - start)
    except (OSError, ValueError, struct.error, TypeError, KeyError, AttributeError):
        return {}
    return found


def render(manifest: Manifest, facts: dict[str, Any], *, memory: bool) -> str:
    """For people."""
    m, d = manifest.model, manifest.drafter
    rows = [
        ("name", manifest.name),
        ("method", f"{manifest.method}, {'lossless' if manifest.lossless else 'NOT lossless'}"),
        ("K", _lengths(manifest)),
        ("drafter", _drafter(manifest)),
        ("target", f"{manifest.device.type} {manifest.device.arch} {manifest.device.isa}, "
                   f"{manifest.backend}"),
        ("model", f"{m.vocab_size} tokens, context {m.max_model_len}, prefill {m.prefill_chunk}, "
                  f"end {' '.join(map(str, m.eos_token_ids)) or 'none'}"),
        ("weights", _weights(facts["weights"])),
        ("state", f"{human_bytes(facts['memory']['state_bytes'])} {_texts(m.max_num_seqs)}"),
        ("can", " ".join(manifest.capabilities) or "greedy and sampled text alone"),
        ("functions", " ".join(manifest.functions)),
        ("made by", f"specc {manifest.specc_version}"),
        ("files", f"{len(manifest.files)}, hashes {facts['hashes']}"),
    ]  # fmt: skip
    if (g := manifest.graphs) is not None:
        seen = "verified on an NPU" if g.verified_on_npu else "not verified on an NPU"
        rows.insert(
            5,
            ("graphs", f"{len(g.files)}, {g.format} opset {g.opset}, {g.dtype}, {g.state}, {seen}"),
        )
        if g.shards is not None:
            rows[6:6] = zip(("shards", "", ""), _shards(g.shards), strict=True)
    if (cuda := manifest.cuda) is not None:
        seen = "verified on a GPU" if cuda.verified_on_gpu else "not verified on a GPU"
        rounds = ", ".join(
            f"{name} {f.launches} launches {f.waits} waits"
            for name, f in cuda.functions.items() if name in {r.function for r in manifest.rounds}
        )  # fmt: skip
        rows.insert(5, ("cuda", f"{cuda.arch}, {cuda.kernels} kernels, {seen}; {rounds}"))
    if d.layers:
        rows.insert(4, ("draft layers", " ".join(map(str, d.layers))))
    if d.depths:
        rows.insert(4, ("depths", " ".join(map(str, d.depths))))
    lines = [f"{name:<13} {value}" for name, value in rows]
    if memory:
        lines += ["", *_memory(manifest, facts["memory"])]
    if manifest.provenance:
        lines += ["", "provenance"]
        lines += [f"  {k:<11} {_short(v)}" for k, v in manifest.provenance.items()]
    lines += [f"PROBLEM: {p}" for p in facts["problems"]]
    return "\n".join(lines)


def _texts(count: int) -> str:
    return "a session" if count == 1 else f"for {count} texts in one pass"


def _shards(shards: Shards) -> list[str]:
    """What was chosen, and what each way costs a device for one new token."""
    lines = [
        f"{shards.count} devices, by {shards.way}; of a call of one token each device, at full context:"
    ]
    for cost in shards.costs:
        if cost.refused:
            lines.append(f"by {cost.way}: not possible, {cost.refused}")
            continue
        time = "" if cost.link_microseconds is None else f" in {cost.link_microseconds:.1f} us"
        lines.append(
            f"by {cost.way}: receives {human_bytes(cost.bytes_received)}{time} in {cost.exchanges} exchanges, reads "
            f"{human_bytes(cost.cache_bytes)} of caches, {cost.multiply_adds / 1e6:.2f} M multiply-adds of attention"
        )
    return lines


def _lengths(manifest: Manifest) -> str:
    """Every K, and what rounds verify where drafts may be a tree."""
    trees = {r.k: f"{r.k} (tree of {r.nodes})" for r in manifest.rounds if r.nodes > r.k}
    trees |= {r.k: f"{r.k} (any tree)" for r in manifest.rounds if r.commit}
    return (
        ", ".join(trees.get(k, str(k)) for k in manifest.num_speculative_tokens)
        if trees
        else " ".join(map(str, manifest.num_speculative_tokens))
    )


def _drafter(manifest: Manifest) -> str:
    """Who drafts and where; options are those of the one on the host, if there is one."""
    drafter = manifest.drafter
    options = ", ".join(f"{k}={v}" for k, v in drafter.options.items() if v not in ([], {}))
    shown = f" ({options})" if options else ""
    if drafter.host:
        return f"{drafter.kind}, on the host{shown}"
    beside = f", {drafter.host_drafter} on the host beside it" if drafter.host_drafter else ""
    return f"{drafter.kind}, inside the round{beside}{shown}"


def _weights(weights: dict[str, Any]) -> str:
    kinds = ", ".join(f"{n} {human_bytes(t['bytes'])}" for n, t in weights["by_dtype"].items())
    text = human_bytes(weights["bytes"]) + (f" ({kinds})" if kinds else "")
    if "bits_per_weight" in weights:
        encodings = ", ".join(
            f"{name} {entry['bits_per_weight']:.2f} in {entry['matrices']} matrices"
            for name, entry in weights["by_encoding"].items()
        )
        text += f", {weights['bits_per_weight']:.2f} bits a weight ({encodings})"
    return text


def _memory(manifest: Manifest, plan: dict[str, Any]) -> list[str]:
    rows = [("memory", "bytes", "")]
    rows.append(("weights, mapped once", str(plan["weights_bytes"]), ""))
    for zone, size in plan["state_bytes_by_zone"].items():
        held = [b for b in manifest.state if b.zone == zone]
        rows.append((f"zone {zone}", str(size), f"{len(held)} buffers"))
    rows.append(("per token of context", str(plan["bytes_per_token"]), ""))
    rows.append(("one session, at most", str(plan["one_session_at_most_bytes"]), ""))
    lines = output.table(rows, indent="").splitlines()
    if manifest.arena is not None:
        lines += _arena(manifest.arena)
    return lines


_PICTURE = 40
"""Characters of a zone that takes the whole arena."""


def _arena(arena: Arena) -> list[str]:
    """Each plan as a picture: zones as wide as their bytes, what they hold, and the guards between them."""
    lines = [
        "",
        f"arena, split {arena.split}: {arena.writes} writes proved to stay in their buffers",
    ]
    for plan in arena.plans:
        lines.append(
            f"  texts up to {plan.rows} tokens: {human_bytes(plan.bytes)} in one allocation"
        )
        guard = (f"    0x{0:09x}", "guard page", "", "no access")
        rows = [guard]
        for zone in plan.zones:
            wide = max(1, round(_PICTURE * zone.bytes / plan.bytes))
            held = max(1, round(wide * zone.used / zone.bytes))
            drawn = "█" * held + "░" * (wide - held)
            about = f"{len(zone.buffers)} buffers, {zone.used / zone.bytes:.0%} used"
            rows.append(
                (f"    0x{zone.offset:09x}", zone.name, human_bytes(zone.bytes), f"{drawn} {about}")
            )
            rows.append((f"    0x{zone.offset + zone.bytes:09x}", *guard[1:]))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines += [
            "  ".join((*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]))
            for row in rows
        ]
    return [*lines, f"  canaries of {arena.canary} bytes or more before and after each buffer"]


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json_text.dumps(value, default=str)
    return text if len(text) <= 100 else text[:97] + "..."
