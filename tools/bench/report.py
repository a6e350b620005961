"""A benchmark's document as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specc.output import table

Row = Sequence[str]


def render(document: dict[str, Any]) -> str:
    """All that was measured, widest question first: the machine, each artifact, the peers."""
    lines = [_machine(document)]
    for bits, artifact in document["artifacts"].items():
        lines += ["", f"{bits}: time of each function against the machine's limit", ""]
        lines += [table(_functions(artifact["functions"]))]
        lines += ["", f"{bits}: T rows against one, at {_context(artifact)} tokens of context", ""]
        lines += [table(_rows(artifact["rows"]))]
    if figures := document.get("peers"):
        lines += ["", *_peers(figures)]
    if absent := document.get("absent"):
        lines += ["", "absent"]
        lines += [f"  {a['name']}: {a['why']}" for a in absent]
    return "\n".join(lines)


def _machine(document: dict[str, Any]) -> str:
    about, limits, dispatch = document["machine"], document["limits"], document["dispatch"]
    load = about["load"][0]
    warning = "" if load < 0.5 else ": BUSY, figures are not to be quoted"
    rows = [
        ("", "1 thread", f"{document['threads']} threads"),
        ("read, GB/s", _giga(limits["read_1"]), _giga(limits["read_n"])),
        ("float multiply-add, GFLOP/s", _giga(limits["fma_1"]), _giga(limits["fma_n"])),
        (
            f"{limits['integer_kind']}, GOP/s",
            _giga(limits["integer_1"]),
            _giga(limits["integer_n"]),
        ),
    ]
    return "\n".join([
        f"{about['cpu']}, {about['cpus']} CPUs, load {load}{warning}", "", table(rows),
        f"  splitting a kernel costs {dispatch['one_part_ns'] / 1e3:.2f} us, with four parts a thread "
        f"{dispatch['four_parts_ns'] / 1e3:.2f}, from sleep {dispatch['after_sleep_ns'] / 1e3:.0f}",
    ])  # fmt: skip


def _giga(number: float) -> str:
    return f"{number / 1e9:.1f}"


def _context(artifact: dict[str, Any]) -> int:
    return int(artifact["functions"][0]["context"])


def _functions(entries: Sequence[dict[str, Any]]) -> list[Row]:
    rows: list[Row] = [
        ("function", "rows", "context", "ms", "least", "MB", "limit ms", "of limit", "bound by")
    ]
    rows += [
        (
            e["function"], str(e["rows"]), str(e["context"]), f"{e['median_s'] * 1e3:.2f}",
            f"{e['least_s'] * 1e3:.2f}", f"{e['bytes'] / 1e6:.1f}", f"{e['limit_s'] * 1e3:.2f}",
            f"{e['share']:.0%}", e["bound"],
        )
        for e in entries
    ]  # fmt: skip
    return rows


def _rows(entries: Sequence[dict[str, Any]]) -> list[Row]:
    counts = sorted({e["rows"] for e in entries})
    titles = {"step": "step, t(T)/t(1)", "prefill": "prefill (no head)"}
    found: list[Row] = [("T", *map(str, counts))]
    for kind, title in titles.items():
        ratios = {e["rows"]: f"{e['ratio']:.2f}" for e in entries if e["kind"] == kind}
        found.append((title, *(ratios.get(t, "-") for t in counts)))
    return found


def _peers(figures: Sequence[dict[str, Any]]) -> list[str]:
    plain = [f for f in figures if f["text"].isdigit()]
    texts = [f for f in figures if not f["text"].isdigit()]
    repeats = sorted({f["repeats"] for f in figures})
    span = str(repeats[0]) if len(repeats) == 1 else f"{repeats[0]} to {repeats[-1]}"
    lines = [f"engines in turns, tokens/s: median of {span} repeats (least-most)", ""]
    for what in ("decode", "prefill"):
        lines += [table(_grid(plain, what, f"{what}, prompt of")), ""]
    if texts:
        lines += ["decoding with each engine's own n-gram drafter, and as a ratio to its plain", ""]
        lines += [table(_drafting(texts)), "  * other tokens than the same engine without drafts"]
    return lines


def _engines(figures: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((f["bits"], f["engine"]) for f in figures))


def _grid(figures: Sequence[dict[str, Any]], what: str, title: str) -> list[Row]:
    texts = list(dict.fromkeys(f["text"] for f in figures))
    rows: list[Row] = [(title, *texts)]
    for engine in _engines(figures):
        mine = {f["text"]: f for f in figures if (f["bits"], f["engine"]) == engine}
        rows.append((" ".join(engine), *(_speed(mine.get(t), what) for t in texts)))
    return rows


def _speed(figure: dict[str, Any] | None, what: str) -> str:
    if figure is None:
        return "-"
    if figure["repeats"] == 1:
        return f"{figure[what]:.1f}"
    return f"{figure[what]:.1f} ({figure[what + '_least']:.0f}-{figure[what + '_most']:.0f})"


def _drafting(figures: Sequence[dict[str, Any]]) -> list[Row]:
    texts = list(dict.fromkeys(f["text"] for f in figures))
    rows: list[Row] = [("", *texts)]
    for engine in _engines(figures):
        row = [" ".join(engine)]
        for text in texts:
            mine = {
                f["draft"]: f for f in figures
                if (f["bits"], f["engine"], f["text"]) == (*engine, text)
            }  # fmt: skip
            row.append(_gain(mine.get(False), mine.get(True)))
        rows.append(row)
    return rows


def _gain(plain: dict[str, Any] | None, drafted: dict[str, Any] | None) -> str:
    if plain is None or drafted is None:
        return "-"
    mark = "" if drafted["same_as_plain"] else "*"
    return f"{drafted['decode']:.1f} ({drafted['decode'] / plain['decode']:.2f}x){mark}"
