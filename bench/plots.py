"""Plots of benchmarks as SVG: bars, and small panels of cost against size. They look right on light and dark pages.

A picture in a page sees the reader's system, not the page's own switch between light and dark, so each has a background
of its own. Coordinates are rounded, and nothing but the figures changes from one run to the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH = 760
_LIGHT = {
    ".page": "fill:#fff;stroke:#d0d7de",
    "text": "fill:#1f2328;font:12px -apple-system,'Segoe UI',Helvetica,Arial,sans-serif",
    ".title": "font-size:15px;font-weight:600",
    ".small": "fill:#59636e;font-size:11px",
    ".grid": "stroke:#d8dee4;stroke-width:1",
    ".even": "stroke:#59636e;stroke-dasharray:4 3",
    ".spread": "stroke:#1f2328;stroke-width:1.5;fill:none",
    ".line": "stroke:#0969da;stroke-width:2;fill:none",
    ".a": "fill:#0969da",
    ".b": "fill:#6e7781",
    ".c": "fill:#bf8700",
}
_DARK = {
    ".page": "fill:#0d1117;stroke:#3d444d",
    "text": "fill:#e6edf3",
    ".small": "fill:#9198a1",
    ".grid": "stroke:#30363d",
    ".even": "stroke:#9198a1",
    ".spread": "stroke:#e6edf3",
    ".line": "stroke:#4493f8",
    ".a": "fill:#4493f8",
    ".b": "fill:#7d8590",
    ".c": "fill:#d29922",
}


class Bar(NamedTuple):
    """One bar; `kind` is the letter of its colour in the legend."""

    label: str
    value: float
    low: float
    high: float
    kind: str


class Point(NamedTuple):
    """A figure at one size, with its spread."""

    size: int
    value: float
    low: float
    high: float


def short(value: float) -> str:
    """A number as a label: 1,230 is 1.23k."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def bars(title: str, axis: str, groups: Mapping[str, Sequence[Bar]], legend: Mapping[str, str]) -> str:
    """Horizontal bars under the headings of their groups, one scale for all."""
    left, right, row = 250, 70, 26
    top = max(bar.high for found in groups.values() for bar in found)
    ticks = _ticks(top)
    scale = (WIDTH - left - right) / max(top, ticks[-1])
    parts, y = [], 70
    for heading, found in groups.items():
        if heading:
            parts.append(_text(20, y + 10, heading, "small"))
            y += 20
        for bar in found:
            end = left + bar.value * scale
            parts.append(_text(left - 10, y + 14, bar.label, anchor="end"))
            parts.append(
                f'<rect class="{bar.kind}" x="{left}" y="{y}" width="{end - left:.1f}" height="{row - 8}" rx="2"/>'
            )
            parts.append(_whisker(left + bar.low * scale, left + bar.high * scale, y + (row - 8) / 2))
            parts.append(_text(left + bar.high * scale + 8, y + 14, short(bar.value)))
            y += row
        y += 8
    grid = [_line("grid", left + tick * scale, 62, left + tick * scale, y) for tick in ticks]
    labels = [_text(left + tick * scale, y + 16, short(tick), "small", "middle") for tick in ticks]
    labels.append(_text((left + WIDTH - right) / 2, y + 34, axis, "small", "middle"))
    return _svg(title, y + 48, [*_legend(legend), *grid, *parts, *labels])


def panels(title: str, axis: str, found: Mapping[str, Sequence[Point]], across: int = 4) -> str:
    """One small plot for each kind of size: the size on a logarithmic scale, one scale of cost for all."""
    width, height, gap, left, first = 138, 110, 38, 44, 90
    top = max(2.0, math.ceil(min(8, max(point.value for points in found.values() for point in points)) * 2) / 2)
    parts = [_text(20, 54, axis, "small")]
    for n, (name, points) in enumerate(found.items()):
        x, y = left + n % across * (width + gap), first + n // across * (height + 66)
        parts += _panel(name, points, (x, y, width, height), top)
    rows = math.ceil(len(found) / across)
    return _svg(title, first + rows * (height + 66) - 18, parts)


def _panel(name: str, points: Sequence[Point], place: tuple[int, int, int, int], top: float) -> list[str]:
    x, y, width, height = place
    first, last = math.log10(points[0].size), math.log10(points[-1].size)
    across = (width - 20) / (last - first or 1)

    def at(point: Point) -> float:
        return x + 10 + (math.log10(point.size) - first) * across

    def up(value: float) -> float:
        return y + height - min(value, top) / top * height

    step = 0.5 if top <= 3 else 1 if top <= 5 else 2
    ticks = [n * step for n in range(int(top / step) + 1)]
    parts = [_text(x, y - 10, name), _text(x + width, y - 10, f"{points[-1].value:.2f}", "small", "end")]
    parts += [_line("grid", x, up(tick), x + width, up(tick)) for tick in ticks]
    parts += [_text(x - 6, up(tick) + 4, f"{tick:g}", "small", "end") for tick in ticks]
    parts.append(_line("even", x, up(1), x + width, up(1)))
    parts += [_line("spread", at(point), up(point.low), at(point), up(point.high)) for point in points]
    parts.append(
        f'<polyline class="line" points="{" ".join(f"{at(each):.1f},{up(each.value):.1f}" for each in points)}"/>'
    )
    for point in points:
        parts.append(f'<circle class="a" cx="{at(point):.1f}" cy="{up(point.value):.1f}" r="3"/>')
        parts.append(_text(at(point), y + height + 16, short(point.size), "small", "middle"))
    return parts


def _ticks(top: float) -> list[float]:
    """Round numbers from zero to about the top: four to eight of them."""
    power = 10 ** math.floor(math.log10(top))
    step = next(each * power for each in (0.2, 0.5, 1, 2) if top / (each * power) <= 6)
    return [n * step for n in range(int(top / step) + 1)]


def _legend(legend: Mapping[str, str]) -> list[str]:
    parts, x = [], 20
    for kind, text in legend.items():
        parts += [
            f'<rect class="{kind}" x="{x}" y="42" width="11" height="11" rx="2"/>',
            _text(x + 17, 52, text, "small"),
        ]
        x += 34 + round(5.6 * len(text))
    return parts


def _whisker(low: float, high: float, y: float) -> str:
    return f'<path class="spread" d="M{low:.1f} {y - 4:.1f}v8M{low:.1f} {y:.1f}H{high:.1f}M{high:.1f} {y - 4:.1f}v8"/>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    light, dark = ("".join(f"{name}{{{value}}}" for name, value in rules.items()) for rules in (_LIGHT, _DARK))
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(title)}</title>',
            f"<style>{light}@media(prefers-color-scheme:dark){{{dark}}}</style>",
            f'<rect class="page" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="6"/>',
            _text(20, 30, title, "title"),
            *parts,
            "</svg>\n",
        ]
    )
