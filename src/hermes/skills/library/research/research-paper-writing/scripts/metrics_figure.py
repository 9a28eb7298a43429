#!/usr/bin/env python3
"""Draw a metric of one or several runs as a vector figure for a paper, from their metrics.jsonl files.

A label with several files is a setting with several seeds: the figure shows the mean over the seeds and the
95 % interval of that mean (Student's t). A label with one file is one line without an interval, and the
printed summary says so. Output: a pgfplots picture (.tex) to \\input, or an SVG image (.svg). It needs
Python 3.11 and nothing else. It draws what is in the files: nothing is smoothed unless `--smooth` says so,
and the caption line that is printed names it.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, which people with any colour vision tell apart."""
DASHES = ("solid", "dashed", "dotted", "dashdotted", "densely dashed", "densely dotted")
SVG_DASHES = ("", "6 3", "2 2", "8 3 2 3", "4 2", "1 2")
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % quantiles of Student's t for 1 to 10 degrees of freedom."""
T_MORE = 2.228
"""Used above 10 degrees of freedom too: it makes the interval slightly too wide, never too narrow."""


class FigureError(Exception):
    """A sentence for the user."""


@dataclass(frozen=True)
class Curve:
    label: str
    seeds: int
    points: list[tuple[float, float, float | None]]
    """Step, mean over the seeds, half width of the 95 % interval (None with one seed)."""


def read_metric(path: Path, metric: str, x: str) -> dict[float, float]:
    """The value of `metric` at every step that has it; the last one where a step is there twice."""
    values: dict[float, float] = {}
    names: set[str] = set()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise FigureError(f"{path} cannot be read ({error.strerror})") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            step = float(row[x])
        except (ValueError, KeyError, TypeError) as error:
            raise FigureError(f"{path}:{number} has no number '{x}' ({error})") from error
        names |= {name for name, value in row.items() if isinstance(value, int | float)}
        value = row.get(metric)
        if isinstance(value, int | float) and math.isfinite(value):
            values[step] = float(value)
    if not values:
        raise FigureError(f"{path} has no metric '{metric}'; it has: {', '.join(sorted(names)) or 'nothing'}")
    return values


def smooth(values: dict[float, float], window: int) -> dict[float, float]:
    """The mean of the last `window` values."""
    steps = sorted(values)
    means = {}
    for index, step in enumerate(steps):
        part = steps[max(0, index - window + 1) : index + 1]
        means[step] = sum(values[name] for name in part) / len(part)
    return means


def curve(label: str, paths: Sequence[Path], metric: str, x: str, window: int) -> Curve:
    """Steps that not every seed has are left out: a mean over fewer seeds would jump."""
    runs = [smooth(read_metric(path, metric, x), window) for path in paths]
    steps = sorted(set.intersection(*(set(run) for run in runs)))
    if not steps:
        raise FigureError(f"the files of '{label}' have no step in common")
    return Curve(
        label, len(runs), [(step, *mean_and_half_width([run[step] for run in runs])) for step in steps]
    )


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float | None]:
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return mean, None
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    t = T_95[count - 2] if count - 1 <= len(T_95) else T_MORE
    return mean, t * deviation / math.sqrt(count)


def tex_picture(curves: Sequence[Curve], x_label: str, y_label: str) -> str:
    """A pgfplots picture. The preamble needs \\usepackage{pgfplots} and \\usepgfplotslibrary{fillbetween}."""
    lines = [
        "% Written by metrics_figure.py. Needs \\usepackage{pgfplots}\\usepgfplotslibrary{fillbetween}.",
        "\\begin{tikzpicture}",
        f"\\begin{{axis}}[width=0.92\\linewidth, height=0.58\\linewidth, xlabel={{{tex(x_label)}}},",
        f"  ylabel={{{tex(y_label)}}}, legend pos=south east, legend cell align=left,",
        "  grid=major, grid style={gray!25}, tick label style={font=\\small}]",
    ]
    for index, item in enumerate(curves):
        colour = f"curve{index}"
        lines.append(f"\\definecolor{{{colour}}}{{HTML}}{{{COLOURS[index % len(COLOURS)][1:]}}}")
        if item.seeds > 1:
            lines += tex_band(item, index, colour)
        style = f"{colour}, thick, {DASHES[index % len(DASHES)]}"
        lines.append(f"\\addplot[{style}] coordinates {{{tex_points(item, 0)}}};")
        lines.append(f"\\addlegendentry{{{tex(item.label)}}}")
    return "\n".join([*lines, "\\end{axis}", "\\end{tikzpicture}", ""])


def tex_band(item: Curve, index: int, colour: str) -> list[str]:
    edges = [
        f"\\addplot[name path={name}{index}, draw=none, forget plot]"
        f" coordinates {{{tex_points(item, sign)}}};"
        for name, sign in (("low", -1), ("high", 1))
    ]
    return [
        *edges,
        f"\\addplot[{colour}, opacity=0.2, forget plot] fill between[of=low{index} and high{index}];",
    ]


def tex_points(item: Curve, sign: int) -> str:
    return " ".join(f"({x:g},{mean + sign * (half or 0.0):.6g})" for x, mean, half in item.points)


def tex(text: str) -> str:
    return re.sub(r"([&%#_$])", r"\\\1", text)


def svg_picture(curves: Sequence[Curve], x_label: str, y_label: str) -> str:
    width, height, left, top, right, bottom = 640, 400, 70, 20, 20, 50
    xs = [point[0] for item in curves for point in item.points]
    ys = [mean + sign * (half or 0.0) for item in curves for _, mean, half in item.points for sign in (-1, 1)]
    x_low, x_high = span(xs)
    y_low, y_high = span(ys)

    def place(x: float, y: float) -> str:
        column = left + (x - x_low) / (x_high - x_low) * (width - left - right)
        row = height - bottom - (y - y_low) / (y_high - y_low) * (height - top - bottom)
        return f"{column:.2f},{row:.2f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for tick in ticks(y_low, y_high):
        start, end = place(x_low, tick), place(x_high, tick)
        parts.append(f'<path d="M{start} L{end}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{left - 6}" y="{float(start.split(",")[1]) + 4}" text-anchor="end">{tick:g}</text>'
        )
    for tick in ticks(x_low, x_high):
        column = place(tick, y_low).split(",")[0]
        parts.append(f'<text x="{column}" y="{height - bottom + 18}" text-anchor="middle">{tick:g}</text>')
    for index, item in enumerate(curves):
        parts += svg_curve(item, index, place)
        row = top + 14 + 18 * index
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<text x="{left + 12}" y="{row}" fill="{colour}">{escape(item.label)}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">{escape(x_label)}</text>')
    middle = height / 2
    parts.append(
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">'
        f"{escape(y_label)}</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


def svg_curve(item: Curve, index: int, place: object) -> list[str]:
    assert callable(place)
    colour = COLOURS[index % len(COLOURS)]
    parts = []
    if item.seeds > 1:
        upper = [place(x, mean + (half or 0.0)) for x, mean, half in item.points]
        lower = [place(x, mean - (half or 0.0)) for x, mean, half in reversed(item.points)]
        parts.append(f'<path d="M{" L".join(upper + lower)} Z" fill="{colour}" opacity="0.2"/>')
    line = " L".join(place(x, mean) for x, mean, _ in item.points)
    dash = SVG_DASHES[index % len(SVG_DASHES)]
    attribute = f' stroke-dasharray="{dash}"' if dash else ""
    parts.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2"{attribute}/>')
    return parts


def span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers between the two."""
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    size = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / size - 1e-9)
    return [round(number * size, 12) for number in range(first, math.floor(high / size + 1e-9) + 1)]


def summary(curves: Sequence[Curve], metric: str, window: int) -> str:
    """The facts of a caption, and the numbers that the text may quote."""
    lines = []
    for item in curves:
        step, mean, half = item.points[-1]
        interval = (
            f" ± {half:.3g} (95 % interval of the mean)" if half is not None else " (one seed: no interval)"
        )
        lines.append(f"{item.label}: {metric} = {mean:.4g}{interval} at {step:g}, {item.seeds} seed(s)")
    gaps = [item.label for item in curves for a, b in pairwise(item.points) if b[0] - a[0] > 1]
    note = f"; steps between points in {', '.join(sorted(set(gaps)))}" if gaps else ""
    smoothing = f"mean of the last {window} values" if window > 1 else "not smoothed"
    return "\n".join(
        [*lines, f"caption: {smoothing}; band: 95 % interval of the mean over seeds (Student's t){note}"]
    )


def parse_run(text: str) -> tuple[str, list[Path]]:
    label, sign, names = text.partition("=")
    if not sign or not label or not names:
        raise FigureError(f"'{text}' is not LABEL=FILE[,FILE…]")
    return label, [Path(name) for name in names.split(",")]


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description="Draw a metric of runs as a vector figure.")
    top.add_argument("runs", nargs="+", metavar="LABEL=FILE[,FILE…]", help="metrics.jsonl of each seed")
    top.add_argument("--metric", required=True, help="such as reward/mean or eval/success")
    top.add_argument("--output", type=Path, required=True, help="a file that ends in .tex or .svg")
    top.add_argument("--x", default="step", help="what the horizontal axis is (step)")
    top.add_argument("--x-label", default=None)
    top.add_argument("--y-label", default=None)
    top.add_argument("--smooth", type=int, default=1, metavar="N", help="mean of the last N values (1: none)")
    return top


def run(options: argparse.Namespace) -> str:
    if options.smooth < 1:
        raise FigureError("--smooth must be at least 1")
    curves = [
        curve(label, paths, options.metric, options.x, options.smooth)
        for label, paths in map(parse_run, options.runs)
    ]
    draw = {".tex": tex_picture, ".svg": svg_picture}.get(options.output.suffix)
    if draw is None:
        raise FigureError(f"{options.output} must end in .tex or .svg")
    text = draw(curves, options.x_label or options.x, options.y_label or options.metric)
    options.output.write_text(text, encoding="utf-8")
    return summary(curves, options.metric, options.smooth)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        sys.stdout.write(run(parser().parse_args(arguments)) + "\n")
    except (FigureError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
