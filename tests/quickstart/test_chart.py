"""The image of the reward curve, read back."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from hermes.quickstart import chart

CURVE = [(1, 0.25), (2, 0.5), (3, 1.0)]
SVG = "{http://www.w3.org/2000/svg}"


def test_the_curve_goes_through_the_values() -> None:
    root = ElementTree.fromstring(chart.svg(CURVE))
    points = chart.chart_points(CURVE)
    for dot, point in zip(root.iter(f"{SVG}circle"), points, strict=True):
        assert float(dot.attrib["cx"]) == pytest.approx(point.x, abs=0.05)
        assert float(dot.attrib["cy"]) == pytest.approx(point.y, abs=0.05)
    (line,) = root.iter(f"{SVG}polyline")
    assert len(line.attrib["points"].split()) == 3
    high, low = chart.chart_points([(1, 1.0), (2, 0.0)])
    assert high.y < low.y
    assert high.x < low.x


def test_values_outside_zero_to_one_stay_in_the_image() -> None:
    top, bottom, above, below = chart.chart_points([(1, 1.0), (2, 0.0), (3, 7.0), (4, -7.0)])
    assert (above.y, below.y) == (top.y, bottom.y)


def test_the_svg_is_well_formed_and_has_a_dot_for_every_step() -> None:
    root = ElementTree.fromstring(chart.svg(CURVE))
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles == ["step 1: 0.250", "step 2: 0.500", "step 3: 1.000"]


@pytest.mark.parametrize("steps", [0, 1, 2, 1234])
def test_curves_of_any_length_can_be_drawn(steps: int) -> None:
    curve = [(step, 0.5) for step in range(1, steps + 1)]
    root = ElementTree.fromstring(chart.svg(curve))
    assert len(list(root.iter(f"{SVG}circle"))) == steps
    assert len(list(root.iter(f"{SVG}text"))) <= 1 + 5 + 12
