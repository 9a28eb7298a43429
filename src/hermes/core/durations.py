"""Durations and rates as a person reads them; used by every progress line."""

from __future__ import annotations


def duration(seconds: float) -> str:
    whole = round(seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def rate_text(per_s: float) -> str:
    return f"{per_s:.1f}/s" if per_s >= 1 else f"{per_s * 60:.1f}/min"
