"""Where the log of a server goes: standard error, one way for all commands.

A line of the log may contain what a client sent. So terminal sequences are dropped, other control characters
are made visible, and further lines of a message are indented: no client can forge a line of the server.
"""

from __future__ import annotations

import logging

from hermes.safety.text import printable


def log_to_stderr(level: int, source: str = "") -> None:
    """`source`: what is written before each message, such as the logger's name; see `logging.Formatter`."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(f"%(asctime)s %(levelname)s {source}%(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


class PrintableFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message).replace("\n", "\n    ")
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
