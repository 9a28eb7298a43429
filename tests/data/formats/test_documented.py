"""docs/formats.md says of every format what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.data.export.table import KINDS
from hermes.data.formats.base import Format
from hermes.data.formats.registry import FORMATS

PAGE = (Path(__file__).parents[3] / "docs/formats.md").read_text("utf-8")


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_the_page_lists_what_a_format_keeps_and_what_it_does_not(form: Format) -> None:
    section = PAGE.split(f"### {form.name}\n", 1)[1].split("\n### ", 1)[0]
    assert f"Version {form.version};" in section
    kept, lost = section.split("Not held:")
    assert [line[2:] for line in kept.splitlines() if line.startswith("- ")] == list(form.keeps)
    assert [line[2:] for line in lost.splitlines() if line.startswith("- ")] == list(form.loses)
    assert ("export and import" in section) == (form.read is not None)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_every_column_has_a_type(form: Format) -> None:
    assert all(column.kind in KINDS for column in form.columns)
    assert len({column.name for column in form.columns}) == len(form.columns)
