"""A benchmark's document as a picture. Needs matplotlib, which the `bench` extra installs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Document = dict[str, Any]


def draw(document: Document, path: Path) -> bool:
    """Write `path` (.svg or .png): share of the limit, cost of rows, engines. False without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("agg")
    from matplotlib import pyplot

    texts = _lengths(document)
    figure, axes = pyplot.subplots(2, 2, figsize=(13, 9), layout="constrained")
    _shares(axes[0, 0], document)
    _rows(axes[0, 1], document)
    _bars(axes[1, 0], document, texts, "decode")
    _bars(axes[1, 1], document, texts, "prefill")
    figure.suptitle(f"{document['machine']['cpu']}, {document['threads']} threads")
    figure.savefig(path)
    pyplot.close(figure)
    return True


def _lengths(document: Document) -> list[str]:
    return list(dict.fromkeys(f["text"] for f in document.get("peers", []) if f["text"].isdigit()))


def _shares(axes: Any, document: Document) -> None:
    """Of the decode step at each context, the verify steps, and the widest prefill chunk."""
    for bits, artifact in document["artifacts"].items():
        entries = artifact["functions"]
        widest = max(e["rows"] for e in entries if e["function"] == "prefill")
        chosen = [e for e in entries if e["function"] != "prefill" or e["rows"] == widest]
        names = [f"{e['function']} T={e['rows']}\n@{e['context']}" for e in chosen]
        axes.plot(names, [100 * e["share"] for e in chosen], "o-", label=bits)
    axes.set(title="share of the machine's limit", ylabel="%", ylim=(0, 105))
    axes.tick_params(axis="x", labelrotation=75, labelsize=7)
    axes.legend()


def _rows(axes: Any, document: Document) -> None:
    for bits, artifact in document["artifacts"].items():
        for kind, style in (("step", "o-"), ("prefill", "x:")):
            mine = [r for r in artifact["rows"] if r["kind"] == kind]
            label = f"{bits} {kind}"
            axes.plot([r["rows"] for r in mine], [r["ratio"] for r in mine], style, label=label)
    axes.set(title="t(T) / t(1)", xlabel="rows T", ylim=(0, None))
    axes.legend()


def _bars(axes: Any, document: Document, texts: list[str], what: str) -> None:
    """Engines beside each other for each prompt length; lines from the least to the most."""
    figures = [f for f in document.get("peers", []) if f["text"] in texts]
    engines = list(dict.fromkeys((f["bits"], f["engine"]) for f in figures))
    width = 0.8 / max(1, len(engines))
    for place, engine in enumerate(engines):
        mine = {f["text"]: f for f in figures if (f["bits"], f["engine"]) == engine}
        at = [i + place * width for i, t in enumerate(texts) if t in mine]
        found = [mine[t] for t in texts if t in mine]
        heights = [f[what] for f in found]
        spread = [
            [f[what] - f[what + "_least"] for f in found],
            [f[what + "_most"] - f[what] for f in found],
        ]
        axes.bar(at, heights, width, yerr=spread, label=" ".join(engine))
    axes.set(title=f"{what}, tokens/s", xlabel="tokens of the prompt")
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(texts))], texts)
    if engines:
        axes.legend(fontsize=7)
