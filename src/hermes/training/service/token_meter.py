"""Counts the tokens that a run sends to the engine or service, in `tokens.json` of its folder.

The file is written at most once a second, so a kill can lose the last second. If it cannot be written (a full
disk), a warning is logged, counting continues, and the next write contains the whole count.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hermes.core import parse_object
from hermes.disk.files import atomic_write, read_text
from hermes.errors import HermesError

logger = logging.getLogger(__name__)

NAME = "tokens.json"
_WRITE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class TokenCounts:
    prefill: int = 0
    """Prompts, and sequences that were scored without gradients."""
    sampled: int = 0
    trained: int = 0
    """In a pass with gradients."""


def read_tokens(folder: Path) -> TokenCounts:
    """The counts of the run in that folder; 0 if it has none."""
    text = read_text(folder / NAME)
    try:
        return TokenCounts(**parse_object(text)) if text else TokenCounts()
    except (ValueError, TypeError) as error:
        raise HermesError(
            f"{folder / NAME} is damaged: {error}", "move it aside; counting starts anew"
        ) from error


class TokenMeter:
    """Thread-safe. Starts from the counts in the folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._lock = threading.Lock()
        self._written_s = 0.0
        self.tokens = read_tokens(folder)

    def count(self, *, prefill: int = 0, sampled: int = 0, trained: int = 0) -> None:
        with self._lock:
            now = self.tokens
            self.tokens = replace(
                now,
                prefill=now.prefill + prefill,
                sampled=now.sampled + sampled,
                trained=now.trained + trained,
            )
            if time.monotonic() - self._written_s > _WRITE_EVERY_S:
                self._write()

    def close(self) -> None:
        with self._lock:
            self._write()

    def _write(self) -> None:
        self._written_s = time.monotonic()
        try:
            atomic_write(self._path, json.dumps(asdict(self.tokens)) + "\n")
        except HermesError as error:
            logger.warning("%s", error.message)
