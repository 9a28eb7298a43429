"""Finds the end of an answer in its bytes, so that the record is durable before a client has it.

A stream of events is passed on at once; from its last event on it is withheld until the record is on disk.
"""

from __future__ import annotations

import re

from hermes.gateway.wire import Protocol

_LAST_EVENT = {
    Protocol.CHAT: re.compile(rb"\ndata: ?\[DONE\]"),
    Protocol.MESSAGES: re.compile(rb'\n(?:event: ?message_stop|data: ?\{"type": ?"message_stop")'),
    Protocol.RESPONSES: re.compile(
        rb"\n(?:event: ?response\.(?:completed|incomplete|failed)\b"
        rb'|data: ?\{"type": ?"response\.(?:completed|incomplete|failed)")'
    ),
}
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_OVERLAP_BYTES = 64
"""Longer than the beginning of any last event."""


class Ending:
    """Watches the decoded bytes of one stream."""

    def __init__(self, protocol: Protocol) -> None:
        self._pattern = _LAST_EVENT[protocol]
        self._tail = b"\n"
        self.begun = False
        """The last event has begun: nothing more is passed on until it is recorded."""
        self.complete = False
        """It has arrived."""

    def feed(self, data: bytes) -> None:
        window = self._tail + data
        if not self.begun:
            match = self._pattern.search(window)
            if match is None:
                self._tail = window[-_OVERLAP_BYTES:]
                return
            self.begun = True
            window = window[match.start() + 1 :]
        self.complete = self.complete or _BLANK_LINE.search(window) is not None
        self._tail = window[-4:]
