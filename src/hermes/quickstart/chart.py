"""The reward curve as a picture: SVG for the report, PNG for everything else. Pure, and without packages.

The PNG is drawn pixel by pixel on a small canvas, with letters of a font that has just what the axes say.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 40, 50
_GRID = (0.0, 0.25, 0.5, 0.75, 1.0)
_LINE, _AXIS, _GREY = (37, 99, 235), (60, 60, 60), (220, 220, 220)
_SCALE = 2
"""Pixels of the picture for one of the font."""
_TITLE = "mean reward by step"
_FONT = {
    "0": "0e11131519110e00",
    "1": "040c040404040e00",
    "2": "0e11010608101f00",
    "3": "1f02040201110e00",
    "4": "02060a121f020200",
    "5": "1f101e0101110e00",
    "6": "0608101e11110e00",
    "7": "1f01020408080800",
    "8": "0e11110e11110e00",
    "9": "0e11110f01020c00",
    ".": "00000000000c0c00",
    "a": "00000e010f110f00",
    "b": "10101e1111111e00",
    "d": "01010f1111110f00",
    "e": "00000e111f100e00",
    "m": "00001a1515151500",
    "n": "00001e1111111100",
    "p": "00001e11111e1010",
    "r": "0000161810101000",
    "s": "00000f100e011e00",
    "t": "08081c0808090600",
    "w": "0000111115150a00",
    "y": "00001111110f010e",
    " ": "0000000000000000",
}
"""Letter → eight rows of five pixels, the leftmost is the highest bit."""

Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Spot:
    """A value and its place in the picture."""

    x: float
    y: float
    step: int
    value: float


def spots(values: Sequence[tuple[int, float]]) -> list[Spot]:
    """(step, reward from 0 to 1) → places, the first step at the left edge and the last at the right one."""
    if not values:
        return []
    first, last = values[0][0], values[-1][0]
    width = WIDTH - _LEFT - _RIGHT
    return [
        Spot(_LEFT + width * (step - first) / max(1, last - first), _height(value), step, value)
        for step, value in values
    ]


def svg(values: Sequence[tuple[int, float]]) -> str:
    placed = spots(values)
    grid = "".join(
        f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{_height(value):.1f}" y2="{_height(value):.1f}" '
        f'class="grid"/><text x="{_LEFT - 8}" y="{_height(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        for value in _GRID
    )
    steps = "".join(
        f'<text x="{spot.x:.1f}" y="{HEIGHT - _BOTTOM + 20}" text-anchor="middle">{spot.step}</text>'
        for spot in _labelled(placed)
    )
    path = " ".join(f"{spot.x:.1f},{spot.y:.1f}" for spot in placed)
    dots = "".join(
        f'<circle cx="{spot.x:.1f}" cy="{spot.y:.1f}" r="4"><title>step {spot.step}: {spot.value:.3f}</title>'
        "</circle>"
        for spot in placed
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_TITLE)}">'
        f'<text x="{_LEFT}" y="24">{escape(_TITLE)}</text>{grid}{steps}'
        f'<polyline points="{path}"/>{dots}</svg>'
    )


def png(values: Sequence[tuple[int, float]]) -> bytes:
    canvas = _Canvas(WIDTH, HEIGHT)
    placed = spots(values)
    canvas.text(_TITLE, _LEFT, 12)
    for value in _GRID:
        y = round(_height(value))
        canvas.line((_LEFT, y), (WIDTH - _RIGHT, y), _AXIS if value == 0 else _GREY)
        label = f"{value:g}"
        canvas.text(label, _LEFT - 10 - canvas.text_width(label), y - 7)
    for spot in _labelled(placed):
        label = str(spot.step)
        canvas.text(label, round(spot.x) - canvas.text_width(label) // 2, HEIGHT - _BOTTOM + 14)
    for one, two in pairwise(placed):
        canvas.line((one.x, one.y), (two.x, two.y), _LINE, thick=2)
    for spot in placed:
        canvas.dot(round(spot.x), round(spot.y), 4, _LINE)
    return canvas.png()


def _height(value: float) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - min(1.0, max(0.0, value)))


def _labelled(placed: list[Spot]) -> list[Spot]:
    """At most a dozen of them."""
    return placed[:: max(1, -(-len(placed) // 12))]


class _Canvas:
    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._pixels = bytearray(b"\xff" * (3 * width * height))

    def set(self, x: int, y: int, colour: Colour) -> None:
        if 0 <= x < self._width and 0 <= y < self._height:
            at = 3 * (y * self._width + x)
            self._pixels[at : at + 3] = bytes(colour)

    def dot(self, x: int, y: int, radius: int, colour: Colour) -> None:
        for dx in range(-radius, radius + 1):
            for dy in range(-radius, radius + 1):
                if dx * dx + dy * dy <= radius * radius:
                    self.set(x + dx, y + dy, colour)

    def line(
        self, start: tuple[float, float], end: tuple[float, float], colour: Colour, thick: int = 1
    ) -> None:
        (x1, y1), (x2, y2) = start, end
        count = max(1, round(max(abs(x2 - x1), abs(y2 - y1))))
        for index in range(count + 1):
            x, y = x1 + (x2 - x1) * index / count, y1 + (y2 - y1) * index / count
            if thick == 1:
                self.set(round(x), round(y), colour)
            else:
                self.dot(round(x), round(y), thick // 2, colour)

    def text(self, words: str, x: int, y: int) -> None:
        for index, letter in enumerate(words):
            for row, bits in enumerate(bytes.fromhex(_FONT[letter])):
                for column in range(5):
                    if bits >> (4 - column) & 1:
                        self._block(x + _SCALE * (6 * index + column), y + _SCALE * row)

    def text_width(self, words: str) -> int:
        return _SCALE * 6 * len(words)

    def _block(self, x: int, y: int) -> None:
        for dx in range(_SCALE):
            for dy in range(_SCALE):
                self.set(x + dx, y + dy, _AXIS)

    def png(self) -> bytes:
        row = 3 * self._width
        lines = b"".join(
            b"\0" + bytes(self._pixels[at : at + row]) for at in range(0, len(self._pixels), row)
        )
        header = struct.pack(">IIBBBBB", self._width, self._height, 8, 2, 0, 0, 0)
        parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
