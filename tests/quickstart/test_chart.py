"""The image of the reward curve, read back."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from hermes.core.stats import Interval, wilson
from hermes.quickstart import chart

CURVE = [(1, wilson(2, 8)), (2, wilson(4, 8)), (3, wilson(8, 8))]
SVG = "{http://www.w3.org/2000/svg}"


def test_the_curve_goes_through_the_values() -> None:
    root = ElementTree.fromstring(chart.svg(CURVE))
    points = chart.chart_points(CURVE)
    for dot, point in zip(root.iter(f"{SVG}circle"), points, strict=True):
        assert float(dot.attrib["cx"]) == pytest.approx(point.x, abs=0.05)
        assert float(dot.attrib["cy"]) == pytest.approx(point.y, abs=0.05)
    (line,), (band,) = root.iter(f"{SVG}polyline"), root.iter(f"{SVG}polygon")
    assert len(band.attrib["points"].split()) == 6
    assert all(point.high_y < point.y < point.low_y for point in points[:2])
    assert len(line.attrib["points"].split()) == 3
    high, low = chart.chart_points([(1, wilson(8, 8)), (2, wilson(0, 8))])
    assert high.y < low.y
    assert high.x < low.x


def test_values_outside_zero_to_one_stay_in_the_image() -> None:
    values = [Interval(value, value, value, 1, "none") for value in (1.0, 0.0, 7.0, -7.0)]
    top, bottom, above, below = chart.chart_points(list(enumerate(values)))
    assert (above.y, below.y) == (top.y, bottom.y)


def test_the_svg_is_well_formed_and_has_a_dot_for_every_step() -> None:
    root = ElementTree.fromstring(chart.svg(CURVE))
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles == ["step 1: 0.250", "step 2: 0.500", "step 3: 1.000"]


@pytest.mark.parametrize("steps", [0, 1, 2, 1234])
def test_curves_of_any_length_can_be_drawn(steps: int) -> None:
    curve = [(step, wilson(1, 2)) for step in range(1, steps + 1)]
    root = ElementTree.fromstring(chart.svg(curve))
    assert len(list(root.iter(f"{SVG}circle"))) == steps
    assert len(list(root.iter(f"{SVG}text"))) <= 1 + 5 + 12


def test_bars_are_as_long_as_their_shares_and_names_cannot_write_markup() -> None:
    rows = [("stars", 0.2, 0.8, "1.0", "4.0"), ("polite <b>", 0.0, 1.0, "0%", "100%")]
    root = ElementTree.fromstring(chart.bars(rows, ("base", "after DPO")))
    before, after, none, everything = (float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect"))
    assert after == pytest.approx(4 * before, rel=0.01)
    assert none == 0 and everything == pytest.approx(5 * before, rel=0.01)
    assert "polite <b>" in [text.text for text in root.iter(f"{SVG}text")]
