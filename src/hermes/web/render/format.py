"""Numbers, times and ids as a person reads them."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

from hermes.core import clock as wall_clock

_AGES = ((60, "s"), (3600, "min"), (86_400, "h"), (604_800, "d"), (2_629_800, "w"), (31_557_600, "mo"))
DASH = "–"


def number(value: float | int | None, digits: int = 3) -> str:
    """A few significant digits, without an exponent where that is readable."""
    if value is None:
        return DASH
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0:
        return "0"
    if isinstance(value, int) or float(value).is_integer():
        return count(int(value)) if abs(value) < 1e9 else f"{value:.2e}"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        return _minus(f"{value:.{digits - 1}e}")
    return _minus(f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}")


def count(value: int | None) -> str:
    """Thousands apart."""
    return DASH if value is None else _minus(f"{value:,}")


def byte_count(value: int) -> str:
    size = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def usd(value: float | None) -> str:
    if value is None:
        return DASH
    return f"${value:.2f}" if value >= 0.1 or value == 0 else f"${value:.4f}"


def age(at_ms: int | None, now_ms: int | None = None) -> str:
    """How long ago."""
    if at_ms is None:
        return DASH
    seconds = max(0, ((wall_clock.now_ms() if now_ms is None else now_ms) - at_ms) // 1000)
    if seconds < 10:
        return "now"
    divisor = 1
    for limit, unit in _AGES:
        if seconds < limit:
            return f"{seconds // divisor} {unit}"
        divisor = limit
    return f"{seconds // 31_557_600} y"


def date(at_ms: int | None) -> str:
    """As ISO with seconds, in UTC; a time that no calendar has is shown as its number."""
    if at_ms is None:
        return DASH
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def clock(at_ms: int | None) -> str:
    return DASH if at_ms is None else date(at_ms)[11:19]


def duration_ms(value: float | None) -> str:
    if value is None:
        return DASH
    if value < 1000:
        return f"{value:.0f} ms"
    seconds = value / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def short_id(value: str | None) -> str:
    """The end of an id, which `hermes trajectories show` takes too."""
    return "" if value is None else value[-8:]


def pretty_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _minus(text: str) -> str:
    return text.replace("-", "−")


def model_name(model: str) -> str:
    """The folder's name of a model in a folder, else the model's name; only its end if it is very long."""
    return model.rstrip("/").rpartition("/")[2] if model.startswith(("/", "~", ".")) else model[-60:]
