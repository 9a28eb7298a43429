"""The pictures of the quickstarts as SVG: a curve with its intervals, and bars before and after. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from hermes.core.stats import Interval

WIDTH, HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 40, 50
_GRID = (0.0, 0.25, 0.5, 0.75, 1.0)
_MAX_LABELS = 12
_TITLE = "mean reward by step, with its 95 % interval"
_STYLE = (
    "text { font: 14px system-ui, sans-serif; fill: #808080 } .grid { stroke: #808080; opacity: .3 } "
    "polyline { fill: none; stroke: #2563eb; stroke-width: 2 } circle { fill: #2563eb } "
    ".interval { fill: #2563eb; opacity: .15 }"
)
"""Grey is readable on a light and on a dark page."""


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A value and its position in the image."""

    x: float
    y: float
    low_y: float
    high_y: float
    step: int
    value: float


def chart_points(values: Sequence[tuple[int, Interval]]) -> list[ChartPoint]:
    """(step, mean reward from 0 to 1) → positions, from the left edge to the right one."""
    if not values:
        return []
    first, last = values[0][0], values[-1][0]
    width = WIDTH - _LEFT - _RIGHT
    return [
        ChartPoint(
            _LEFT + width * (step - first) / max(1, last - first),
            _height(reward.mean),
            _height(reward.low),
            _height(reward.high),
            step,
            reward.mean,
        )
        for step, reward in values
    ]


def svg(values: Sequence[tuple[int, Interval]]) -> str:
    points = chart_points(values)
    grid = "".join(
        f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{_height(value):.1f}" y2="{_height(value):.1f}" '
        f'class="grid"/><text x="{_LEFT - 8}" y="{_height(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        for value in _GRID
    )
    labelled = points[:: max(1, -(-len(points) // _MAX_LABELS))]
    steps = "".join(
        f'<text x="{point.x:.1f}" y="{HEIGHT - _BOTTOM + 20}" text-anchor="middle">{point.step}</text>'
        for point in labelled
    )
    path = " ".join(f"{point.x:.1f},{point.y:.1f}" for point in points)
    edge = [(point.x, point.high_y) for point in points] + [(point.x, point.low_y) for point in points[::-1]]
    band = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
    dots = "".join(
        f'<circle cx="{point.x:.1f}" cy="{point.y:.1f}" r="4">'
        f"<title>step {point.step}: {point.value:.3f}</title></circle>"
        for point in points
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(_TITLE)}"><style>{_STYLE}</style>'
        f'<text x="{_LEFT}" y="24">{escape(_TITLE)}</text>{grid}{steps}'
        f'<polygon points="{band}" class="interval"/><polyline points="{path}"/>{dots}</svg>\n'
    )


def bars(rows: Sequence[tuple[str, float, float, str, str]], names: tuple[str, str]) -> str:
    """(label, share before, share after, text before, text after) of each row; `names` of the two."""
    left, width, row_height = 160, WIDTH - 160 - 70, 64
    parts = [f'<text x="{left}" y="24">{escape(names[0])}: grey, {escape(names[1])}: blue</text>']
    for number, (label, before, after, *texts) in enumerate(rows):
        top = 44 + number * row_height
        parts.append(f'<text x="{left - 12}" y="{top + 28}" text-anchor="end">{escape(label)}</text>')
        for offset, share, text, kind in ((0, before, texts[0], "before"), (22, after, texts[1], "after")):
            size = width * min(1.0, max(0.0, share))
            parts.append(
                f'<rect x="{left}" y="{top + offset}" width="{size:.1f}" height="18" class="{kind}"/>'
                f'<text x="{left + size + 6:.1f}" y="{top + offset + 14}">{escape(text)}</text>'
            )
    height = 44 + len(rows) * row_height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="before and after"><style>{_STYLE} .before {{ fill: #808080; opacity: .5 }} '
        f".after {{ fill: #2563eb }}</style>{''.join(parts)}</svg>\n"
    )


def _height(value: float) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - min(1.0, max(0.0, value)))
