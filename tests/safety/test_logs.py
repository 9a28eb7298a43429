"""What a client sends cannot forge a line of a server's log, or reach the terminal as a sequence."""

from __future__ import annotations

import logging

import pytest

from hermes.safety.output.logs import PrintableFormatter


def line(text: str, error: Exception | None = None) -> str:
    record = logging.LogRecord("server", logging.INFO, "", 0, "client with SDK %s", (text,), None)
    if error is not None:
        record.exc_info = (type(error), error, None)
    return PrintableFormatter("%(levelname)s %(message)s").format(record)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("0.36.0", "0.36.0"),
        ("1\nERROR the disk is full", "1\n    ERROR the disk is full"),
        ("1\rERROR", "1\\rERROR"),
        ("\x1b[2J\x1b]0;title\x07x", "x"),
        ("\x00\u202e", "\\x00\\u202e"),
    ],
)
def test_a_value_stays_on_its_line(text: str, written: str) -> None:
    assert line(text) == f"INFO client with SDK {written}"


def test_an_error_s_text_has_no_sequences_either() -> None:
    assert "\x1b" not in line("x", ValueError("\x1b[31mred"))
