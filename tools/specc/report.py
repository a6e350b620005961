"""A benchmark as one HTML page that needs nothing else: tables in words, plots as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from specc import flags
from specc.measurement import PLAIN, Measurements, Speed, arms_of
from specc.runtime import Manifest

_WIDTH, _LABEL, _NOTE, _ROW = 640, 110, 190, 24
_HEIGHT, _MARGIN = 220, 40
_GREY = "#8a8f98"
_COLOURS = ("#2f6fde", "#d9822b", "#2a9d6f", "#b5459c", "#7a6ff0", "#c0392b", "#16879c", "#8d6e3f")
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 44rem; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; display: block; } text { fill: currentColor; font-size: 12px; }
figure { margin: 2rem 0; } figcaption { font-weight: 600; margin-bottom: .5rem; }
.axis { stroke: currentColor; stroke-opacity: .3; } .verdict { font-size: 1.2rem; }
"""


@dataclass(frozen=True)
class Bar:
    """A value with its range, and what to write beside it."""

    label: str
    value: float
    least: float
    most: float
    note: str
    colour: str


def page(
    manifest: Manifest, found: Measurements, phases: Mapping[str, float], verdict: str, *,
    semantic: bool,
) -> str:  # fmt: skip
    """The whole document. `semantic`: the drafter was a real one. Everything in it is escaped."""
    arms = [arm.name for arm in arms_of(manifest, found.policies)]
    colours = dict(zip(arms, (_GREY, *_COLOURS * len(arms)), strict=False))
    kinds = list(dict.fromkeys(run.kind for run in found.runs))
    figures = [_figure("Tokens a second", bars(_speeds(found, colours, None)))]
    if len(kinds) > 1:
        figures += [
            _figure(f"Tokens a second: {kind}", bars(_speeds(found, colours, kind)))
            for kind in kinds
        ]
    rates = {
        arm: [accepted / drafted for drafted, accepted in places]
        for arm in arms if (places := found.acceptance(arm))
    }  # fmt: skip
    if rates:
        figures.append(_figure(
            "Acceptance by position: of the drafts that reached a place in the block, the part accepted",
            lines(rates, colours),
        ))  # fmt: skip
    if costs := found.round_costs(manifest.num_speculative_tokens):
        rounds = []
        for c in costs:
            note = f"{c.tokens_per_round:.2f}, {'pays' if c.pays else 'loses'}"
            rounds += [
                _plain_bar(
                    f"K={c.k} costs", c.cost, f"{c.cost:.2f} ({c.round_s * 1e3:.2f} ms)", _GREY
                ),
                _plain_bar("gives", c.tokens_per_round, note, colours[f"K={c.k}"]),
            ]
        figures.append(_figure(
            "A round: what it costs, in plain rounds, and the tokens it gives (it pays if it gives more)",
            bars(rounds),
        ))  # fmt: skip
    total = sum(phases.values()) or 1.0
    figures.append(_figure("Seconds, of the widest K", bars([
        _plain_bar(name.removesuffix("_s"), s, f"{s:.2f} s, {s / total:.0%}", _COLOURS[0])
        for name, s in phases.items()
    ])))  # fmt: skip
    about = [
        f"speculation: {flags.speculation(manifest, -1)}",
        f"{len(found.of(PLAIN.name))} runs of each arm, taken in turns; medians over repeats, with their range",
        f"{manifest.device.arch} {manifest.device.isa}, specc {manifest.specc_version}",
    ]  # fmt: skip
    if not semantic:
        about.append("NOT SEMANTIC: the drafter knew the plain tokens (--synthetic-acceptance)")
    name = escape(manifest.name)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/><title>specc bench: {name}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{name}</h1>\n"
        f'<p class="verdict">{escape(verdict)}</p>\n<p>{"<br/>".join(map(escape, about))}</p>\n'
        f"{''.join(figures)}</body></html>\n"
    )


def bars(rows: Sequence[Bar]) -> str:
    """Horizontal bars from 0, with a whisker from least to most."""
    scale = (_WIDTH - _LABEL - _NOTE) / (max((bar.most for bar in rows), default=0) or 1)
    parts = []
    for place, bar in enumerate(rows):
        top, middle = place * _ROW + 4, place * _ROW + _ROW / 2
        end = _LABEL + bar.most * scale
        parts.append(
            f'<text x="{_LABEL - 8}" y="{middle + 4}" text-anchor="end">{escape(bar.label)}</text>'
            f'<rect x="{_LABEL}" y="{top}" width="{bar.value * scale:.2f}" height="{_ROW - 8}" '
            f'fill="{bar.colour}"/>'
            f'<text x="{end + 8:.2f}" y="{middle + 4}">{escape(bar.note)}</text>'
        )
        if bar.most > bar.least:
            start = _LABEL + bar.least * scale
            parts.append(
                f'<path class="axis" d="M{start:.2f} {middle}H{end:.2f}" style="stroke-opacity: .8"/>'
            )
    return _svg(len(rows) * _ROW, parts)


def lines(series: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> str:
    """Shares over positions 1, 2, ...; one line each."""
    positions = max(map(len, series.values()))
    right, bottom = _WIDTH - _NOTE, _HEIGHT - _MARGIN

    def at(place: int, share: float) -> tuple[float, float]:
        across = place / max(1, positions - 1)
        return _MARGIN + across * (right - _MARGIN), bottom - share * (bottom - 10)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = at(0, share)[1]
        parts.append(
            f'<path class="axis" d="M{_MARGIN} {y}H{right}"/>'
            f'<text x="{_MARGIN - 6}" y="{y + 4}" text-anchor="end">{share:.0%}</text>'
        )
    for place in range(positions):
        x = at(place, 0)[0]
        parts.append(f'<text x="{x:.2f}" y="{bottom + 18}" text-anchor="middle">{place + 1}</text>')
    for number, (name, shares) in enumerate(series.items()):
        points = [at(place, share) for place, share in enumerate(shares)]
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
        colour, y = colours[name], 16 + number * 18
        dots = "".join(f'<circle cx="{x:.2f}" cy="{y:.2f}" r="3"/>' for x, y in points)
        parts.append(
            f'<g fill="{colour}"><polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'{dots}<rect x="{right + 20}" y="{y - 9}" width="10" height="10"/></g>'
            f'<text x="{right + 36}" y="{y}">{escape(name)}</text>'
        )
    return _svg(_HEIGHT, parts)


def _speeds(found: Measurements, colours: Mapping[str, str], kind: str | None) -> list[Bar]:
    def note(name: str, speed: Speed) -> str:
        return f"{speed.tokens_per_s:.1f}" + (
            f" ({speed.ratio:.2f} of plain)" if name != PLAIN.name else ""
        )

    speeds = {name: found.speed(name, kind) for name in colours}
    return [
        Bar(name, s.tokens_per_s, s.least, s.most, note(name, s), colours[name])
        for name, s in speeds.items()
    ]


def _plain_bar(label: str, value: float, note: str, colour: str) -> Bar:
    return Bar(label, value, value, value, note, colour)


def _figure(caption: str, drawing: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}</figure>\n"


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'
