"""The picture of the reward curve, read back."""

from __future__ import annotations

import struct
import zlib
from xml.etree import ElementTree

import pytest

from hermes.quickstart import chart

CURVE = [(1, 0.25), (2, 0.5), (3, 1.0)]
BLUE = (37, 99, 235)


def pixels(png: bytes) -> tuple[int, int, list[bytes]]:
    """Width, height and rows of an 8-bit RGB picture without filters."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, data, size = 8, b"", (0, 0)
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length)[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
            assert body[8:] == bytes([8, 2, 0, 0, 0])
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    lines, row = zlib.decompress(data), 3 * size[0] + 1
    rows = [lines[start : start + row] for start in range(0, len(lines), row)]
    assert all(line[0] == 0 for line in rows)
    return size[0], size[1], [line[1:] for line in rows]


def test_the_png_has_the_curve_where_the_values_are() -> None:
    width, height, rows = pixels(chart.png(CURVE))
    assert (width, height) == (chart.WIDTH, chart.HEIGHT) and len(rows) == height
    for spot in chart.spots(CURVE):
        x, y = round(spot.x), round(spot.y)
        assert tuple(rows[y][3 * x : 3 * x + 3]) == BLUE
    high, low = chart.spots([(1, 1.0), (2, 0.0)])
    assert high.y < low.y
    assert high.x < low.x


def test_values_outside_zero_to_one_stay_in_the_picture() -> None:
    top, bottom, above, below = chart.spots([(1, 1.0), (2, 0.0), (3, 7.0), (4, -7.0)])
    assert (above.y, below.y) == (top.y, bottom.y)


def test_the_svg_is_well_formed_and_has_a_dot_for_every_step() -> None:
    root = ElementTree.fromstring(chart.svg(CURVE))
    assert len(root.findall("circle")) == 3
    assert [title.text for title in root.iter("title")] == ["step 1: 0.250", "step 2: 0.500", "step 3: 1.000"]


@pytest.mark.parametrize("steps", [0, 1, 2, 1234])
def test_curves_of_any_length_can_be_drawn(steps: int) -> None:
    curve = [(step, 0.5) for step in range(1, steps + 1)]
    pixels(chart.png(curve))
    assert len(list(ElementTree.fromstring(chart.svg(curve)).iter("text"))) <= 1 + 5 + 12
