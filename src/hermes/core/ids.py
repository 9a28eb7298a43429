"""Identifiers: 26 characters, sortable by creation time, unique without coordination (ULID layout)."""

from __future__ import annotations

import os

from hermes.core import clock

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford base 32: no I, L, O, U


def new_id(now_ms: int | None = None) -> str:
    """48 bits of milliseconds, then 80 random bits; later ids compare greater across milliseconds."""
    stamp = clock.now_ms() if now_ms is None else now_ms
    value = (stamp << 80) | int.from_bytes(os.urandom(10), "big")
    return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))
